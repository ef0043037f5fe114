"""Define collective programs: steps of threadblocks of ranks.

Source of the terms and of the effects of steps: MSCCL, whose runtime reads such programs from XML.

`program` writes a schedule as one. A connection between two ranks gets a threadblock at either end;
a threadblock may send to one rank and receive from one, which is the same rank, or, in a ring,
another. Steps that touch the same memory keep the order of the rounds: if they are in different
threadblocks, one waits for the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import isqrt
from typing import NamedTuple, Self

from hespas.base.figures import MOST_ALGORITHM_CHUNKS
from hespas.base.frozen import frozen
from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.schedule import Message, Operation, Rounds, Schedule
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind


class Buffer(Enum):
    """A rank's buffer of chunks."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


class StepKind(Enum):
    """The kind of a step: MSCCL's abbreviation and effects.

    A step that receives takes the next message of its threadblock's receive peer; one that sends
    sends a message to the send peer. One that reduces adds the received data, or its target, to its
    source.
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
    """The position of a chunk on a rank."""

    buffer: Buffer
    offset: int


class StepId(NamedTuple):
    """A step of a rank: threadblock id and index."""

    threadblock: int
    step: int


@frozen
class Step:
    """One step on ``count`` chunks, starting at ``source`` and ``target``.

    It begins when the preceding step of its threadblock and ``after`` have ended.
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


@frozen
class Threadblock:
    """Sequential steps with at most one peer per direction.

    A connection of two ranks has channels; messages of one channel arrive in order.
    """

    id: int
    send_peer: int | None
    receive_peer: int | None
    channel: int
    steps: tuple[Step, ...]


@frozen
class Rank:
    """One rank's threadblocks; ``scratch_chunks`` is its scratch buffer's size."""

    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]

    def awaited(self) -> set[StepId]:
        """Return the steps that other steps wait for."""
        return {step.after for block in self.threadblocks for step in block.steps if step.after}


@frozen
class Program:
    """A collective program of ``ranks`` and chunks of their buffers.

    With ``is_in_place`` the smaller buffer is a part of the larger: an all-gather's input is the
    rank's part of its output, a reduce-scatter's output the rank's part of its input. ``root`` is
    used by broadcasts and reduces. ``protocol`` is a name without effect in hespas.
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
        """Return a chunk's bytes for ``size_bytes`` of input, rounded up."""
        return -(-size_bytes // self.input_chunks)

    def steps(self) -> Iterator[tuple[int, Threadblock, int, Step]]:
        """Yield every (rank, threadblock, index, step)."""
        for number, rank in enumerate(self.ranks):
            for threadblock in rank.threadblocks:
                for index, step in enumerate(threadblock.steps):
                    yield number, threadblock, index, step


def chunk_counts(collective: CollectiveKind, ranks: int, chunks: int) -> tuple[int, int]:
    """Return a rank's input and output chunks.

    The larger buffer has ``chunks``. An all-gather's or gather's input and a reduce-scatter's or
    scatter's output are one rank's part.

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
    """Return a step's name in errors."""
    return f"rank {rank}, threadblock {step.threadblock}, step {step.step}"


def place_text(place: Place) -> str:
    """Return a chunk's name in errors."""
    return f"{place.buffer.name.lower()} chunk {place.offset}"


_IN_INPUT = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER)


def program(schedule: Schedule) -> Program:
    """Return the program of a schedule.

    `hespas.collectives.verify.verify` checks it. It works in place, except for an all-to-all.
    Raises `AlgorithmError` for schedules without a program: a barrier, which moves no data, and
    reductions in switches.
    """
    is_in_switch = any(rounds.operation is Operation.IN_SWITCH for rounds in schedule.rounds)
    if is_in_switch or not schedule.parts:
        raise AlgorithmError(f"{schedule.name} {schedule.collective.value} has no program")
    members = schedule.members
    is_all_to_all = schedule.collective is CollectiveKind.ALL_TO_ALL
    larger = schedule.parts // (members if is_all_to_all else 1)
    inputs, outputs = chunk_counts(schedule.collective, members, larger)
    ranks = [_RankWriter(rank, schedule) for rank in range(members)]
    for rounds, messages in schedule.by_round():
        for rank in ranks:
            rank.write_round(rounds, messages)
    return Program(
        name=f"{schedule.name.replace('-', '_')}_{schedule.collective.value}_{members}",
        collective=schedule.collective,
        input_chunks=inputs,
        output_chunks=outputs,
        is_in_place=not is_all_to_all,
        ranks=tuple([rank.written() for rank in ranks]),
        root=schedule.root,
    )


def common_program(name: str, collective: CollectiveKind, ranks: int) -> Program:
    """Return the program of one of `hespas.collectives.algorithms.ALGORITHMS`."""
    if ranks * ranks > MOST_ALGORITHM_CHUNKS:
        hint = f"give at most {isqrt(MOST_ALGORITHM_CHUNKS)}"
        raise AlgorithmError(f"there are {ranks} ranks", location=name, hint=hint)
    return program(ALGORITHMS[name].schedule(collective, ranks, is_contiguous=True))


_Sent = tuple[Message, range]
_SEND, _RECEIVE = 0, 1


@dataclass(slots=True)
class _Block:
    """A threadblock under construction, with its send and receive peers.

    ``ended`` gives, by the number of another threadblock, how many of its steps are certain to have
    ended when the next step begins.
    """

    number: int
    channel: int
    peers: list[int | None] = field(default_factory=lambda: [None, None])
    steps: list[Step] = field(default_factory=list[Step])
    ended: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(slots=True)
class _Accesses:
    """A chunk's latest write, and the reads since."""

    write: StepId | None = None
    reads: list[StepId] = field(default_factory=list[StepId])


class _RankWriter:
    def __init__(self, rank: int, schedule: Schedule) -> None:
        self._rank = rank
        self._schedule = schedule
        self._blocks: list[_Block] = []
        self._local: _Block | None = None
        self._accesses: dict[Place, _Accesses] = defaultdict(_Accesses)
        self._ended_after: dict[StepId, dict[int, int]] = {}
        self._scratch: dict[object, int] = {}

    def write_round(self, rounds: Rounds, messages: list[_Sent]) -> None:
        """Write the steps of one round: sends, receives, then additions."""
        targets: dict[int, set[int]] = defaultdict(set)
        for message, parts in messages:
            if message.source == self._rank:
                targets[message.channel].add(message.target)
                block = self._block(message.channel, _SEND, message.target, set())
                for part, count in _pieces(parts):
                    place = self._place(part)
                    self._add(block, StepKind.SEND, place, place, count)
        # In a ring, the threadblock that sends to the next also receives from the previous.
        arrivals: list[tuple[_Block, Message, range]] = []
        for message, parts in [item for item in messages if item[0].target == self._rank]:
            channel = message.channel
            block = self._block(channel, _RECEIVE, message.source, targets[channel])
            arrivals.append((block, message, parts))
        additions: list[tuple[Place, Place, int]] = []
        for block, message, parts in sorted(arrivals, key=lambda arrival: arrival[0].number):
            for part, count in _pieces(parts):
                place = target = self._place(part)
                kind = StepKind.RECEIVE
                if rounds.is_staged:
                    target = self._scratch_place((message, part), count)
                    additions.append((target, place, count))
                elif rounds.operation is Operation.REDUCE:
                    kind = StepKind.RECEIVE_REDUCE_COPY
                self._add(block, kind, place, target, count)
        for staging, place, count in additions:
            self._add(self._local_block(), StepKind.REDUCE, staging, place, count)

    def written(self) -> Rank:
        """Return the rank; all-to-alls also copy its own part."""
        if self._schedule.collective is CollectiveKind.ALL_TO_ALL:
            source, target = Place(Buffer.INPUT, self._rank), Place(Buffer.OUTPUT, self._rank)
            self._add(self._local_block(), StepKind.COPY, source, target, 1)
        # Sort threadblocks by channel.
        order = sorted(self._blocks, key=lambda block: block.channel)
        number_of = {block.number: index for index, block in enumerate(order)}
        return Rank(
            scratch_chunks=len(self._scratch),
            threadblocks=tuple([_renumbered_threadblock(block, number_of) for block in order]),
        )

    def _block(self, channel: int, end: int, peer: int, targets: set[int]) -> _Block:
        """Return the threadblock for messages to or from a peer.

        A threadblock that is free at this end is used if its other peer is the same, or the only
        target.
        """
        partners = {peer, *targets} if len(targets) == 1 else {peer}
        blocks = [block for block in self._blocks if block.channel == channel]
        for block in blocks:
            if block.peers[end] == peer:
                return block
        free = (
            block
            for block in blocks
            if block.peers[end] is None and block.peers[1 - end] in partners
        )
        block = next(free, None) or self._new_block(channel)
        block.peers[end] = peer
        return block

    def _local_block(self) -> _Block:
        if self._local is None:
            self._local = self._new_block(0)
        return self._local

    def _new_block(self, channel: int) -> _Block:
        self._blocks.append(_Block(len(self._blocks), channel))
        return self._blocks[-1]

    def _place(self, part: int) -> Place:
        """Return a part's final or transit position on this rank."""
        schedule = self._schedule
        if schedule.collective is not CollectiveKind.ALL_TO_ALL:
            return Place(Buffer.INPUT if schedule.collective in _IN_INPUT else Buffer.OUTPUT, part)
        origin, destination = divmod(part, schedule.members)
        if origin == self._rank:
            return Place(Buffer.INPUT, destination)
        if destination == self._rank:
            return Place(Buffer.OUTPUT, origin)
        return self._scratch_place(part, 1)

    def _scratch_place(self, content: object, count: int) -> Place:
        for index in range(count):
            self._scratch.setdefault((content, index), len(self._scratch))
        return Place(Buffer.SCRATCH, self._scratch[content, 0])

    def _add(self, block: _Block, kind: StepKind, source: Place, target: Place, count: int) -> None:
        """Add a step after earlier accesses to its chunks."""
        reads = _chunks(source, count) if kind.reads else []
        if kind is StepKind.REDUCE:
            reads += _chunks(target, count)
        writes = _chunks(target, count) if kind.writes else []
        waits = self._waits_for(block, reads, writes)
        # A step waits for one step. Nops wait for the others, and for all before a receive.
        last = waits.pop() if waits and not kind.receives else None
        block.steps += [wait_step(after) for after in waits]
        block.steps.append(Step(kind=kind, source=source, target=target, count=count, after=last))
        step = StepId(block.number, len(block.steps) - 1)
        self._ended_after[step] = {**block.ended, block.number: len(block.steps)}
        for place in reads:
            self._accesses[place].reads.append(step)
        for place in writes:
            self._accesses[place] = _Accesses(write=step)

    def _waits_for(self, block: _Block, reads: list[Place], writes: list[Place]) -> list[StepId]:
        """Return the waits for other threadblocks' steps, none implied by another."""
        earlier = {self._accesses[place].write for place in (*reads, *writes)}
        earlier |= {step for place in writes for step in self._accesses[place].reads}
        waits = [
            step
            for step in earlier
            if step is not None
            and step.threadblock != block.number
            and block.ended.get(step.threadblock, 0) <= step.step
        ]
        waits = [
            step
            for step in waits
            if not any(
                implied_by != step
                and self._ended_after[implied_by].get(step.threadblock, 0) > step.step
                for implied_by in waits
            )
        ]
        for step in waits:
            for number, steps in self._ended_after[step].items():
                block.ended[number] = max(block.ended.get(number, 0), steps)
        return sorted(waits)


def _pieces(parts: range) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of contiguous parts."""
    if parts.step == 1 and parts:
        yield parts[0], len(parts)
    else:
        yield from ((part, 1) for part in parts)


def _chunks(place: Place, count: int) -> list[Place]:
    return [Place(place.buffer, place.offset + index) for index in range(count)]


def _renumbered_threadblock(block: _Block, number_of: Mapping[int, int]) -> Threadblock:
    steps = [
        step
        if step.after is None
        else replace(step, after=StepId(number_of[step.after.threadblock], step.after.step))
        for step in block.steps
    ]
    send_peer, receive_peer = block.peers
    return Threadblock(
        id=number_of[block.number],
        send_peer=send_peer,
        receive_peer=receive_peer,
        channel=block.channel,
        steps=tuple(steps),
    )
