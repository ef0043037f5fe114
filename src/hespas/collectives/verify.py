"""Verify that a program computes its collective, by symbols.

A chunk's value is the set of ranks whose contributions are in it. Messages are buffered: a send
doesn't wait for its receive, as in MSCCL, whose connections have slots for several. A program that
blocks in this run therefore blocks everywhere. Each threadblock has a vector clock, which counts,
for every threadblock, the steps that are certain to have ended: it detects unordered accesses to
one chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
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
from hespas.collectives.structure import check_structure
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind


class Value(NamedTuple):
    """The sum of one input chunk over some ranks.

    ``chunk`` is its position in the input, ``ranks`` a bit for each rank. ``fault`` describes an
    error in it and the step that caused it.
    """

    chunk: int
    ranks: int
    fault: str = ""


def added(first: Value, second: Value, where: str) -> Value:
    """Add two values; repeated or unlike contributions are a fault.

    >>> added(Value(0, 0b01), Value(0, 0b10), "here")
    Value(chunk=0, ranks=3, fault='')
    >>> added(Value(0, 0b11), Value(0, 0b10), "here").fault
    'here: adds the contribution of rank 1 a second time'
    """
    if first.fault or second.fault:
        return first if first.fault else second
    if first.chunk != second.chunk:
        return Value(0, 0, f"{where}: adds chunk {second.chunk} to chunk {first.chunk}")
    twice = first.ranks & second.ranks
    if twice:
        ranks = ranks_text(twice)
        return Value(0, 0, f"{where}: adds the contribution of {ranks} a second time")
    return Value(first.chunk, first.ranks | second.ranks)


def ranks_text(ranks: int) -> str:
    """Return a set of ranks as text for errors.

    >>> ranks_text(0b1011)
    'ranks 0, 1, 3'
    """
    numbers = [str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1]
    shown = ", ".join(numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


Clock = NDArray[np.int32]


class _Access(NamedTuple):
    block: int
    step: int


@dataclass(slots=True)
class _Chunk:
    """A chunk's value, last write, and reads since."""

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
    """A running threadblock: its rank, number and position."""

    rank: int
    number: int
    threadblock: Threadblock
    position: int = 0

    @property
    def step(self) -> Step:
        """The next step."""
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
        """Return the channel, source and target of messages."""
        if is_incoming:
            return (self.threadblock.channel, self.threadblock.receive_peer, self.rank)
        return (self.threadblock.channel, self.rank, self.threadblock.send_peer)

    def text(self) -> str:
        """Return the next step's name in errors."""
        return step_text(self.rank, self.step_id)


class Execution:
    """One run: its ``transfers``, final values and blocked threadblocks.

    Raises `AlgorithmError` for two steps that access one chunk without an order, and for messages
    whose ends differ in size.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        blocks = [
            (rank, threadblock)
            for rank, rank_program in enumerate(program.ranks)
            for threadblock in rank_program.threadblocks
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
                    self._run_step(block)
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
        """Return the value of a chunk."""
        return self._chunk(rank, place).value

    def last_writer(self, rank: int, place: Place) -> str:
        """Return the name of a chunk's last writer, or ""."""
        written = self._chunk(rank, place).written
        return "" if written is None else self._text(written)

    def _text(self, access: _Access) -> str:
        block = self.blocks[access.block]
        return step_text(block.rank, StepId(block.threadblock.id, access.step))

    def _run_step(self, block: Block) -> None:
        step = block.step
        if step.after is not None:
            self._merge_clock(block, self._ended[block.rank, step.after])
        received = self._receive(block) if step.kind.receives else ()
        read = self._read(block, step.source) if step.kind.reads else ()
        if step.kind is StepKind.REDUCE:
            received = self._read(block, step.target)
        values = read or received
        if read and received:
            pairs = zip(read, received, strict=True)
            values = tuple([added(mine, theirs, block.text()) for mine, theirs in pairs])
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

    def _merge_clock(self, block: Block, clock: Clock) -> None:
        """Merge another threadblock's clock into this one's."""
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
        self._merge_clock(block, message.clock)
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
        """Raise for an unordered earlier access to a chunk."""
        own = (block.number, block.position)
        clock = self._clocks[block.number]
        for access, did in earlier:
            if access is None or access == own or clock[access.block] > access.step:
                continue
            settled = _settled_place(self.program, block.rank, place)
            raise AlgorithmError(
                f"{doing} {place_text(settled)}, which {self._text(access)} {did}, and nothing "
                "says which comes first",
                location=f"{self.program.name}: {block.text()}",
                hint="let one wait for the other (depid, deps)",
            )


def _settled_place(program: Program, rank: int, place: Place) -> Place:
    """Return the real position of an in-place program's chunk.

    One buffer is a part of the other: the larger one counts, or the output if both are equal.
    """
    inputs, outputs = program.input_chunks, program.output_chunks
    large = Buffer.INPUT if inputs > outputs else Buffer.OUTPUT
    if not program.is_in_place or place.buffer in (Buffer.SCRATCH, large):
        return place
    own_part = 0 if inputs == outputs else rank * min(inputs, outputs)
    return Place(large, place.offset + own_part)


_LONGEST_CHAIN = 8


@frozen
class Verified:
    """A verified program with its messages in order.

    ``is_result_known`` is False for a custom collective, of which only the run was checked.
    """

    program: Program
    transfers: tuple[Transfer, ...]
    is_result_known: bool

    def chunks_by_link(self) -> Mapping[tuple[int, int], int]:
        """Count the chunks between ranks, by (source, target)."""
        chunks: dict[tuple[int, int], int] = {}
        for transfer in self.transfers:
            link = (transfer.source, transfer.target)
            chunks[link] = chunks.get(link, 0) + transfer.count
        return dict(sorted(chunks.items()))


def verify(program: Program) -> Verified:
    """Return a program's messages after verifying its collective.

    At the end every rank must hold every required chunk, with each rank's contribution in it
    exactly once. Raises `AlgorithmError`, naming rank, threadblock, step and chunk, for a wrong
    chunk, a missing or repeated contribution, two unordered accesses to a chunk (one of them a
    write), messages without a receive, and steps that wait forever.

    >>> from hespas.collectives.program import common_program
    >>> len(verify(common_program("ring", CollectiveKind.ALL_REDUCE, 4)).transfers)
    24
    """
    check_structure(program)
    execution = Execution(program)
    _check_ended(execution)
    _check_results(execution)
    return Verified(
        program=program,
        transfers=tuple(execution.transfers),
        is_result_known=program.collective is not CollectiveKind.CUSTOM,
    )


def _check_ended(execution: Execution) -> None:
    name = execution.program.name
    stuck = next((block for block in execution.blocks if not block.is_done), None)
    if stuck is not None:
        raise AlgorithmError(_waits(execution, stuck), location=f"{name}: {stuck.text()}")
    for (_, source, target), messages in execution.messages.items():
        if messages and source is not None:
            where = step_text(source, messages[0].sender)
            raise AlgorithmError(
                f"sends a message that rank {target} never receives", location=f"{name}: {where}"
            )


def _waits(execution: Execution, block: Block) -> str:
    reasons: list[str] = []
    seen: list[Block] = []
    while block not in seen and len(reasons) < _LONGEST_CHAIN:
        seen.append(block)
        reason, cause = _reason_for_wait(execution, block)
        reasons.append(reason)
        if cause is None or cause.is_done:
            return "; ".join(reasons)
        block = cause
    return f"{'; '.join(reasons)}; so none of them continues"


def _reason_for_wait(execution: Execution, block: Block) -> tuple[str, Block | None]:
    after = execution.awaited_step(block)
    if after is not None:
        key = (block.rank, after.threadblock)
        awaited_block = next(
            item for item in execution.blocks if (item.rank, item.threadblock.id) == key
        )
        awaited = f"threadblock {after.threadblock}, step {after.step}"
        return f"{block.text()} waits for {awaited}", awaited_block
    connection = block.connection(is_incoming=True)
    channel, source, _ = connection
    reason = f"{block.text()} waits for a message of rank {source} on channel {channel}"
    for sender in execution.blocks:
        if sender.connection(is_incoming=False) == connection:
            sends = sum(step.kind.sends for step in sender.threadblock.steps)
            return f"{reason}, where only {sends} are sent" if sender.is_done else reason, sender
    return f"{reason}, where nothing is sent", None


def _check_results(execution: Execution) -> None:
    """Raise for a wrong chunk, preferably the first spoilt."""
    program = execution.program
    wrong: list[tuple[bool, str]] = []
    for rank in range(len(program.ranks)):
        for offset in range(program.output_chunks):
            place = Place(Buffer.OUTPUT, offset)
            required = _required(program, rank, offset)
            value = execution.value(rank, place)
            problem = "" if required is None else _problem(value, required)
            if problem:
                writer = execution.last_writer(rank, place)
                written = f"written last by {writer}" if writer else "never written"
                text = f"rank {rank}'s {place_text(place)} {problem} ({written})"
                wrong.append((not (value and value.fault), text))
    if wrong:
        raise AlgorithmError(min(wrong, key=itemgetter(0))[1], location=program.name)


def _required(program: Program, rank: int, chunk: int) -> Value | None:
    """Return the required value of an output chunk, or None."""
    count = len(program.ranks)
    everyone = (1 << count) - 1
    own = rank * program.output_chunks + chunk
    # An all-gather's output has the whole input of each source, an all-to-all's a part of it.
    is_all_to_all = program.collective is CollectiveKind.ALL_TO_ALL
    share = max(1, program.input_chunks // (count if is_all_to_all else 1))
    owner, part = divmod(chunk, share)
    results = {
        CollectiveKind.ALL_REDUCE: Value(chunk, everyone),
        CollectiveKind.REDUCE: Value(chunk, everyone),
        CollectiveKind.REDUCE_SCATTER: Value(own, everyone),
        CollectiveKind.SCATTER: Value(own, 1 << program.root),
        CollectiveKind.BROADCAST: Value(chunk, 1 << program.root),
        CollectiveKind.ALL_GATHER: Value(part, 1 << owner),
        CollectiveKind.GATHER: Value(part, 1 << owner),
        CollectiveKind.ALL_TO_ALL: Value(rank * share + part, 1 << owner),
    }
    is_for_root = program.collective in (CollectiveKind.REDUCE, CollectiveKind.GATHER)
    return None if is_for_root and rank != program.root else results.get(program.collective)


def _problem(value: Value | None, required: Value) -> str:
    if value is None:
        return "holds nothing"
    if value.fault:
        return f"is wrong: {value.fault}"
    if value.chunk != required.chunk:
        return f"holds input chunk {value.chunk} instead of {required.chunk}"
    lacking, surplus = required.ranks & ~value.ranks, value.ranks & ~required.ranks
    if lacking:
        return f"lacks the contribution of {ranks_text(lacking)}"
    if surplus:
        return f"has a contribution of {ranks_text(surplus)} too many"
    return ""
