"""The ring: chunks go around, from each rank to the next."""

from __future__ import annotations

from collections.abc import Callable

from hespas.collectives.algorithm import (
    Algorithm,
    Collective,
    Step,
    StepKind,
    Threadblock,
)
from hespas.collectives.building import make_algorithm, step_on


def _ring(collective: Collective, ranks: int, steps: Callable[[int], list[Step]]) -> Algorithm:
    def blocks(rank: int) -> tuple[Threadblock, ...]:
        block = Threadblock(
            id=0,
            send_peer=(rank + 1) % ranks,
            receive_peer=(rank - 1) % ranks,
            channel=0,
            steps=tuple(steps(rank)),
        )
        return (block,)

    return make_algorithm("ring", collective, ranks, blocks, ranks=ranks)


def _ring_scatter(rank: int, ranks: int, *, first: int) -> list[Step]:
    """Return steps after which the rank holds the sum of chunk ``first + 1 - ranks``."""
    steps = [step_on(StepKind.SEND, (rank + first) % ranks)]
    for hop in range(1, ranks):
        chunk = (rank + first - hop) % ranks
        steps.append(step_on(StepKind.RECEIVE_REDUCE_COPY, chunk))
        if hop < ranks - 1:
            steps.append(step_on(StepKind.SEND, chunk))
    return steps


def _ring_gather(rank: int, ranks: int, *, first: int) -> list[Step]:
    """Return steps that hand chunks on, beginning with ``first`` past the rank's own number."""
    steps: list[Step] = []
    for hop in range(ranks - 1):
        steps.append(step_on(StepKind.SEND, (rank + first - hop) % ranks))
        steps.append(step_on(StepKind.RECEIVE, (rank + first - hop - 1) % ranks))
    return steps


def ring_all_reduce(ranks: int) -> Algorithm:
    """Return the ring: every chunk goes around once to be summed up, and once to be known."""
    return _ring(
        Collective.ALL_REDUCE,
        ranks,
        lambda rank: [
            *_ring_scatter(rank, ranks, first=0),
            *_ring_gather(rank, ranks, first=1),
        ],
    )


def ring_reduce_scatter(ranks: int) -> Algorithm:
    """Return the ring's first half, at whose end a rank has the sum of its own chunk."""
    return _ring(
        Collective.REDUCE_SCATTER, ranks, lambda rank: _ring_scatter(rank, ranks, first=ranks - 1)
    )


def ring_all_gather(ranks: int) -> Algorithm:
    """Return the ring's second half, which begins with the rank's own chunk."""
    return _ring(Collective.ALL_GATHER, ranks, lambda rank: _ring_gather(rank, ranks, first=0))
