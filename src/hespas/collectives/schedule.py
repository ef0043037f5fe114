"""Describe a collective algorithm as rounds of messages.

A message has a source, a target and parts, which the target stores or adds. This is the only
description of an algorithm: the closed forms and the events of `hespas.simulate.astra`, the
transfers of `hespas.simulate.flow` and MSCCL programs (`hespas.collectives.program`), which are
verified, derive from it. It is symbolic: a ring among a million members is two `Rounds`, and parts
are computed only on demand.

>>> from hespas.collectives.algorithms import ALGORITHMS
>>> from hespas.program.collectives import CollectiveKind
>>> ring = ALGORITHMS["ring"].schedule(CollectiveKind.ALL_REDUCE, 4)
>>> [(rounds.pattern.first, rounds.count, rounds.operation.name) for rounds in ring.rounds]
[(1, 3, 'REDUCE'), (1, 3, 'COPY')]
>>> [ring.message_bytes(rounds, 1000) for rounds in ring.rounds]
[250, 250]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Form, Pattern, messages, shift
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]


class Operation(Enum):
    """The effect of a message at its target."""

    COPY = "stored"
    REDUCE = "added"
    IN_SWITCH = "added up and handed out by the switch"


class Message(NamedTuple):
    """A message; ``round`` counts from 0 in its `Rounds`."""

    round: int
    source: int
    target: int
    channel: int


PartsOf = Callable[[Message], range]
"""Gives the parts of a message; an empty range means that it isn't sent."""


@frozen
class Rounds:
    """``count`` rounds of one pattern, each of concurrent messages.

    Every message carries ``size_parts`` parts, which ``parts`` lists. ``depth`` above 1 marks a
    pipeline: a part passes ``depth`` members one after the other while others follow, and it may be
    cut into any number of pieces. With ``is_staged``, messages to be added first arrive in separate
    memory, so that messages of one round need not wait for each other.
    """

    pattern: Pattern
    parts: PartsOf
    count: int = 1
    size_parts: int = 1
    operation: Operation = Operation.COPY
    depth: int = 1
    is_staged: bool = False


@frozen
class Schedule:
    """The rounds of one collective among ``members``, in order.

    The data is cut into ``parts`` equal parts, of which each member's input holds ``input_parts``.
    In an all-to-all, part ``o * members + d`` goes from member o to member d. The parts are divided
    among independent ``channels``, such as the two directions of a bidirectional ring.
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
        """Return a message's bytes for ``size_bytes`` of input per member.

        The result is rounded down to whole bytes, but up if a part is divided among channels.
        """
        if not self.input_parts:
            return 0
        all_channels = size_bytes * rounds.size_parts * self.channels // self.input_parts
        return ceil(all_channels / self.channels)

    def messages(self) -> Iterator[tuple[Rounds, Message, range]]:
        """Yield all messages in order, with rounds and parts."""
        for rounds in self.rounds:
            for number in range(rounds.count):
                for source, target, channel in messages(rounds.pattern, self.members):
                    message = Message(number, source, target, channel)
                    parts = rounds.parts(message)
                    if parts or not self.parts:
                        yield rounds, message, parts

    def by_round(self) -> Iterator[tuple[Rounds, list[tuple[Message, range]]]]:
        """Yield the messages of each round, with their parts."""
        for _, group in groupby(self.messages(), key=lambda item: (id(item[0]), item[1].round)):
            sent = list(group)
            yield sent[0][0], [(message, parts) for _, message, parts in sent]

    def windowed(self, window: int | None) -> Schedule:
        """Limit each member to ``window`` concurrent targets.

        >>> from hespas.collectives.algorithms import ALGORITHMS
        >>> direct = ALGORITHMS["direct"].schedule(CollectiveKind.ALL_GATHER, 4).windowed(2)
        >>> [(rounds.pattern.first, rounds.pattern.last) for rounds in direct.rounds]
        [(1, 2), (3, 3)]
        """
        if window is None:
            return self
        windowed: list[Rounds] = []
        for rounds in self.rounds:
            pattern = rounds.pattern
            if pattern.form is not Form.SHIFT:
                windowed.append(rounds)
                continue
            for first in range(pattern.first, pattern.last + 1, window):
                last = min(first + window - 1, pattern.last)
                windowed.append(replace(rounds, pattern=shift(first, last)))
        return replace(self, rounds=tuple(windowed))


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
    """Return a schedule with the larger buffer cut into ``parts``.

    The default is one part per member and channel. An all-gather's and a gather's input is one
    member's share of them; an all-to-all has ``parts`` for each member. The last member of a chain
    is the root of its reduction.
    """
    total = members * channels if parts is None else parts
    is_chain = any(item.pattern.form is Form.PATH for item in rounds)
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
"""Returns the rounds of a collective among a number of members."""


@frozen
class CollectiveAlgorithm:
    """A collective algorithm with its rounds for each collective.

    ``parts`` and ``channels`` are arguments of `cut_evenly`. ``usual_for`` are the collectives for
    which it is preferred to equally fast algorithms. Programs follow ``contiguous_rounds`` if
    ``rounds`` send parts that are not contiguous in memory.
    """

    name: str
    rounds: Mapping[CollectiveKind, RoundsOf]
    contiguous_rounds: RoundsOf | None = None
    parts: int | None = None
    channels: int = 1
    needs_power_of_two: bool = False
    usual_for: tuple[CollectiveKind, ...] = ()

    def supports(self, collective: CollectiveKind, members: int) -> bool:
        """Return whether it can run a collective among ``members``."""
        is_allowed = members & members - 1 == 0 or not self.needs_power_of_two
        return collective in self.rounds and members > 1 and is_allowed

    def schedule(
        self, collective: CollectiveKind, members: int, *, is_contiguous: bool = False
    ) -> Schedule:
        """Return the schedule of a collective.

        Programs need contiguous parts. Raises `AlgorithmError` for an unsupported collective, for
        fewer than two members, and for a number of members that must be a power of two but isn't.
        """
        if collective not in self.rounds:
            raise AlgorithmError(f"there is no {self.name} algorithm for {collective.value}")
        if members < 2:
            raise AlgorithmError(f"{self.name} among {members} ranks", hint="give 2 or more")
        if not self.supports(collective, members):
            message = f"{self.name} among {members} ranks, which is not a power of two"
            raise AlgorithmError(message, hint="choose another algorithm")
        rounds_of = self.contiguous_rounds if is_contiguous else None
        rounds = (rounds_of or self.rounds[collective])(collective, members)
        return cut_evenly(
            self.name, collective, members, rounds, parts=self.parts, channels=self.channels
        )


WITH_ROOT = (
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
)
HIERARCHICAL = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
"""The collectives that can run along the network dimensions in turn.

Source: Cho et al., "BlueConnect" (2019), and ASTRA-sim's ``localBWAware``.
"""


class DimensionPhase(NamedTuple):
    """A collective along one dimension; ``size_bytes`` is each member's input."""

    dimension: int
    collective: CollectiveKind
    size_bytes: int


def phases(
    collective: CollectiveKind, sizes: Mapping[int, int], size_bytes: int
) -> Iterator[DimensionPhase]:
    """Yield the phases of a collective along network dimensions.

    ``sizes`` are the members along each dimension, innermost first. An all-reduce scatters along
    all dimensions except the last, reduces along that one, and gathers back. An all-gather begins
    with the outermost dimension, the others with the innermost.

    >>> for phase in phases(CollectiveKind.ALL_REDUCE, {0: 8, 1: 4}, 1000):
    ...     print(phase.dimension, phase.collective.name, phase.size_bytes)
    0 REDUCE_SCATTER 1000
    1 ALL_REDUCE 125
    0 ALL_GATHER 125
    """
    for dimension, phase in phase_order(collective, list(sizes)):
        yield DimensionPhase(dimension, phase, size_bytes)
        if phase is CollectiveKind.ALL_GATHER:
            size_bytes *= sizes[dimension]
        elif phase is CollectiveKind.REDUCE_SCATTER:
            size_bytes //= sizes[dimension]


def phase_order(
    collective: CollectiveKind, dimensions: Sequence[int]
) -> Iterator[tuple[int, CollectiveKind]]:
    """Yield a collective's phases; ``dimensions`` are innermost first."""
    if collective is not CollectiveKind.ALL_REDUCE:
        is_gather = collective is CollectiveKind.ALL_GATHER
        yield from ((dimension, collective) for dimension in dimensions[:: -1 if is_gather else 1])
        return
    *inner, last = dimensions
    yield from ((dimension, CollectiveKind.REDUCE_SCATTER) for dimension in inner)
    yield last, CollectiveKind.ALL_REDUCE
    yield from ((dimension, CollectiveKind.ALL_GATHER) for dimension in reversed(inner))
