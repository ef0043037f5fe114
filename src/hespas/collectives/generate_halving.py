"""Recursive halving and doubling.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005).
"""

from __future__ import annotations

from hespas.collectives.algorithm import (
    Algorithm,
    Collective,
    Step,
    StepId,
    StepKind,
    Threadblock,
)
from hespas.collectives.building import make_algorithm, step_on
from hespas.errors import AlgorithmError


def _halving(rank: int, ranks: int) -> list[tuple[int, int, int, int]]:
    """Return (partner, first chunk to send, first chunk to keep, count) of every halving."""
    found: list[tuple[int, int, int, int]] = []
    first, count = 0, ranks
    while count > 1:
        count //= 2
        is_upper = bool(rank & count)
        keep, give = (first + count, first) if is_upper else (first, first + count)
        found.append((rank ^ count, give, keep, count))
        first = keep
    return found


def _halving_doubling(collective: Collective, ranks: int) -> Algorithm:
    if ranks < 2 or ranks & ranks - 1:
        raise AlgorithmError(f"halving-doubling among {ranks} ranks, which is not a power of two")

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        found = _halving(rank, ranks)
        levels = range(len(found))
        steps: list[list[Step]] = [[] for _ in found]
        last: StepId | None = None
        order = [(level, True) for level in levels if collective is not Collective.ALL_GATHER]
        order += [
            (level, False)
            for level in reversed(levels)
            if collective is not Collective.REDUCE_SCATTER
        ]
        for level, halves in order:
            _, give, keep, count = found[level]
            # What is given away in halving comes back in doubling.
            outgoing, incoming = (give, keep) if halves else (keep, give)
            kind = StepKind.RECEIVE_REDUCE_COPY if halves else StepKind.RECEIVE
            steps[level] += [
                step_on(StepKind.SEND, outgoing, count=count, after=last),
                step_on(kind, incoming, count=count),
            ]
            last = StepId(level, len(steps[level]) - 1)
        return tuple([
            Threadblock(
                id=level,
                send_peer=partner,
                receive_peer=partner,
                channel=0,
                steps=tuple(steps[level]),
            )
            for level, (partner, *_) in enumerate(found)
        ])  # fmt: skip

    return make_algorithm("halving_doubling", collective, ranks, blocks, ranks=ranks)


def halving_doubling_all_reduce(ranks: int) -> Algorithm:
    """Return recursive halving and then doubling; raises `AlgorithmError` but for powers of 2."""
    return _halving_doubling(Collective.ALL_REDUCE, ranks)


def halving_doubling_reduce_scatter(ranks: int) -> Algorithm:
    """Return recursive halving; raises `AlgorithmError` but for powers of two."""
    return _halving_doubling(Collective.REDUCE_SCATTER, ranks)


def halving_doubling_all_gather(ranks: int) -> Algorithm:
    """Return recursive doubling; raises `AlgorithmError` but for powers of two."""
    return _halving_doubling(Collective.ALL_GATHER, ranks)
