"""Recursive halving and doubling, among a power of two.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005). In halving, the members at a distance exchange halves of what they still have to
add up; doubling undoes it. ASTRA-sim's halving, and the one that is used here, begins with the
nearest member, with which it exchanges every second part. In programs a message has to be one
piece of memory, so that they begin with the farthest member.
"""

from __future__ import annotations

from collections.abc import Sequence

from hespas.collectives.patterns import Form, Pattern
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)

_AR, _AG, _RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def _nearest_first(members: int) -> list[int]:
    return [1 << level for level in range(members.bit_length() - 1)]


def _farthest_first(members: int) -> list[int]:
    return _nearest_first(members)[::-1]


def _shared(members: int, member: int, bits: int) -> range:
    """Return the parts whose number agrees with a member's in ``bits``, lowest or highest."""
    free = members - 1 & ~bits
    first = member & bits
    step = 1 if free & 1 else bits + 1
    return range(first, (first | free) + 1, step)


def _halving(members: int, distances: Sequence[int]) -> list[Rounds]:
    """Return rounds in which members exchange, across each distance, what the other goes on with.

    After some of them, a member goes on with the parts that agree with its own number in the bits
    that are the distances so far.
    """
    return [
        _exchange(members, distance, sum(distances[: index + 1]), Operation.REDUCE)
        for index, distance in enumerate(distances)
    ]


def _doubling(members: int, distances: Sequence[int]) -> list[Rounds]:
    """Return the same backwards: members give away what they went on with."""
    return [
        _exchange(members, distances[index], sum(distances[: index + 1]), Operation.COPY)
        for index in reversed(range(len(distances)))
    ]


def _exchange(members: int, distance: int, bits: int, operation: Operation) -> Rounds:
    def parts(message: Message) -> range:
        owner = message.target if operation is Operation.REDUCE else message.source
        return _shared(members, owner, bits)

    return Rounds(
        pattern=Pattern(Form.EXCHANGE, distance),
        parts=parts,
        size_parts=members >> bits.bit_count(),
        operation=operation,
    )


def schedule(collective: Collective, members: int, distances: Sequence[int]) -> Schedule:
    """Return halving, doubling, or both; ``distances`` are in the order of halving."""
    rounds: list[Rounds] = []
    if collective is not _AG:
        rounds += _halving(members, distances)
    if collective is not _RS:
        rounds += _doubling(members, distances)
    return cut_evenly("halving-doubling", collective, members, tuple(rounds))


ALGORITHM = CollectiveAlgorithm(
    name="halving-doubling",
    schedules={
        _AR: lambda members: schedule(_AR, members, _nearest_first(members)),
        _RS: lambda members: schedule(_RS, members, _nearest_first(members)),
        _AG: lambda members: schedule(_AG, members, _nearest_first(members)),
    },
    contiguous_schedules={
        _AR: lambda members: schedule(_AR, members, _farthest_first(members)),
        _RS: lambda members: schedule(_RS, members, _farthest_first(members)),
        _AG: lambda members: schedule(_AG, members, _farthest_first(members)),
    },
    needs_power_of_two=True,
)
