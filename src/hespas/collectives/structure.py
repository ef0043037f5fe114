"""Whether the steps of an algorithm speak of ranks, peers, steps and chunks that exist."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.collectives.algorithm import (
    Algorithm,
    Buffer,
    Place,
    Rank,
    Step,
    StepId,
    Threadblock,
    step_text,
)
from hespas.errors import AlgorithmError

Connection = tuple[int, int, int]
"""Sending rank, receiving rank, channel."""


def check_structure(algorithm: Algorithm) -> None:
    """Raise `AlgorithmError`, naming rank, threadblock and step, for what cannot be run.

    That is: fewer than two ranks, peers that are not there or the rank itself, steps that send
    or receive without a peer, two threadblocks with one channel to the same peer, steps that
    wait for absent ones, and chunks beyond a buffer's end.
    """
    count = len(algorithm.ranks)
    if count < 2 or not 0 <= algorithm.root < count:
        raise AlgorithmError(
            f"there are {count} ranks, and the root is {algorithm.root}", location=algorithm.name
        )
    for number, rank in enumerate(algorithm.ranks):
        for problem, where in _rank_problems(algorithm, number, rank):
            raise AlgorithmError(problem, location=f"{algorithm.name}: {where}")


def _rank_problems(algorithm: Algorithm, number: int, rank: Rank) -> Iterator[tuple[str, str]]:
    yield from _connection_problems(number, rank)
    ids = {StepId(block.id, i) for block in rank.threadblocks for i in range(len(block.steps))}
    sizes = {
        Buffer.INPUT: algorithm.input_chunks,
        Buffer.OUTPUT: algorithm.output_chunks,
        Buffer.SCRATCH: rank.scratch_chunks,
    }
    for block in rank.threadblocks:
        where = f"rank {number}, threadblock {block.id}"
        for peer in (block.send_peer, block.receive_peer):
            if peer is not None and (peer == number or not 0 <= peer < len(algorithm.ranks)):
                yield f"the peer {peer} is not another one of {len(algorithm.ranks)} ranks", where
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


def settled_place(algorithm: Algorithm, rank: int, place: Place) -> Place:
    """Return where a place really is: in place, one buffer is a part of the other.

    The larger buffer stands, and the output where both are equal.
    """
    if not algorithm.is_in_place or place.buffer is Buffer.SCRATCH:
        return place
    inputs, outputs = algorithm.input_chunks, algorithm.output_chunks
    small, large = (
        (Buffer.OUTPUT, Buffer.INPUT) if inputs > outputs else (Buffer.INPUT, Buffer.OUTPUT)
    )
    if place.buffer is large:
        return place
    own_part = 0 if inputs == outputs else rank * min(inputs, outputs)
    assert place.buffer is small  # noqa: S101 - the third buffer is scratch
    return Place(large, place.offset + own_part)
