"""Run a program on symbols: what every chunk holds in the end, and in which order.

A chunk's value is the set of ranks whose contributions are in it. Messages are buffered: a send
doesn't wait for its receive, as in MSCCL, whose connections have slots for several. What blocks
here therefore blocks everywhere. Each threadblock has a vector clock, which counts, for
every threadblock, the steps that have surely ended: accesses to one chunk that nothing orders are
detected by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hespas.collectives.program import (
    Buffer,
    Place,
    Program,
    Step,
    StepId,
    StepKind,
    Threadblock,
    place_text,
    step_text,
)
from hespas.errors import AlgorithmError


class Value(NamedTuple):
    """The sum over some ranks of one chunk of their inputs.

    ``chunk`` is its place in the input, ``ranks`` a bit for each rank. ``fault`` says what is
    wrong with it, and at which step that came about.
    """

    chunk: int
    ranks: int
    fault: str = ""


def added(one: Value, other: Value, where: str) -> Value:
    """Return the sum of two values, with the fault of adding the same or unlike things.

    >>> added(Value(0, 0b01), Value(0, 0b10), "here")
    Value(chunk=0, ranks=3, fault='')
    >>> added(Value(0, 0b11), Value(0, 0b10), "here").fault
    'here: adds the contribution of rank 1 a second time'
    """
    if one.fault or other.fault:
        return one if one.fault else other
    if one.chunk != other.chunk:
        return Value(0, 0, f"{where}: adds chunk {other.chunk} to chunk {one.chunk}")
    twice = one.ranks & other.ranks
    if twice:
        ranks = ranks_text(twice)
        return Value(0, 0, f"{where}: adds the contribution of {ranks} a second time")
    return Value(one.chunk, one.ranks | other.ranks)


def ranks_text(ranks: int) -> str:
    """Return how errors name a set of ranks.

    >>> ranks_text(0b1011)
    'ranks 0, 1, 3'
    """
    numbers = [str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1]
    shown = ", ".join(numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


Clock = NDArray[np.int32]


class _Access(NamedTuple):
    """A threadblock's number, and its step."""

    block: int
    step: int


@dataclass(slots=True)
class _Chunk:
    """A chunk of memory: its value, the step that wrote it, and those that have read it since."""

    value: Value | None = None
    written: _Access | None = None
    read: list[_Access] = field(default_factory=list[_Access])


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message of ``count`` chunks from one step to another."""

    source: int
    sender: StepId
    target: int
    receiver: StepId
    count: int


class _Message(NamedTuple):
    values: tuple[Value, ...]
    sender: StepId
    clock: Clock


@dataclass(slots=True)
class Block:
    """A threadblock that runs: its rank, its number among all, and the next step."""

    rank: int
    number: int
    threadblock: Threadblock
    position: int = 0

    @property
    def step(self) -> Step:
        """The step that comes next."""
        return self.threadblock.steps[self.position]

    @property
    def step_id(self) -> StepId:
        """The next step's id."""
        return StepId(self.threadblock.id, self.position)

    @property
    def is_done(self) -> bool:
        """Whether all steps have ended."""
        return self.position == len(self.threadblock.steps)

    def connection(self, *, is_incoming: bool) -> tuple[int, int | None, int | None]:
        """Return the channel, the source and the target of the block's messages."""
        if is_incoming:
            return (self.threadblock.channel, self.threadblock.receive_peer, self.rank)
        return (self.threadblock.channel, self.rank, self.threadblock.send_peer)

    def text(self) -> str:
        """Return how errors name the next step."""
        return step_text(self.rank, self.step_id)


class Execution:
    """One run: the ``transfers``, the values in the end, and the blocks that are stuck.

    Raises `AlgorithmError` for two steps that access one chunk in no order, and messages whose
    ends differ in size.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        blocks = [
            (rank, threadblock)
            for rank, one in enumerate(program.ranks)
            for threadblock in one.threadblocks
        ]
        self.blocks = [Block(rank, number, block) for number, (rank, block) in enumerate(blocks)]
        self.transfers: list[Transfer] = []
        self.messages: dict[tuple[int, int | None, int | None], deque[_Message]] = {}
        self._chunks: dict[tuple[int, Place], _Chunk] = {}
        self._clocks = np.zeros((len(blocks), len(blocks)), dtype=np.int32)
        self._ended: dict[tuple[int, StepId], Clock] = {}
        self._awaited = [rank.awaited() for rank in program.ranks]
        for rank in range(len(program.ranks)):
            for offset in range(program.input_chunks):
                chunk = self._chunk(rank, Place(Buffer.INPUT, offset))
                chunk.value = Value(offset, 1 << rank)
        self._run()

    def _run(self) -> None:
        has_moved = True
        while has_moved:
            has_moved = False
            for block in self.blocks:
                while not block.is_done and self._is_ready(block):
                    self._do(block)
                    has_moved = True

    def awaited_step(self, block: Block) -> StepId | None:
        """Return the step that the next one waits for."""
        after = block.step.after
        return None if (block.rank, after) in self._ended else after

    def _is_ready(self, block: Block) -> bool:
        if block.step.kind.receives and not self.messages.get(block.connection(is_incoming=True)):
            return False
        return self.awaited_step(block) is None

    def _chunk(self, rank: int, place: Place) -> _Chunk:
        key = (rank, _settled_place(self.program, rank, place))
        return self._chunks.setdefault(key, _Chunk())

    def value(self, rank: int, place: Place) -> Value | None:
        """Return what a chunk holds."""
        return self._chunk(rank, place).value

    def last_writer(self, rank: int, place: Place) -> str:
        """Return how errors name the step that wrote a chunk last; "" if none did."""
        written = self._chunk(rank, place).written
        return "" if written is None else self._text(written)

    def _text(self, access: _Access) -> str:
        block = self.blocks[access.block]
        return step_text(block.rank, StepId(block.threadblock.id, access.step))

    def _do(self, block: Block) -> None:
        step = block.step
        if step.after is not None:
            self._learn(block, self._ended[block.rank, step.after])
        received = self._receive(block) if step.kind.receives else ()
        read = self._read(block, step.source) if step.kind.reads else ()
        if step.kind is StepKind.REDUCE:
            received = self._read(block, step.target)
        values = read or received
        if read and received:
            pairs = zip(read, received, strict=True)
            values = tuple([added(mine, other, block.text()) for mine, other in pairs])
        if step.kind.writes:
            self._write(block, step.target, values)
        self._clocks[block.number, block.number] = block.position + 1
        clock = self._clocks[block.number].copy()
        if step.kind.sends:
            sent = self.messages.setdefault(block.connection(is_incoming=False), deque())
            sent.append(_Message(values, block.step_id, clock))
        if block.step_id in self._awaited[block.rank]:
            self._ended[block.rank, block.step_id] = clock
        block.position += 1

    def _learn(self, block: Block, clock: Clock) -> None:
        """Have a threadblock know what another knew."""
        np.maximum(self._clocks[block.number], clock, out=self._clocks[block.number])

    def _receive(self, block: Block) -> tuple[Value, ...]:
        message = self.messages[block.connection(is_incoming=True)].popleft()
        source = block.threadblock.receive_peer
        assert source is not None  # noqa: S101 - a step without a peer was refused
        count = len(message.values)
        if count != block.step.count:
            sent = f"{step_text(source, message.sender)} sends {count} chunks"
            raise AlgorithmError(
                f"receives {block.step.count} chunks of a message of which {sent}",
                location=f"{self.program.name}: {block.text()}",
            )
        self._learn(block, message.clock)
        self.transfers.append(Transfer(source, message.sender, block.rank, block.step_id, count))
        return message.values

    def _read(self, block: Block, first: Place) -> tuple[Value, ...]:
        values: list[Value] = []
        for index in range(block.step.count):
            place = Place(first.buffer, first.offset + index)
            chunk = self._chunk(block.rank, place)
            self._check_order(block, place, [(chunk.written, "writes")], "reads")
            chunk.read.append(_Access(block.number, block.position))
            settled = _settled_place(self.program, block.rank, place)
            nothing = f"{block.text()}: reads {place_text(settled)}, where nothing is yet"
            values.append(chunk.value or Value(0, 0, nothing))
        return tuple(values)

    def _write(self, block: Block, first: Place, values: tuple[Value, ...]) -> None:
        for index, value in enumerate(values):
            place = Place(first.buffer, first.offset + index)
            chunk = self._chunk(block.rank, place)
            reads = [(access, "reads") for access in chunk.read]
            self._check_order(block, place, chain([(chunk.written, "writes")], reads), "writes")
            chunk.value, chunk.read = value, []
            chunk.written = _Access(block.number, block.position)

    def _check_order(
        self, block: Block, place: Place, earlier: Iterable[tuple[_Access | None, str]], doing: str
    ) -> None:
        """Raise for an earlier access to a chunk that nothing orders before this one."""
        for access, did in earlier:
            own = (block.number, block.position)
            if (
                access is None
                or access == own
                or self._clocks[block.number, access.block] > access.step
            ):
                continue
            settled = _settled_place(self.program, block.rank, place)
            raise AlgorithmError(
                f"{doing} {place_text(settled)}, which {self._text(access)} {did}, and nothing "
                "says which comes first",
                location=f"{self.program.name}: {block.text()}",
                hint="let one wait for the other (depid, deps)",
            )


def _settled_place(program: Program, rank: int, place: Place) -> Place:
    """Return where a place really is: in place, one buffer is a part of the other.

    The larger buffer stands, and the output where both are equal.
    """
    inputs, outputs = program.input_chunks, program.output_chunks
    large = Buffer.INPUT if inputs > outputs else Buffer.OUTPUT
    if not program.is_in_place or place.buffer in (Buffer.SCRATCH, large):
        return place
    own_part = 0 if inputs == outputs else rank * min(inputs, outputs)
    return Place(large, place.offset + own_part)
