"""A collective program: what every threadblock of every rank does, step by step.

Source of the terms and of what steps do: MSCCL, whose runtime reads such programs from XML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hespas.collectives.schedule import Collective


class Buffer(Enum):
    """Where chunks are on a rank."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


class StepKind(Enum):
    """What a step does, as MSCCL abbreviates it.

    A step that receives takes the next message of its threadblock's receive peer; one that
    sends makes a message for the send peer. With m the message, ``source`` and ``target`` the
    step's places on its own rank:

    ===================  =====================================
    send                 m = source
    receive              target = m
    copy                 target = source
    reduce               target = target + source
    receive reduce copy  target = source + m
    receive copy send    target = m, m is sent on
    receive reduce send  source + m is sent on
    ... copy send        target = source + m, which is sent on
    nop                  nothing; it only waits
    ===================  =====================================
    """

    SEND = "s"
    RECEIVE = "r"
    COPY = "cpy"
    REDUCE = "re"
    RECEIVE_REDUCE_COPY = "rrc"
    RECEIVE_COPY_SEND = "rcs"
    RECEIVE_REDUCE_SEND = "rrs"
    RECEIVE_REDUCE_COPY_SEND = "rrcs"
    NOP = "nop"

    @property
    def sends(self) -> bool:
        """Whether the step makes a message."""
        return self in _SENDING

    @property
    def receives(self) -> bool:
        """Whether the step takes a message."""
        return self in _RECEIVING

    @property
    def reduces(self) -> bool:
        """Whether the step adds two values."""
        return self in _REDUCING

    @property
    def reads(self) -> bool:
        """Whether the step reads its source."""
        return self in _READING

    @property
    def writes(self) -> bool:
        """Whether the step writes its target."""
        return self in _WRITING


_K = StepKind
_FUSED_REDUCING = {_K.RECEIVE_REDUCE_COPY, _K.RECEIVE_REDUCE_SEND, _K.RECEIVE_REDUCE_COPY_SEND}
_SENDING = {
    _K.SEND, _K.RECEIVE_COPY_SEND, _K.RECEIVE_REDUCE_SEND, _K.RECEIVE_REDUCE_COPY_SEND,
}  # fmt: skip
_RECEIVING = {_K.RECEIVE, _K.RECEIVE_COPY_SEND, *_FUSED_REDUCING}
_REDUCING = {_K.REDUCE, *_FUSED_REDUCING}
_READING = {_K.SEND, _K.COPY, *_REDUCING}
_WRITING = {
    _K.RECEIVE, _K.COPY, _K.REDUCE, _K.RECEIVE_REDUCE_COPY, _K.RECEIVE_COPY_SEND,
    _K.RECEIVE_REDUCE_COPY_SEND,
}  # fmt: skip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A collective program for ``len(ranks)`` ranks.

    ``input_chunks`` and ``output_chunks`` are the sizes of each rank's buffers. ``is_in_place``
    says that the smaller of them is a part of the larger: an all-gather's input is the rank's
    part of its output, a reduce-scatter's output that of its input. ``root`` matters to
    broadcasts and reduces. ``protocol`` is a name that nothing here depends on.
    """

    name: str
    collective: Collective
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


def chunk_counts(collective: Collective, ranks: int, chunks: int) -> tuple[int, int]:
    """Return the (input, output) chunks of a rank, of which the larger buffer has ``chunks``.

    An all-gather's or gather's input, a reduce-scatter's or scatter's output are one rank's part.

    >>> chunk_counts(Collective.ALL_GATHER, 4, 8)
    (2, 8)
    """
    match collective:
        case Collective.ALL_GATHER | Collective.GATHER:
            return chunks // ranks, chunks
        case Collective.REDUCE_SCATTER | Collective.SCATTER:
            return chunks, chunks // ranks
        case _:
            return chunks, chunks


def step_text(rank: int, at: StepId) -> str:
    """Return how errors name a step."""
    return f"rank {rank}, threadblock {at.threadblock}, step {at.step}"
