"""Run a program on symbols: what every chunk holds in the end, and in which order.

A chunk's value is the set of ranks whose contributions are in it. Messages are buffered: a send
doesn't wait for its receive, as in MSCCL, whose connections have slots for several. What blocks
here therefore blocks everywhere. Each threadblock has a vector clock, which counts, for
every threadblock, the steps that have surely ended: accesses to one chunk that nothing orders are
detected by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
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


def initial_values(program: Program) -> Iterator[tuple[int, Place, Value]]:
    """Yield what is there at the start: every rank's input."""
    for rank in range(len(program.ranks)):
        for chunk in range(program.input_chunks):
            yield rank, Place(Buffer.INPUT, chunk), Value(chunk, 1 << rank)


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


class Access(NamedTuple):
    """A threadblock's number, and its step."""

    block: int
    step: int


class Race(NamedTuple):
    """An earlier access that nothing orders before this one, and whether it wrote."""

    other: Access
    wrote: bool


@dataclass(slots=True)
class _Slot:
    written: Access | None = None
    read: list[Access] = field(default_factory=list[Access])


class Order:
    """The clocks of ``count`` threadblocks, and the last accesses to every chunk."""

    def __init__(self, count: int) -> None:
        self._clocks = np.zeros((count, count), dtype=np.int32)
        self._slots: dict[object, _Slot] = {}

    def snapshot(self, block: int) -> Clock:
        """Return what a threadblock knows now."""
        return self._clocks[block].copy()

    def learn(self, block: int, clock: Clock) -> None:
        """Have a threadblock know what another knew."""
        np.maximum(self._clocks[block], clock, out=self._clocks[block])

    def end_step(self, block: int, step: int) -> None:
        """Note that a threadblock has ended a step."""
        self._clocks[block, block] = step + 1

    def read(self, access: Access, slot: object) -> Race | None:
        """Note that a step reads a chunk; return the write that races with it."""
        accesses = self._slots.setdefault(slot, _Slot())
        accesses.read.append(access)
        return self._race(access, accesses.written, wrote=True)

    def write(self, access: Access, slot: object) -> Race | None:
        """Note that a step writes a chunk; return an access that races with it."""
        accesses = self._slots.setdefault(slot, _Slot())
        race = self._race(access, accesses.written, wrote=True)
        for other in accesses.read:
            race = race or self._race(access, other, wrote=False)
        accesses.written, accesses.read = access, []
        return race

    def last_write(self, slot: object) -> Access | None:
        """Return what wrote a chunk last."""
        accesses = self._slots.get(slot)
        return None if accesses is None else accesses.written

    def _race(self, access: Access, other: Access | None, *, wrote: bool) -> Race | None:
        if other is None or other == access:
            return None
        if self._clocks[access.block, other.block] > other.step:
            return None
        return Race(other, wrote)


_BUFFER_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch"}


class Slot(NamedTuple):
    """One chunk of one rank's memory."""

    rank: int
    place: Place


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message of ``count`` chunks from one step to another."""

    source: int
    sender: StepId
    target: int
    receiver: StepId
    count: int


@dataclass(frozen=True, slots=True)
class _Message:
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
    def at(self) -> StepId:
        """The next step's id."""
        return StepId(self.threadblock.id, self.position)

    @property
    def is_done(self) -> bool:
        """Whether all steps have ended."""
        return self.position == len(self.threadblock.steps)

    def text(self) -> str:
        """Return how errors name the next step."""
        return step_text(self.rank, self.at)


class Execution:
    """One run; ``values`` and ``transfers`` are what it comes to.

    Raises `AlgorithmError` for two steps that access one chunk in no order, and messages whose
    ends differ in size.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.blocks = [
            Block(rank, 0, threadblock)
            for rank, one in enumerate(program.ranks)
            for threadblock in one.threadblocks
        ]
        for number, block in enumerate(self.blocks):
            block.number = number
        self.block_of = {(block.rank, block.threadblock.id): block for block in self.blocks}
        self.transfers: list[Transfer] = []
        self.values: dict[Slot, Value] = {
            self.slot(rank, place): value for rank, place, value in initial_values(program)
        }
        self.messages: dict[tuple[int, int, int], deque[_Message]] = {}
        self._order = Order(len(self.blocks))
        self._ended: dict[tuple[int, StepId], Clock] = {}
        self._awaited = {
            (rank, step.after) for rank, _, _, step in program.steps() if step.after is not None
        }
        self._run()

    def _run(self) -> None:
        has_moved = True
        while has_moved:
            has_moved = False
            for block in self.blocks:
                while not block.is_done and self.is_ready(block):
                    self._do(block)
                    has_moved = True

    def is_ready(self, block: Block) -> bool:
        """Return whether a threadblock's next step can begin."""
        return self.waits_for_step(block) is None and not self.waits_for_message(block)

    def waits_for_step(self, block: Block) -> StepId | None:
        """Return the step that the next one waits for."""
        after = block.step.after
        return None if after is None or (block.rank, after) in self._ended else after

    def waits_for_message(self, block: Block) -> bool:
        """Return whether the next step's message is not there yet."""
        return block.step.kind.receives and not self.messages.get(self._incoming(block))

    @staticmethod
    def _incoming(block: Block) -> tuple[int, int, int]:
        source = block.threadblock.receive_peer
        return (-1 if source is None else source, block.rank, block.threadblock.channel)

    def slot(self, rank: int, place: Place) -> Slot:
        """Return the chunk of memory that a place is."""
        return Slot(rank, settled_place(self.program, rank, place))

    def last_writer(self, slot: Slot) -> str:
        """Return how errors name the step that wrote a chunk last; "" if none did."""
        access = self._order.last_write(slot)
        return "" if access is None else self._text(access)

    def _text(self, access: Access) -> str:
        block = self.blocks[access.block]
        return step_text(block.rank, StepId(block.threadblock.id, access.step))

    def _do(self, block: Block) -> None:
        step = block.step
        if step.after is not None:
            self._order.learn(block.number, self._ended[block.rank, step.after])
        received = self._receive(block) if step.kind.receives else None
        values = self._computed(block, received)
        if step.kind.writes:
            for index, value in enumerate(values):
                self._write(block, step.target, index, value)
        self._order.end_step(block.number, block.position)
        clock = self._order.snapshot(block.number)
        if step.kind.sends:
            peer = block.threadblock.send_peer
            key = (block.rank, -1 if peer is None else peer, block.threadblock.channel)
            self.messages.setdefault(key, deque()).append(_Message(values, block.at, clock))
        if (block.rank, block.at) in self._awaited:
            self._ended[block.rank, block.at] = clock
        block.position += 1

    def _receive(self, block: Block) -> tuple[Value, ...]:
        key = self._incoming(block)
        message = self.messages[key].popleft()
        source, target, _ = key
        if len(message.values) != block.step.count:
            sent = f"{step_text(source, message.sender)} sends {len(message.values)} chunks"
            raise AlgorithmError(
                f"receives {block.step.count} chunks of a message of which {sent}",
                location=f"{self.program.name}: {block.text()}",
            )
        self._order.learn(block.number, message.clock)
        self.transfers.append(
            Transfer(source, message.sender, target, block.at, len(message.values))
        )
        return message.values

    def _computed(self, block: Block, received: tuple[Value, ...] | None) -> tuple[Value, ...]:
        step = block.step
        if step.kind is StepKind.NOP:
            return ()
        read = self._read(block, step.source) if step.kind.reads else ()
        if step.kind is StepKind.REDUCE:
            received = self._read(block, step.target)
        if received is None:
            return read
        if not read:
            return received
        where = block.text()
        return tuple(
            [added(mine, other, where) for mine, other in zip(read, received, strict=True)]
        )

    def _read(self, block: Block, place: Place) -> tuple[Value, ...]:
        values: list[Value] = []
        for index in range(block.step.count):
            slot = self.slot(block.rank, Place(place.buffer, place.offset + index))
            self._check(block, slot, wrote=False)
            nothing = f"{block.text()}: reads {place_text(slot.place)}, where nothing is yet"
            values.append(self.values.get(slot, Value(0, 0, nothing)))
        return tuple(values)

    def _write(self, block: Block, place: Place, index: int, value: Value) -> None:
        slot = self.slot(block.rank, Place(place.buffer, place.offset + index))
        self._check(block, slot, wrote=True)
        self.values[slot] = value

    def _check(self, block: Block, slot: Slot, *, wrote: bool) -> None:
        access = Access(block.number, block.position)
        note = self._order.write if wrote else self._order.read
        race = note(access, slot)
        if race is None:
            return
        doing, did = ("writes" if one else "reads" for one in (wrote, race.wrote))
        message = f"{doing} {place_text(slot.place)}, which {self._text(race.other)} {did}"
        raise AlgorithmError(
            f"{message}, and nothing says which comes first",
            location=f"{self.program.name}: {block.text()}",
            hint="let one wait for the other (depid, deps)",
        )


def place_text(place: Place) -> str:
    """Return how errors name a chunk."""
    return f"{_BUFFER_NAMES[place.buffer]} chunk {place.offset}"


def settled_place(program: Program, rank: int, place: Place) -> Place:
    """Return where a place really is: in place, one buffer is a part of the other.

    The larger buffer stands, and the output where both are equal.
    """
    if not program.is_in_place or place.buffer is Buffer.SCRATCH:
        return place
    inputs, outputs = program.input_chunks, program.output_chunks
    small, large = (
        (Buffer.OUTPUT, Buffer.INPUT) if inputs > outputs else (Buffer.INPUT, Buffer.OUTPUT)
    )
    if place.buffer is large:
        return place
    own_part = 0 if inputs == outputs else rank * min(inputs, outputs)
    assert place.buffer is small  # noqa: S101 - the third buffer is scratch
    return Place(large, place.offset + own_part)
