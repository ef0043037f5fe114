"""Define the collective algorithms by their rounds.

To add one, append a `hespas.collectives.schedule.CollectiveAlgorithm` to `ALGORITHMS`, which the
network models, programs in MSCCL's form, their verification and the tests read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt

from hespas.collectives.patterns import Form, Pattern, shift, tree_depths
from hespas.collectives.schedule import (
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)
from hespas.program.collectives import CollectiveKind

_ALL_REDUCE = CollectiveKind.ALL_REDUCE
_ALL_GATHER = CollectiveKind.ALL_GATHER
_REDUCE_SCATTER = CollectiveKind.REDUCE_SCATTER
_ALL_TO_ALL = CollectiveKind.ALL_TO_ALL
_BROADCAST, _REDUCE = CollectiveKind.BROADCAST, CollectiveKind.REDUCE
_GATHER, _SCATTER = CollectiveKind.GATHER, CollectiveKind.SCATTER
_DIVISIBLE = (_ALL_REDUCE, _REDUCE_SCATTER, _ALL_GATHER)
"""The collectives whose data most algorithms divide into a part per member."""


def _single_part(part: int) -> range:
    return range(part, part + 1)


def _part_of_source(message: Message) -> range:
    return _single_part(message.source)


def _part_of_target(message: Message) -> range:
    return _single_part(message.target)


def _part_of_channel(message: Message) -> range:
    return _single_part(message.channel)


def _levels(members: int) -> list[int]:
    return [1 << level for level in range((members - 1).bit_length())]


# The ring: parts go around the list of members, from each member to the next.


def _ring_rounds(members: int, first: int, operation: Operation) -> Rounds:
    """Return a ring's rounds, from the part of the sender + ``first``."""

    def parts(message: Message) -> range:
        return _single_part((message.source + first - message.round) % members)

    return Rounds(pattern=shift(1), count=members - 1, parts=parts, operation=operation)


def _ring(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    """Return the ring's reduce rounds, its gather rounds, or both."""
    if collective is _REDUCE_SCATTER:
        return (_ring_rounds(members, -1, Operation.REDUCE),)
    if collective is _ALL_GATHER:
        return (_ring_rounds(members, 0, Operation.COPY),)
    return (_ring_rounds(members, 0, Operation.REDUCE), _ring_rounds(members, 1, Operation.COPY))


def _ring_all_to_all(_: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    """Return the ring that forwards the d-th next member's part d times."""

    def parts(message: Message) -> range:
        distance = (1 + isqrt(1 + 8 * message.round)) // 2
        hop = message.round - distance * (distance - 1) // 2
        origin = (message.source - hop) % members
        return _single_part(origin * members + (origin + distance) % members)

    return (Rounds(pattern=shift(1), count=members * (members - 1) // 2, parts=parts),)


def _chain(
    collective: CollectiveKind, members: int, pieces: int | None = None
) -> tuple[Rounds, ...]:
    """Return a pipeline whose piece k leaves in round k."""
    count = members if pieces is None else pieces

    def parts(message: Message) -> range:
        piece = message.round - message.source
        return _single_part(piece) if 0 <= piece < count else range(0)

    rounds = Rounds(
        pattern=Pattern(Form.PATH),
        count=count + members - 2,
        parts=parts,
        operation=Operation.REDUCE if collective is _REDUCE else Operation.COPY,
        depth=members - 1,
    )
    return (rounds,)


def chain(collective: CollectiveKind, members: int, pieces: int) -> Schedule:
    """Return the ring's broadcast or reduction in pieces."""
    rounds = _chain(collective, members, pieces)
    return cut_evenly("ring", collective, members, rounds, parts=pieces)


# The bidirectional ring: half of every part goes around in each direction.


def _bidirectional_ring(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    """Return two opposite rings, with halves 2 k and 2 k + 1 of part k."""

    def both(rounds: Rounds) -> Rounds:
        def parts(message: Message) -> range:
            # In the other direction, members are numbered backwards.
            direction = -1 if message.channel else 1
            source = direction * message.source % members
            (part,) = rounds.parts(message._replace(source=source))
            return _single_part(2 * (direction * part % members) + message.channel)

        return replace(rounds, pattern=Pattern(Form.NEIGHBOURS), parts=parts)

    return tuple(map(both, _ring(collective, members)))


# The binomial tree: in each round, every member that has the data sends it to one without it.


def _binomial_tree(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    """Return rounds in which 1, 2, 4, .. members send, reversed for reductions."""
    is_reduction = collective is _REDUCE
    form = Form.COLLECT if is_reduction else Form.SPREAD
    operation = Operation.REDUCE if is_reduction else Operation.COPY
    rounds = [
        Rounds(pattern=Pattern(form, reach), parts=_part_of_channel, operation=operation)
        for reach in _levels(members)
    ]
    return tuple(rounds[:: -1 if is_reduction else 1])


# Direct: every member sends to every other at once.


def _direct(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    pattern = shift(1, members - 1)
    scattered = Rounds(
        pattern=pattern, parts=_part_of_target, operation=Operation.REDUCE, is_staged=True
    )
    gathered = Rounds(pattern=pattern, parts=_part_of_source)
    if collective is _ALL_REDUCE:
        return scattered, gathered
    return (scattered if collective is _REDUCE_SCATTER else gathered,)


def _direct_all_to_all(_: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    def parts(message: Message) -> range:
        return _single_part(message.source * members + message.target)

    return (Rounds(pattern=shift(1, members - 1), parts=parts),)


def _root_round(collective: CollectiveKind, _: int) -> tuple[Rounds, ...]:
    """Return the round of messages to or from the root."""
    if collective is _GATHER:
        return (Rounds(pattern=Pattern(Form.TO_ROOT), parts=_part_of_source),)
    return (Rounds(pattern=Pattern(Form.FROM_ROOT), parts=_part_of_target),)


# The dissemination barrier: in round k, each member notifies the one 2**k positions further.
# Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).


def _dissemination(_: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    return tuple([
        Rounds(pattern=shift(distance), parts=lambda _: range(0), size_parts=0)
        for distance in _levels(members)
    ])  # fmt: skip


# The double binary tree: each of two trees adds up half of the data and hands the sum down. A leaf
# of one tree is an inner member of the other, so all members send about equal amounts; see
# `hespas.collectives.patterns.tree_parent` for the trees and their source.


def _tree_rounds(members: int, climb: Form, descend: Form) -> tuple[Rounds, ...]:
    levels = range(1, int(tree_depths(members).max()) + 1)
    up = [
        Rounds(pattern=Pattern(climb, level), parts=_part_of_channel, operation=Operation.REDUCE)
        for level in reversed(levels)
    ]
    down = [Rounds(pattern=Pattern(descend, level), parts=_part_of_channel) for level in levels]
    return (*up, *down)


def binary_tree_all_reduce(members: int) -> Schedule:
    """Return an all-reduce up and down a tree's levels."""
    rounds = _tree_rounds(members, Form.CLIMB, Form.DESCEND)
    return cut_evenly("binary-tree", _ALL_REDUCE, members, rounds, parts=1)


def _double_binary_tree(_: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    return _tree_rounds(members, Form.CLIMB_BOTH, Form.DESCEND_BOTH)


# Recursive halving and doubling, among a power of two. In halving, the members at a distance
# exchange halves of the parts that they still have to add up; doubling reverses it. ASTRA-sim's
# halving, which the network models follow, begins with the nearest member, with which it exchanges
# every second part. In programs a message has to be contiguous memory: they begin with the farthest
# member.
# Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
# MPICH" (2005).


def _exchange(members: int, distance: int, bits: int, operation: Operation) -> Rounds:
    """Return the exchange of parts matching the owner in the lowest or highest ``bits``."""
    free = members - 1 & ~bits

    def parts(message: Message) -> range:
        owner = message.target if operation is Operation.REDUCE else message.source
        first = owner & bits
        return range(first, (first | free) + 1, 1 if free & 1 else bits + 1)

    return Rounds(
        pattern=Pattern(Form.EXCHANGE, distance),
        parts=parts,
        size_parts=members >> bits.bit_count(),
        operation=operation,
    )


def _halve_and_double(
    collective: CollectiveKind, members: int, distances: Sequence[int]
) -> tuple[Rounds, ...]:
    """Return halving rounds, doubling rounds, or both.

    ``distances`` are in the order of halving. After some rounds of halving, a member keeps the
    parts that match its own number in the bits of the distances so far. In doubling, members send
    these parts out again.
    """
    shared_bits = [
        (distance, sum(distances[: index + 1])) for index, distance in enumerate(distances)
    ]
    rounds: list[Rounds] = []
    if collective is not _ALL_GATHER:
        rounds += [_exchange(members, *exchange, Operation.REDUCE) for exchange in shared_bits]
    if collective is not _REDUCE_SCATTER:
        rounds += [
            _exchange(members, *exchange, Operation.COPY) for exchange in reversed(shared_bits)
        ]
    return tuple(rounds)


def _nearest_first(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    return _halve_and_double(collective, members, _levels(members))


def _farthest_first(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    return _halve_and_double(collective, members, _levels(members)[::-1])


# In the switch: members send their data once, and get the result once. The pattern represents the
# load of links: a message to another member crosses the link up to the switch and the link down
# from it. Source: NVIDIA's SHARP and NVLink SHARP.


def _in_switch(collective: CollectiveKind, members: int) -> tuple[Rounds, ...]:
    # The link down to a member carries the data of all others.
    size_parts = members - 1 if collective is _ALL_GATHER else members
    rounds = Rounds(
        pattern=shift(1),
        parts=lambda _: range(members),
        size_parts=size_parts,
        operation=Operation.IN_SWITCH,
    )
    return (rounds,)


ALGORITHMS: Mapping[str, CollectiveAlgorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        CollectiveAlgorithm(
            name="bidirectional-ring",
            rounds=dict.fromkeys(_DIVISIBLE, _bidirectional_ring),
            channels=2,
        ),
        CollectiveAlgorithm(
            name="binomial-tree",
            rounds=dict.fromkeys((_BROADCAST, _REDUCE), _binomial_tree),
            parts=1,
        ),
        CollectiveAlgorithm(
            name="direct",
            rounds={
                **dict.fromkeys(_DIVISIBLE, _direct),
                _ALL_TO_ALL: _direct_all_to_all,
                **dict.fromkeys((_GATHER, _SCATTER), _root_round),
            },
            usual_for=(_ALL_TO_ALL, _GATHER, _SCATTER),
        ),
        CollectiveAlgorithm(
            name="dissemination", rounds={CollectiveKind.BARRIER: _dissemination}, parts=0
        ),
        CollectiveAlgorithm(
            name="double-binary-tree",
            rounds={_ALL_REDUCE: _double_binary_tree},
            parts=2,
            channels=2,
        ),
        CollectiveAlgorithm(
            name="halving-doubling",
            rounds=dict.fromkeys(_DIVISIBLE, _nearest_first),
            contiguous_rounds=_farthest_first,
            needs_power_of_two=True,
        ),
        CollectiveAlgorithm(
            name="in-switch",
            rounds=dict.fromkeys((*_DIVISIBLE, _BROADCAST, _REDUCE), _in_switch),
        ),
        CollectiveAlgorithm(
            name="ring",
            rounds={
                **dict.fromkeys(_DIVISIBLE, _ring),
                _ALL_TO_ALL: _ring_all_to_all,
                **dict.fromkeys((_BROADCAST, _REDUCE), _chain),
            },
            usual_for=(*_DIVISIBLE, _BROADCAST, _REDUCE),
        ),
    )
}
"""The algorithms by name, such as ``double-binary-tree``."""


def algorithms_for(collective: CollectiveKind, members: int) -> tuple[CollectiveAlgorithm, ...]:
    """Return the algorithms that can run a collective among ``members``.

    The usual ones for the collective come first.

    >>> [algorithm.name for algorithm in algorithms_for(CollectiveKind.ALL_TO_ALL, 6)]
    ['direct', 'ring']
    """
    able = [item for item in ALGORITHMS.values() if item.supports(collective, members)]
    return tuple(sorted(able, key=lambda item: collective not in item.usual_for))
