"""Write a schedule out as a program: what every threadblock of every rank does.

A connection between two ranks gets a threadblock at either end; one that sends to a rank and
receives from one, the same or, in a ring, another, does both. Steps that touch the same memory keep
the order of the rounds: where they are of different threadblocks, one waits for the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isqrt

from hespas.base.limits import MOST_ALGORITHM_CHUNKS
from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.program import (
    Buffer,
    Place,
    Program,
    Rank,
    Step,
    StepId,
    StepKind,
    Threadblock,
    chunk_counts,
)
from hespas.collectives.schedule import Collective, Message, Operation, Rounds, Schedule
from hespas.errors import AlgorithmError

_IN_INPUT = (Collective.REDUCE_SCATTER, Collective.SCATTER)


def program(schedule: Schedule) -> Program:
    """Return the program of a schedule; `hespas.collectives.verify.verify` checks it.

    It works in place, except for an all-to-all. Raises `AlgorithmError` for one that no program
    does: a barrier, which moves no data, and what switches add up.
    """
    is_in_switch = any(one.operation is Operation.IN_SWITCH for one in schedule.rounds)
    if is_in_switch or not schedule.parts:
        raise AlgorithmError(f"{schedule.name} {schedule.collective.value} has no program")
    members = schedule.members
    is_all_to_all = schedule.collective is Collective.ALL_TO_ALL
    larger = schedule.parts // (members if is_all_to_all else 1)
    inputs, outputs = chunk_counts(schedule.collective, members, larger)
    ranks = [_RankWriter(rank, schedule) for rank in range(members)]
    for rounds, messages in _by_round(schedule):
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


def common_program(name: str, collective: Collective, ranks: int) -> Program:
    """Return the program of one of `hespas.collectives.algorithms.ALGORITHMS`.

    Raises `AlgorithmError` where it can't run the collective among so many ranks.
    """
    if ranks * ranks > MOST_ALGORITHM_CHUNKS:
        hint = f"give at most {isqrt(MOST_ALGORITHM_CHUNKS)}"
        raise AlgorithmError(f"there are {ranks} ranks", location=name, hint=hint)
    return program(ALGORITHMS[name].schedule(collective, ranks, is_contiguous=True))


_Sent = tuple[Message, range]


def _by_round(schedule: Schedule) -> Iterator[tuple[Rounds, list[_Sent]]]:
    """Yield the messages of one round after the other."""
    for _, group in groupby(schedule.messages(), key=lambda one: (id(one[0]), one[1].round)):
        sent = list(group)
        yield sent[0][0], [(message, parts) for _, message, parts in sent]


@dataclass(slots=True)
class _Block:
    """A threadblock that is being written.

    ``ended`` gives, by the number of another threadblock, how many steps of it have surely ended
    when the next step begins.
    """

    number: int
    channel: int
    send_peer: int | None = None
    receive_peer: int | None = None
    steps: list[Step] = field(default_factory=list[Step])
    ended: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(slots=True)
class _Accesses:
    """The steps that touched a chunk last: what wrote it, and what has read it since."""

    write: StepId | None = None
    reads: list[StepId] = field(default_factory=list[StepId])


class _RankWriter:
    """Writes the threadblocks of one rank, round by round."""

    def __init__(self, rank: int, schedule: Schedule) -> None:
        self._rank = rank
        self._schedule = schedule
        self._blocks: list[_Block] = []
        self._local: _Block | None = None
        self._accesses: dict[Place, _Accesses] = {}
        self._ended_after: dict[StepId, dict[int, int]] = {}
        self._scratch: dict[object, int] = {}

    def write_round(self, rounds: Rounds, messages: list[_Sent]) -> None:
        """Write the steps of one round: what is sent, what comes, and what is added then."""
        sent = [one for one in messages if one[0].source == self._rank]
        received = [one for one in messages if one[0].target == self._rank]
        for message, parts in sent:
            block = self._sender(message)
            for part, count in _pieces(parts):
                place = self._place(part)
                self._add(block, StepKind.SEND, place, place, count)
        # In a ring, the threadblock that sends to the next also receives from the previous.
        targets: dict[int, set[int]] = {}
        for message, _ in sent:
            targets.setdefault(message.channel, set()).add(message.target)
        arriving = [
            (self._receiver(one, targets.get(one.channel, set())), one, parts)
            for one, parts in received
        ]
        adding: list[tuple[Place, Place, int]] = []
        for block, message, parts in sorted(arriving, key=lambda one: one[0].number):
            for part, count in _pieces(parts):
                place = self._place(part)
                if rounds.is_staged:
                    staging = self._scratch_place((message, part), count)
                    self._add(block, StepKind.RECEIVE, place, staging, count)
                    adding.append((staging, place, count))
                elif rounds.operation is Operation.REDUCE:
                    self._add(block, StepKind.RECEIVE_REDUCE_COPY, place, place, count)
                else:
                    self._add(block, StepKind.RECEIVE, place, place, count)
        for staging, place, count in adding:
            self._add(self._local_block(), StepKind.REDUCE, staging, place, count)

    def written(self) -> Rank:
        """Return the rank; of an all-to-all, its part for itself is copied."""
        if self._schedule.collective is Collective.ALL_TO_ALL:
            source, target = Place(Buffer.INPUT, self._rank), Place(Buffer.OUTPUT, self._rank)
            self._add(self._local_block(), StepKind.COPY, source, target, 1)
        # Threadblocks of one channel stand together.
        order = sorted(self._blocks, key=lambda block: block.channel)
        number_of = {block.number: index for index, block in enumerate(order)}
        return Rank(
            scratch_chunks=len(self._scratch),
            threadblocks=tuple([_numbered(block, number_of) for block in order]),
        )

    def _sender(self, message: Message) -> _Block:
        peer, channel = message.target, message.channel
        for block in self._blocks:
            if block.channel == channel and block.send_peer == peer:
                return block
        for block in self._blocks:
            is_free = block.channel == channel and block.send_peer is None
            if is_free and block.receive_peer == peer:
                block.send_peer = peer
                return block
        return self._new_block(channel, send_peer=peer)

    def _receiver(self, message: Message, targets: set[int]) -> _Block:
        peer, channel = message.source, message.channel
        for block in self._blocks:
            if block.channel == channel and block.receive_peer == peer:
                return block
        for block in self._blocks:
            is_free = block.channel == channel and block.receive_peer is None
            if is_free and (block.send_peer == peer or {block.send_peer} == targets):
                block.receive_peer = peer
                return block
        return self._new_block(channel, receive_peer=peer)

    def _local_block(self) -> _Block:
        """Return the threadblock that neither sends nor receives."""
        if self._local is None:
            self._local = self._new_block(0)
        return self._local

    def _new_block(
        self, channel: int, *, send_peer: int | None = None, receive_peer: int | None = None
    ) -> _Block:
        block = _Block(len(self._blocks), channel, send_peer, receive_peer)
        self._blocks.append(block)
        return block

    def _place(self, part: int) -> Place:
        """Return where a part is on this rank, as it comes, goes or stays."""
        schedule = self._schedule
        if schedule.collective is not Collective.ALL_TO_ALL:
            return Place(Buffer.INPUT if schedule.collective in _IN_INPUT else Buffer.OUTPUT, part)
        origin, destination = divmod(part, schedule.members)
        if origin == self._rank:
            return Place(Buffer.INPUT, destination)
        if destination == self._rank:
            return Place(Buffer.OUTPUT, origin)
        return self._scratch_place(part, 1)

    def _scratch_place(self, what: object, count: int) -> Place:
        first = self._scratch.setdefault((what, 0), len(self._scratch))
        for index in range(1, count):
            self._scratch.setdefault((what, index), len(self._scratch))
        return Place(Buffer.SCRATCH, first)

    def _add(self, block: _Block, kind: StepKind, source: Place, target: Place, count: int) -> None:
        """Add a step, which waits for what touched the same chunks."""
        reads = _chunks(source, count) if kind.reads else []
        if kind is StepKind.REDUCE:
            reads += _chunks(target, count)
        writes = _chunks(target, count) if kind.writes else []
        waits = self._waits_for(block, reads, writes)
        # A step waits for one other. A nop waits for each further one, and for all of a receive.
        last = waits.pop() if waits and not kind.receives else None
        block.steps += [_nop(after) for after in waits]
        block.steps.append(Step(kind=kind, source=source, target=target, count=count, after=last))
        at = StepId(block.number, len(block.steps) - 1)
        self._ended_after[at] = {**block.ended, block.number: len(block.steps)}
        for place in reads:
            self._accesses.setdefault(place, _Accesses()).reads.append(at)
        for place in writes:
            self._accesses[place] = _Accesses(write=at)

    def _waits_for(self, block: _Block, reads: list[Place], writes: list[Place]) -> list[StepId]:
        """Return the steps of other threadblocks to wait for, none of which waits for another."""
        before: dict[StepId, None] = {}
        for place in (*reads, *writes):
            accesses = self._accesses.get(place, _Accesses())
            if accesses.write is not None:
                before[accesses.write] = None
        for place in writes:
            before |= dict.fromkeys(self._accesses.get(place, _Accesses()).reads)
        waits = [
            at
            for at in before
            if at.threadblock != block.number and block.ended.get(at.threadblock, 0) <= at.step
        ]
        waits = [
            at
            for at in waits
            if not any(
                other != at and self._ended_after[other].get(at.threadblock, 0) > at.step
                for other in waits
            )
        ]
        for at in waits:
            for number, steps in self._ended_after[at].items():
                block.ended[number] = max(block.ended.get(number, 0), steps)
        return sorted(waits)


def _pieces(parts: range) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of parts that are next to each other."""
    if parts.step == 1 and parts:
        yield parts[0], len(parts)
    else:
        yield from ((part, 1) for part in parts)


def _chunks(place: Place, count: int) -> list[Place]:
    return [Place(place.buffer, place.offset + index) for index in range(count)]


def _nop(after: StepId) -> Step:
    nowhere = Place(Buffer.OUTPUT, 0)
    return Step(kind=StepKind.NOP, source=nowhere, target=nowhere, count=0, after=after)


def _numbered(block: _Block, number_of: Mapping[int, int]) -> Threadblock:
    """Return a threadblock, with the final numbers of all."""
    steps = [
        step
        if step.after is None
        else replace(step, after=StepId(number_of[step.after.threadblock], step.after.step))
        for step in block.steps
    ]
    return Threadblock(
        id=number_of[block.number],
        send_peer=block.send_peer,
        receive_peer=block.receive_peer,
        channel=block.channel,
        steps=tuple(steps),
    )
