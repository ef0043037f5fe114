"""Run an algorithm on symbols: which step meets which, and what every chunk then holds.

Messages are buffered: a send doesn't wait for its receive, as in MSCCL, whose connections have
slots for several. What blocks here therefore blocks everywhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from hespas.collectives.algorithm import (
    Algorithm,
    Buffer,
    Place,
    Step,
    StepId,
    StepKind,
    Threadblock,
    step_text,
)
from hespas.collectives.order import Access, Clock, Order
from hespas.collectives.structure import settled_place
from hespas.collectives.values import Value, added, initial_values
from hespas.errors import AlgorithmError

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
    known: Clock


@dataclass(slots=True)
class Block:
    """A threadblock under way: its rank, its number among all, and the next step."""

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

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.blocks = [
            Block(rank, 0, threadblock)
            for rank, one in enumerate(algorithm.ranks)
            for threadblock in one.threadblocks
        ]
        for number, block in enumerate(self.blocks):
            block.number = number
        self.block_of = {(block.rank, block.threadblock.id): block for block in self.blocks}
        self.transfers: list[Transfer] = []
        self.values: dict[Slot, Value] = {
            self.slot(rank, place): value for rank, place, value in initial_values(algorithm)
        }
        self.messages: dict[tuple[int, int, int], deque[_Message]] = {}
        self._order = Order(len(self.blocks))
        self._ended: dict[tuple[int, StepId], Clock] = {}
        self._awaited = {
            (rank, step.after) for rank, _, _, step in algorithm.steps() if step.after is not None
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
        return Slot(rank, settled_place(self.algorithm, rank, place))

    def last_writer(self, slot: Slot) -> str:
        """Return how errors name the step that wrote a chunk last; "" if none did."""
        found = self._order.last_write(slot)
        return "" if found is None else self._text(found)

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
        known = self._order.snapshot(block.number)
        if step.kind.sends:
            peer = block.threadblock.send_peer
            key = (block.rank, -1 if peer is None else peer, block.threadblock.channel)
            self.messages.setdefault(key, deque()).append(_Message(values, block.at, known))
        if (block.rank, block.at) in self._awaited:
            self._ended[block.rank, block.at] = known
        block.position += 1

    def _receive(self, block: Block) -> tuple[Value, ...]:
        key = self._incoming(block)
        message = self.messages[key].popleft()
        source, target, _ = key
        if len(message.values) != block.step.count:
            sent = f"{step_text(source, message.sender)} sends {len(message.values)} chunks"
            raise AlgorithmError(
                f"receives {block.step.count} chunks of a message of which {sent}",
                location=f"{self.algorithm.name}: {block.text()}",
            )
        self._order.learn(block.number, message.known)
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
        found: list[Value] = []
        for index in range(block.step.count):
            slot = self.slot(block.rank, Place(place.buffer, place.offset + index))
            self._check(block, slot, wrote=False)
            nothing = f"{block.text()}: reads {place_text(slot.place)}, where nothing is yet"
            found.append(self.values.get(slot, Value(0, 0, nothing)))
        return tuple(found)

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
            location=f"{self.algorithm.name}: {block.text()}",
            hint="let one wait for the other (depid, deps)",
        )


def place_text(place: Place) -> str:
    """Return how errors name a chunk."""
    return f"{_BUFFER_NAMES[place.buffer]} chunk {place.offset}"
