"""Check that a program's steps fit together."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.figures import MOST_ALGORITHM_CHUNKS
from hespas.collectives.program import (
    Buffer,
    Program,
    Rank,
    Step,
    StepId,
    Threadblock,
    step_text,
)
from hespas.errors import AlgorithmError


def check_structure(program: Program) -> None:
    """Raise `AlgorithmError`, naming rank, threadblock and step, for an impossible program."""
    count = len(program.ranks)
    totals = {
        "its buffers have": count * (program.input_chunks + program.output_chunks)
        + sum(rank.scratch_chunks for rank in program.ranks),
        "its steps move": sum(step.count for *_, step in program.steps()),
    }
    for subject, total in totals.items():
        if total > MOST_ALGORITHM_CHUNKS:
            message = f"{subject} {total} chunks in all"
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
