"""The schedules that frameworks have, by name.

Sources: Y. Huang et al., GPipe, 2019; D. Narayanan et al., Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM, 2021 (1F1B, interleaved); P. Qi et al., Zero Bubble
Pipeline Parallelism, 2023 (the schedule ZB-H1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option
from hespas.tasks.pipelining.schedule import Action, Pass, Schedule

NAMES = ("gpipe", "1f1b", "interleaved:V", "zero-bubble")
"""The schedules by name; V is how many chunks a stage has."""
_INTERLEAVED = re.compile(r"interleaved:(\d{1,4})")


def chunks_named(name: str) -> int:
    """Return how many chunks a stage has in a schedule; `ConfigError` for a name that is none.

    >>> chunks_named("interleaved:8"), chunks_named("1f1b")
    (8, 1)
    """
    match = _INTERLEAVED.fullmatch(name)
    if match and int(match[1]) >= 1:
        return int(match[1])
    if name in NAMES and not name.startswith("interleaved"):
        return 1
    hint = "write how many chunks a stage has, as in interleaved:2"
    if not name.startswith("interleaved"):
        hint = suggestion(name, (*NAMES, "a file"))
    raise ConfigError(f"{option('schedule')} is {name!r}", hint=hint)


def schedule_named(name: str, *, stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of a name.

    Raises `ConfigError` for a name that is none, and for micro-batches that an interleaved schedule
    cannot take in turns.

    >>> schedule = schedule_named("1f1b", stages=2, micro_batches=3)
    >>> [" ".join(map(str, each)) for each in schedule.order]
    ['F0 F1 B0 F2 B1 B2', 'F0 B0 F1 B1 F2 B2']
    """
    chunks = chunks_named(name)
    if min(stages, micro_batches) < 1:
        raise ConfigError(f"{stages} stages and {micro_batches} micro-batches are no pipeline")
    if chunks > 1 and micro_batches % stages:
        below, above = micro_batches // stages * stages, -(-micro_batches // stages) * stages
        raise ConfigError(
            f"{micro_batches} micro-batches are not divided by the {stages} stages of {name}",
            hint=f"give {f'{below} or ' if below else ''}{above} micro-batches, or take 1f1b",
        )
    match name:
        case "gpipe":
            order = [_gpipe(micro_batches)] * stages
        case "zero-bubble":
            order = [_zero_bubble(stage, stages, micro_batches) for stage in range(stages)]
        case _:
            order = [_one_to_one(stage, stages, micro_batches, chunks) for stage in range(stages)]
    return Schedule(name=name, micro_batches=micro_batches, chunks=chunks, order=tuple(order))


def _gpipe(micro_batches: int) -> tuple[Action, ...]:
    """All forward passes, then all backward passes, the last micro-batch first."""
    numbers = range(micro_batches)
    forward = [Action(Pass.FORWARD, number) for number in numbers]
    return (*forward, *(Action(Pass.BACKWARD, number) for number in reversed(numbers)))


def _one_to_one(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Forward passes to fill the pipeline, then one forward and one backward pass in turns.

    With several chunks, a stage computes as many micro-batches as there are stages with one chunk,
    and then with the next.
    """
    turns = list(_turns(stages, micro_batches, chunks))
    forward = [Action(Pass.FORWARD, number, chunk) for number, chunk in turns]
    backward = [Action(Pass.BACKWARD, number, chunks - 1 - chunk) for number, chunk in turns]
    behind = stages - 1 - stage
    filling = behind if chunks == 1 else 2 * behind + (chunks - 1) * stages
    filling = min(filling, len(forward))
    steady = len(forward) - filling
    pairs = zip(forward[filling:], backward[:steady], strict=True)
    return (*forward[:filling], *(each for pair in pairs for each in pair), *backward[steady:])


def _turns(stages: int, micro_batches: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Yield micro-batches and chunks in the order of the forward passes of every stage."""
    if chunks == 1:
        yield from ((number, 0) for number in range(micro_batches))
        return
    for first in range(0, micro_batches, stages):
        for chunk in range(chunks):
            yield from ((first + number, chunk) for number in range(stages))


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """As 1F1B, with the gradients of weights as many micro-batches late as stages stand before.

    At the end they fill the time in which the stage would wait. It holds as many micro-batches as
    there are stages, and so needs no more memory than the first stage of 1F1B.
    """
    filling = min(micro_batches, stages - 1 - stage)
    order = [Action(Pass.FORWARD, number) for number in range(filling)]
    for number in range(micro_batches):
        if filling + number < micro_batches:
            order.append(Action(Pass.FORWARD, filling + number))
        order.append(Action(Pass.BACKWARD, number))
        if number >= stage:
            order.append(Action(Pass.WEIGHTS, number - stage))
    late = range(max(0, micro_batches - stage), micro_batches)
    return (*order, *(Action(Pass.WEIGHTS, number) for number in late))
