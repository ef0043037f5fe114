"""A collective algorithm as rounds: who sends which parts to whom, to be added or stored.

This is the one description that everything else is made from: the closed forms and the events of
`hespas.simulate.astra`, the transfers of `hespas.simulate.flow`, MSCCL programs
(`hespas.collectives.lowering`), which are verified. It is symbolic: a ring among a
million members is two `Rounds`, and parts are computed only where they are asked for.

>>> from hespas.collectives.algorithms import ALGORITHMS
>>> from hespas.program.collectives import CollectiveKind
>>> ring = ALGORITHMS["ring"].schedule(CollectiveKind.ALL_REDUCE, 4)
>>> [(rounds.pattern.first, rounds.count, rounds.operation.name) for rounds in ring.rounds]
[(1, 3, 'REDUCE'), (1, 3, 'COPY')]
>>> [ring.message_bytes(rounds, 1000) for rounds in ring.rounds]
[250, 250]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from math import ceil
from typing import NamedTuple

from hespas.collectives.patterns import Form, Pattern, messages, shift
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind


class Operation(Enum):
    """What becomes of a message."""

    COPY = "stored"
    REDUCE = "added"
    IN_SWITCH = "added up and handed out by the switch"


class Message(NamedTuple):
    """A message of one round; ``round`` counts from 0 in its `Rounds`."""

    round: int
    source: int
    target: int
    channel: int


PartsOf = Callable[[Message], range]
"""Gives the parts that a message carries; none if it isn't sent after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """``count`` rounds of one pattern, in each of which all messages go at once.

    Every message carries ``size_parts`` parts: those that ``parts`` gives. ``depth`` above 1 marks
    a pipeline: a part passes so many members one after the other while others follow, and it may
    be cut into any number of pieces. With ``is_staged``, messages to be added land in memory of
    their own first, so that those of one round need not wait for each other.
    """

    pattern: Pattern
    parts: PartsOf
    count: int = 1
    size_parts: int = 1
    operation: Operation = Operation.COPY
    depth: int = 1
    is_staged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The rounds of one collective among ``members``, one after the other.

    The data is cut into ``parts`` equal parts, of which each member's input holds
    ``input_parts``. In an all-to-all, part ``o * members + d`` is what member o has for member d.
    The parts are divided among ``channels`` that work on their own, such as the two directions
    of a bidirectional ring.
    """

    name: str
    collective: CollectiveKind
    members: int
    parts: int
    input_parts: int
    rounds: tuple[Rounds, ...]
    channels: int = 1
    root: int = 0

    def message_bytes(self, rounds: Rounds, size_bytes: int) -> int:
        """Return the bytes of a message where a member's input is ``size_bytes``.

        Rounded down to whole bytes, but up where a part is divided among channels.
        """
        if not self.input_parts:
            return 0
        whole = size_bytes * rounds.size_parts * self.channels // self.input_parts
        return ceil(whole / self.channels)

    def messages(self) -> Iterator[tuple[Rounds, Message, range]]:
        """Yield every message with its rounds and its parts, in order."""
        for rounds in self.rounds:
            for number in range(rounds.count):
                for source, target, channel in messages(rounds.pattern, self.members):
                    message = Message(number, source, target, channel)
                    parts = rounds.parts(message)
                    if parts or not self.parts:
                        yield rounds, message, parts

    def by_round(self) -> Iterator[tuple[Rounds, list[tuple[Message, range]]]]:
        """Yield the messages of one round after the other, with their parts."""
        for _, group in groupby(self.messages(), key=lambda one: (id(one[0]), one[1].round)):
            sent = list(group)
            yield sent[0][0], [(message, parts) for _, message, parts in sent]

    def windowed(self, window: int | None) -> Schedule:
        """Return the schedule in which a member sends to at most ``window`` others at once.

        >>> from hespas.collectives.algorithms import ALGORITHMS
        >>> direct = ALGORITHMS["direct"].schedule(CollectiveKind.ALL_GATHER, 4).windowed(2)
        >>> [(one.pattern.first, one.pattern.last) for one in direct.rounds]
        [(1, 2), (3, 3)]
        """
        if window is None:
            return self
        cut = [
            replace(rounds, pattern=shift(first, min(first + window - 1, rounds.pattern.last)))
            if rounds.pattern.form is Form.SHIFT
            else rounds
            for rounds in self.rounds
            for first in _firsts(rounds.pattern, window)
        ]
        return replace(self, rounds=tuple(cut))


def _firsts(pattern: Pattern, window: int) -> range:
    is_shift = pattern.form is Form.SHIFT
    return range(pattern.first, pattern.last + 1, window) if is_shift else range(1)


_LARGER_THAN_INPUT = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)


def cut_evenly(
    name: str,
    collective: CollectiveKind,
    members: int,
    rounds: tuple[Rounds, ...],
    *,
    parts: int | None = None,
    channels: int = 1,
) -> Schedule:
    """Return a schedule whose larger buffer is cut into ``parts``, by default one a member.

    An all-gather's and a gather's input is one member's share of them; an all-to-all has as many
    for each member. The last member of a chain is the root of its reduction.
    """
    total = members * channels if parts is None else parts
    is_chain = any(one.pattern.form is Form.PATH for one in rounds)
    return Schedule(
        name=name,
        collective=collective,
        members=members,
        parts=total * members if collective is CollectiveKind.ALL_TO_ALL else total,
        input_parts=total // members if collective in _LARGER_THAN_INPUT else total,
        rounds=rounds,
        channels=channels,
        root=members - 1 if is_chain and collective is CollectiveKind.REDUCE else 0,
    )


RoundsOf = Callable[[CollectiveKind, int], tuple[Rounds, ...]]
"""Gives the rounds of a collective among a number of members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAlgorithm:
    """A collective algorithm: for each collective that it can run, its rounds among members.

    ``parts`` and ``channels`` are those of `cut_evenly`. ``usual_for`` are the collectives for
    which it goes before others that are as fast. Programs follow ``contiguous_rounds``, where
    ``rounds`` send parts that are not next to each other in memory.
    """

    name: str
    rounds: Mapping[CollectiveKind, RoundsOf]
    contiguous_rounds: RoundsOf | None = None
    parts: int | None = None
    channels: int = 1
    needs_power_of_two: bool = False
    usual_for: tuple[CollectiveKind, ...] = ()

    def supports(self, collective: CollectiveKind, members: int) -> bool:
        """Return whether it can run a collective among so many members."""
        is_power = members & members - 1 == 0
        return collective in self.rounds and members > 1 and (
            is_power or not self.needs_power_of_two
        )  # fmt: skip

    def schedule(
        self, collective: CollectiveKind, members: int, *, is_contiguous: bool = False
    ) -> Schedule:
        """Return the schedule of a collective; a program follows the contiguous one.

        Raises `AlgorithmError` for a collective that it can't run, for fewer than two members, and
        for a number of them that isn't a power of two where it must be.
        """
        if collective not in self.rounds:
            raise AlgorithmError(f"there is no {self.name} algorithm for {collective.value}")
        if members < 2:
            raise AlgorithmError(f"{self.name} among {members} ranks", hint="give 2 or more")
        if not self.supports(collective, members):
            message = f"{self.name} among {members} ranks, which is not a power of two"
            raise AlgorithmError(message)
        rounds_of = self.contiguous_rounds if is_contiguous else None
        rounds = (rounds_of or self.rounds[collective])(collective, members)
        return cut_evenly(
            self.name, collective, members, rounds, parts=self.parts, channels=self.channels
        )


HIERARCHICAL = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
"""The collectives that can run along one dimension of the network after the other.

Source: Cho et al., "BlueConnect" (2019), and ASTRA-sim's ``localBWAware``.
"""


class DimensionPhase(NamedTuple):
    """A collective along one dimension, of ``size_bytes`` in each member's input."""

    dimension: int
    collective: CollectiveKind
    size_bytes: int


def phases(
    collective: CollectiveKind, sizes: Mapping[int, int], size_bytes: int
) -> Iterator[DimensionPhase]:
    """Yield the phases of a collective, given the members along each dimension, innermost first.

    An all-reduce scatters along all dimensions but the last, reduces along that, and gathers back.
    An all-gather begins with the outermost dimension, the others with the innermost.

    >>> for phase in phases(CollectiveKind.ALL_REDUCE, {0: 8, 1: 4}, 1000):
    ...     print(phase.dimension, phase.collective.name, phase.size_bytes)
    0 REDUCE_SCATTER 1000
    1 ALL_REDUCE 125
    0 ALL_GATHER 125
    """
    for dimension, phase in _order(collective, list(sizes)):
        yield DimensionPhase(dimension, phase, size_bytes)
        if phase is CollectiveKind.ALL_GATHER:
            size_bytes *= sizes[dimension]
        elif phase is CollectiveKind.REDUCE_SCATTER:
            size_bytes //= sizes[dimension]


def _order(
    collective: CollectiveKind, dimensions: list[int]
) -> Iterator[tuple[int, CollectiveKind]]:
    if collective is not CollectiveKind.ALL_REDUCE:
        is_gather = collective is CollectiveKind.ALL_GATHER
        yield from ((one, collective) for one in dimensions[:: -1 if is_gather else 1])
        return
    *inner, last = dimensions
    yield from ((one, CollectiveKind.REDUCE_SCATTER) for one in inner)
    yield last, CollectiveKind.ALL_REDUCE
    yield from ((one, CollectiveKind.ALL_GATHER) for one in reversed(inner))
