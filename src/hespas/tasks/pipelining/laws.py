"""Closed forms of schedules, for stages that are equal and messages that take no time.

Sources: D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM, 2021, section 2.2; P. Qi et al., Zero Bubble Pipeline Parallelism, 2023, table 1. The
number of micro-batches in flight follows from the order of passes.
"""

from __future__ import annotations

from hespas.errors import ConfigError
from hespas.tasks.pipelining.generate import chunks_named


def ideal_bubble(name: str, *, stages: int, micro_batches: int) -> float:
    """Return the share of the time in which a stage waits.

    Of GPipe and 1F1B it is ``(p - 1) / (m + p - 1)``; ``V`` chunks a stage divide the time that a
    stage waits by V, hence ``(p - 1) / (V m + p - 1)``; gradients of weights that are as long as
    the other two passes fill two thirds of it, hence ``(p - 1) / (3 m + p - 1)``, where there are
    at least ``p`` micro-batches. `ConfigError` for fewer, and for a name that is none.

    >>> ideal_bubble("1f1b", stages=8, micro_batches=8)
    0.4666666666666667
    >>> ideal_bubble("interleaved:7", stages=8, micro_batches=8)
    0.1111111111111111
    """
    divisor = chunks_named(name)
    if name == "zero-bubble":
        if micro_batches < stages:
            raise ConfigError("zero-bubble has no closed form for few micro-batches")
        divisor = 3
    return (stages - 1) / (divisor * micro_batches + stages - 1)


def most_in_flight(name: str, *, stages: int, micro_batches: int, stage: int) -> int:
    """Return how many chunks of micro-batches a stage holds at most, in closed form.

    GPipe holds all; 1F1B as many as there are stages from this one on; with ``V`` chunks a stage,
    ``2 (p - 1 - s) + (V - 1) p + 1``; with zero-bubble the number of
    stages.

    >>> most_in_flight("1f1b", stages=8, micro_batches=32, stage=0)
    8
    >>> most_in_flight("interleaved:8", stages=8, micro_batches=32, stage=0)
    71
    """
    chunks = chunks_named(name)
    behind = stages - 1 - stage
    match name:
        case "gpipe":
            return micro_batches
        case "zero-bubble":
            return min(micro_batches, stages)
        case _ if chunks == 1:
            return min(micro_batches, behind + 1)
        case _:
            return min(micro_batches * chunks, 2 * behind + (chunks - 1) * stages + 1)
