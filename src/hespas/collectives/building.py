"""What the makers of the common algorithms share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hespas.collectives.algorithm import (
    Algorithm,
    Buffer,
    Collective,
    Place,
    Rank,
    Step,
    StepId,
    StepKind,
    Threadblock,
    chunk_counts,
)
from hespas.errors import AlgorithmError


def step_on(kind: StepKind, chunk: int, *, count: int = 1, after: StepId | None = None) -> Step:
    """Return a step on the same chunks at both ends: of the output, or in place, the input."""
    place = Place(Buffer.OUTPUT, chunk)
    return Step(kind=kind, source=place, target=place, count=count, after=after)


def make_algorithm(
    name: str,
    collective: Collective,
    chunks: int,
    blocks: Callable[[int], tuple[Threadblock, ...]],
    *,
    ranks: int,
    scratch_chunks: int = 0,
) -> Algorithm:
    """Return an algorithm in place, whose larger buffer has ``chunks``, from each rank's part.

    A reduce-scatter works in the input buffer, the others in the output. Raises
    `AlgorithmError` for fewer than two ranks.
    """
    if ranks < 2:
        raise AlgorithmError(f"{name} among {ranks} ranks", hint="give 2 or more")
    inputs, outputs = chunk_counts(collective, ranks, chunks)
    in_input = collective is Collective.REDUCE_SCATTER
    made = [blocks(rank) for rank in range(ranks)]
    if in_input:
        made = [tuple([_in_input(block) for block in of]) for of in made]
    return Algorithm(
        name=f"{name}_{collective.value}_{ranks}",
        collective=collective,
        input_chunks=inputs,
        output_chunks=outputs,
        is_in_place=True,
        ranks=tuple([Rank(scratch_chunks=scratch_chunks, threadblocks=of) for of in made]),
    )


def _in_input(block: Threadblock) -> Threadblock:
    """Return a threadblock that works in the input buffer, the larger of a reduce-scatter."""

    def moved(place: Place) -> Place:
        return Place(Buffer.INPUT, place.offset) if place.buffer is Buffer.OUTPUT else place

    steps = [
        replace(step, source=moved(step.source), target=moved(step.target)) for step in block.steps
    ]
    return replace(block, steps=tuple(steps))
