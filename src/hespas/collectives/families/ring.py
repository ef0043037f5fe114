"""The ring: parts go around the list of members, from each to the next."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from hespas.collectives.patterns import Form, Pattern, shift
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)


def around(members: int, *, first: int, operation: Operation) -> Rounds:
    """Return n - 1 rounds, the first of which sends the part ``first`` past one's own number."""

    def parts(message: Message) -> range:
        part = (message.source + first - message.round) % members
        return range(part, part + 1)

    return Rounds(pattern=shift(1), count=members - 1, parts=parts, operation=operation)


def all_reduce(members: int) -> Schedule:
    """Return the ring in which every part goes around once added up, and once handed out."""
    rounds = (
        around(members, first=0, operation=Operation.REDUCE),
        around(members, first=1, operation=Operation.COPY),
    )
    return cut_evenly("ring", Collective.ALL_REDUCE, members, rounds)


def reduce_scatter(members: int) -> Schedule:
    """Return the ring's first half, after which a member has the sum of its own part."""
    rounds = around(members, first=-1, operation=Operation.REDUCE)
    return cut_evenly("ring", Collective.REDUCE_SCATTER, members, (rounds,))


def all_gather(members: int) -> Schedule:
    """Return the ring's second half, which begins with the member's own part."""
    rounds = around(members, first=0, operation=Operation.COPY)
    return cut_evenly("ring", Collective.ALL_GATHER, members, (rounds,))


def all_to_all(members: int) -> Schedule:
    """Return the ring in which the part for the d-th next member is handed on d times."""

    def parts(message: Message) -> range:
        distance = (1 + isqrt(1 + 8 * message.round)) // 2
        hop = message.round - distance * (distance - 1) // 2
        origin = (message.source - hop) % members
        part = origin * members + (origin + distance) % members
        return range(part, part + 1)

    rounds = Rounds(pattern=shift(1), count=members * (members - 1) // 2, parts=parts)
    return cut_evenly("ring", Collective.ALL_TO_ALL, members, (rounds,))


def chain(
    collective: Collective, members: int, operation: Operation, pieces: int | None = None
) -> Schedule:
    """Return a pipeline along the list, in which the k-th piece leaves the first in round k.

    There are as many ``pieces`` as members unless they are given. The last member is the root of a
    reduction.
    """
    count = members if pieces is None else pieces

    def parts(message: Message) -> range:
        piece = message.round - message.source
        return range(piece, piece + 1) if 0 <= piece < count else range(0)

    rounds = Rounds(
        pattern=Pattern(Form.PATH),
        count=count + members - 2,
        parts=parts,
        operation=operation,
        depth=members - 1,
    )
    root = members - 1 if collective is Collective.REDUCE else 0
    return replace(cut_evenly("ring", collective, members, (rounds,), parts=count), root=root)


def broadcast(members: int) -> Schedule:
    """Return the chain that hands pieces on from the first member to the last."""
    return chain(Collective.BROADCAST, members, Operation.COPY)


def reduce(members: int) -> Schedule:
    """Return the chain in which each adds what it has; the last member gets the sum."""
    return chain(Collective.REDUCE, members, Operation.REDUCE)


ALGORITHM = CollectiveAlgorithm(
    name="ring",
    schedules={
        Collective.ALL_REDUCE: all_reduce,
        Collective.REDUCE_SCATTER: reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.ALL_TO_ALL: all_to_all,
        Collective.BROADCAST: broadcast,
        Collective.REDUCE: reduce,
    },
    usual_for=(
        Collective.ALL_REDUCE,
        Collective.REDUCE_SCATTER,
        Collective.ALL_GATHER,
        Collective.BROADCAST,
        Collective.REDUCE,
    ),
)
