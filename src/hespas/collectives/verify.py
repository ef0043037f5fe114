"""Whether a program computes its collective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from hespas.base.figures import MOST_ALGORITHM_CHUNKS
from hespas.collectives.execution import (
    Block,
    Execution,
    Transfer,
    Value,
    ranks_text,
)
from hespas.collectives.program import (
    Buffer,
    Place,
    Program,
    Rank,
    Step,
    StepId,
    Threadblock,
    place_text,
    step_text,
)
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind

_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A program that computes its collective, and its messages in an order that works.

    ``is_result_known`` is False for a custom collective, of which only the run was checked.
    """

    program: Program
    transfers: tuple[Transfer, ...]
    is_result_known: bool

    def chunks_by_link(self) -> Mapping[tuple[int, int], int]:
        """Return how many chunks go from one rank to another, by (source, target)."""
        chunks: dict[tuple[int, int], int] = {}
        for one in self.transfers:
            link = (one.source, one.target)
            chunks[link] = chunks.get(link, 0) + one.count
        return dict(sorted(chunks.items()))


def verify(program: Program) -> Verified:
    """Return a program's messages, if it computes its collective.

    It is run on symbols: at the end every rank holds every chunk that it must, with each rank's
    contribution in it exactly once. Raises `AlgorithmError`, naming rank, threadblock, step and
    chunk, for a chunk that is wrong, a contribution that is missing or there twice, two steps
    that access a chunk in no order (one of them writing), messages without a receive, and
    steps that wait for ever.

    >>> from hespas.collectives.lowering import common_program
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
    """Return what a step waits for, what that waits for, and so on until it is clear why."""
    reasons: list[str] = []
    seen: list[Block] = []
    while block not in seen and len(reasons) < _LONGEST_CHAIN:
        seen.append(block)
        reason, other = _why(execution, block)
        reasons.append(reason)
        if other is None or other.is_done:
            return "; ".join(reasons)
        block = other
    return f"{'; '.join(reasons)}; so nothing goes on"


def _why(execution: Execution, block: Block) -> tuple[str, Block | None]:
    after = execution.awaited_step(block)
    if after is not None:
        other = next(
            other
            for other in execution.blocks
            if (other.rank, other.threadblock.id) == (block.rank, after.threadblock)
        )
        awaited = f"threadblock {after.threadblock}, step {after.step}"
        return f"{block.text()} waits for {awaited}", other
    connection = block.connection(is_incoming=True)
    channel, source, _ = connection
    reason = f"{block.text()} waits for a message of rank {source} on channel {channel}"
    for sender in execution.blocks:
        if sender.connection(is_incoming=False) == connection:
            sends = sum(step.kind.sends for step in sender.threadblock.steps)
            return f"{reason}, where only {sends} are sent" if sender.is_done else reason, sender
    return f"{reason}, where nothing is sent", None


def _check_results(execution: Execution) -> None:
    """Raise for a wrong chunk: the first that a step has spoilt, else the first of all."""
    program = execution.program
    wrong: list[tuple[bool, str]] = []
    for rank in range(len(program.ranks)):
        for place in [Place(Buffer.OUTPUT, offset) for offset in range(program.output_chunks)]:
            required = _required(program, rank, place.offset)
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
    """Return what a chunk of a rank's output must hold; None where anything may be."""
    count = len(program.ranks)
    everyone = (1 << count) - 1
    own = rank * program.output_chunks + chunk
    # Per source, an all-gather's output has a whole input, an all-to-all's a part of it.
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


def check_structure(program: Program) -> None:
    """Raise `AlgorithmError`, naming rank, threadblock and step, for what cannot be run.

    That is: more chunks than ``MOST_ALGORITHM_CHUNKS``, fewer than two ranks, peers that are not
    there or the rank itself, steps that send or receive without a peer, two threadblocks with one
    channel to the same peer, steps that wait for absent ones, and chunks beyond a buffer's end.
    """
    count = len(program.ranks)
    totals = {
        "its buffers have": count * (program.input_chunks + program.output_chunks)
        + sum(rank.scratch_chunks for rank in program.ranks),
        "its steps move": sum(step.count for *_, step in program.steps()),
    }
    for what, total in totals.items():
        if total > MOST_ALGORITHM_CHUNKS:
            message = f"{what} {total} chunks in all"
            hint = f"use at most {MOST_ALGORITHM_CHUNKS}"
            raise AlgorithmError(message, location=program.name, hint=hint)
    if count < 2 or not 0 <= program.root < count:
        raise AlgorithmError(
            f"there are {count} ranks, and the root is {program.root}", location=program.name
        )
    for number, rank in enumerate(program.ranks):
        for problem, where in _rank_problems(program, number, rank):
            raise AlgorithmError(problem, location=f"{program.name}: {where}")


def _rank_problems(program: Program, number: int, rank: Rank) -> Iterator[tuple[str, str]]:
    yield from _connection_problems(number, rank)
    ids = {StepId(block.id, i) for block in rank.threadblocks for i in range(len(block.steps))}
    sizes = {
        Buffer.INPUT: program.input_chunks,
        Buffer.OUTPUT: program.output_chunks,
        Buffer.SCRATCH: rank.scratch_chunks,
    }
    for block in rank.threadblocks:
        where = f"rank {number}, threadblock {block.id}"
        for peer in (block.send_peer, block.receive_peer):
            if peer is not None and (peer == number or not 0 <= peer < len(program.ranks)):
                yield f"the peer {peer} is not another one of {len(program.ranks)} ranks", where
        for index, step in enumerate(block.steps):
            for problem in _step_problems(step, block, ids, sizes):
                yield problem, step_text(number, StepId(block.id, index))


def _connection_problems(number: int, rank: Rank) -> Iterator[tuple[str, str]]:
    seen: dict[object, int] = {}
    for block in rank.threadblocks:
        keys: list[object] = [("id", block.id)]
        if block.send_peer is not None:
            keys.append(("sends to rank", block.send_peer, block.channel))
        if block.receive_peer is not None:
            keys.append(("receives from rank", block.receive_peer, block.channel))
        for key in keys:
            if key in seen:
                where = f"rank {number}, threadblock {block.id}"
                yield f"threadblock {seen[key]} has the same {key}", where
            seen[key] = block.id


def _step_problems(
    step: Step, block: Threadblock, ids: set[StepId], sizes: dict[Buffer, int]
) -> Iterator[str]:
    kind = step.kind
    if kind.sends and block.send_peer is None:
        yield f"{kind.value} sends, and the threadblock has no peer to send to"
    if kind.receives and block.receive_peer is None:
        yield f"{kind.value} receives, and the threadblock has no peer to receive from"
    if step.after is not None and step.after not in ids:
        after = step.after
        yield f"waits for threadblock {after.threadblock}, step {after.step}, which is not there"
    used = [step.source] * kind.reads + [step.target] * kind.writes
    for place in used:
        if place.offset < 0 or place.offset + step.count > sizes[place.buffer]:
            chunks = f"chunks {place.offset} to {place.offset + step.count - 1}"
            name = place.buffer.name.lower()
            yield f"{chunks} of the {name} buffer, which has {sizes[place.buffer]}"
