"""A collective program: what every threadblock of every rank does, step by step.

Source of the terms and of what steps do: MSCCL, whose runtime reads such programs from XML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self

from hespas.program.collectives import CollectiveKind


class Buffer(Enum):
    """Where chunks are on a rank."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


class StepKind(Enum):
    """What a step does: MSCCL's abbreviation, and which of five things it does.

    A step that receives takes the next message of its threadblock's receive peer; one that
    sends makes a message for the send peer. One that reduces adds what it receives, or its target,
    to its source.
    """

    SEND = "s", "reads sends"
    RECEIVE = "r", "receives writes"
    COPY = "cpy", "reads writes"
    REDUCE = "re", "reads reduces writes"
    RECEIVE_REDUCE_COPY = "rrc", "receives reads reduces writes"
    RECEIVE_COPY_SEND = "rcs", "receives writes sends"
    RECEIVE_REDUCE_SEND = "rrs", "receives reads reduces sends"
    RECEIVE_REDUCE_COPY_SEND = "rrcs", "receives reads reduces writes sends"
    NOP = "nop", ""

    _value_: str
    sends: bool
    receives: bool
    reads: bool
    reduces: bool
    writes: bool

    def __new__(cls, abbreviation: str, effects: str) -> Self:
        """Return the kind whose value is the abbreviation."""
        kind = object.__new__(cls)
        kind._value_ = abbreviation
        for effect in ("sends", "receives", "reads", "reduces", "writes"):
            setattr(kind, effect, effect in effects.split())
        return kind


class Place(NamedTuple):
    """A chunk's place on a rank."""

    buffer: Buffer
    offset: int


class StepId(NamedTuple):
    """A step of a rank: its threadblock's id, and its index there."""

    threadblock: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step on ``count`` chunks, from ``source`` and to ``target`` on.

    It begins when the step before it in its threadblock has ended, and ``after`` too.
    """

    kind: StepKind
    source: Place
    target: Place
    count: int
    after: StepId | None = None


def wait_step(after: StepId) -> Step:
    """Return a step that only waits for another."""
    nowhere = Place(Buffer.OUTPUT, 0)
    return Step(kind=StepKind.NOP, source=nowhere, target=nowhere, count=0, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threadblock:
    """Steps that follow each other, with at most one peer to send to and one to receive from.

    A connection of two ranks has channels; messages of one channel arrive in order.
    """

    id: int
    send_peer: int | None
    receive_peer: int | None
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank does. ``scratch_chunks`` is the size of its scratch buffer."""

    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]

    def awaited(self) -> set[StepId]:
        """Return the steps that others wait for."""
        return {step.after for block in self.threadblocks for step in block.steps if step.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A collective program for ``len(ranks)`` ranks.

    ``input_chunks`` and ``output_chunks`` are the sizes of each rank's buffers. ``is_in_place``
    says that the smaller of them is a part of the larger: an all-gather's input is the rank's
    part of its output, a reduce-scatter's output that of its input. ``root`` matters to
    broadcasts and reduces. ``protocol`` is a name that nothing here depends on.
    """

    name: str
    collective: CollectiveKind
    input_chunks: int
    output_chunks: int
    is_in_place: bool
    ranks: tuple[Rank, ...]
    root: int = 0
    protocol: str = "Simple"

    def chunk_bytes(self, size_bytes: int) -> int:
        """Return the bytes of a chunk where a rank's input is ``size_bytes``, rounded up."""
        return -(-size_bytes // self.input_chunks)

    def steps(self) -> Iterator[tuple[int, Threadblock, int, Step]]:
        """Yield every (rank, threadblock, index, step)."""
        for number, rank in enumerate(self.ranks):
            for threadblock in rank.threadblocks:
                for index, step in enumerate(threadblock.steps):
                    yield number, threadblock, index, step


def chunk_counts(collective: CollectiveKind, ranks: int, chunks: int) -> tuple[int, int]:
    """Return the (input, output) chunks of a rank, of which the larger buffer has ``chunks``.

    An all-gather's or gather's input, a reduce-scatter's or scatter's output are one rank's part.

    >>> chunk_counts(CollectiveKind.ALL_GATHER, 4, 8)
    (2, 8)
    """
    match collective:
        case CollectiveKind.ALL_GATHER | CollectiveKind.GATHER:
            return chunks // ranks, chunks
        case CollectiveKind.REDUCE_SCATTER | CollectiveKind.SCATTER:
            return chunks, chunks // ranks
        case _:
            return chunks, chunks


def step_text(rank: int, step: StepId) -> str:
    """Return how errors name a step."""
    return f"rank {rank}, threadblock {step.threadblock}, step {step.step}"


def place_text(place: Place) -> str:
    """Return how errors name a chunk."""
    return f"{place.buffer.name.lower()} chunk {place.offset}"
