"""Direct: every rank sends to every other at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hespas.collectives.algorithm import (
    Algorithm,
    Buffer,
    Collective,
    Place,
    Step,
    StepId,
    StepKind,
    Threadblock,
)
from hespas.collectives.building import make_algorithm, step_on


def _exchange(rank: int, ranks: int, steps: Callable[[int, int], list[Step]]) -> list[Threadblock]:
    """Return a threadblock for each other rank; ``steps`` gets its id and the other rank."""
    others = [(rank + distance) % ranks for distance in range(1, ranks)]
    return [
        Threadblock(
            id=number,
            send_peer=other,
            receive_peer=other,
            channel=0,
            steps=tuple(steps(number, other)),
        )
        for number, other in enumerate(others)
    ]


def direct_all_gather(ranks: int) -> Algorithm:
    """Return the algorithm in which every rank sends its chunk to every other at once."""

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        return tuple(
            _exchange(
                rank,
                ranks,
                lambda _, other: [step_on(StepKind.SEND, rank), step_on(StepKind.RECEIVE, other)],
            )
        )

    return make_algorithm("direct", Collective.ALL_GATHER, ranks, blocks, ranks=ranks)


def direct_all_to_all(ranks: int) -> Algorithm:
    """Return the algorithm in which every rank sends every other its chunk at once."""

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        def steps(_: int, other: int) -> list[Step]:
            outgoing, incoming = Place(Buffer.INPUT, other), Place(Buffer.OUTPUT, other)
            return [
                Step(kind=kind, source=outgoing, target=incoming, count=1)
                for kind in (StepKind.SEND, StepKind.RECEIVE)
            ]

        own = Step(
            kind=StepKind.COPY,
            source=Place(Buffer.INPUT, rank),
            target=Place(Buffer.OUTPUT, rank),
            count=1,
        )
        copy = Threadblock(id=ranks - 1, send_peer=None, receive_peer=None, channel=0, steps=(own,))
        return (*_exchange(rank, ranks, steps), copy)

    made = make_algorithm("direct", Collective.ALL_TO_ALL, ranks, blocks, ranks=ranks)
    return replace(made, is_in_place=False)


def _direct_scatter(rank: int, ranks: int) -> tuple[list[Threadblock], list[Step]]:
    """Return threadblocks that bring others' parts of the rank's chunk, and steps that add them."""
    blocks = _exchange(
        rank,
        ranks,
        lambda number, other: [
            step_on(StepKind.SEND, other),
            Step(
                kind=StepKind.RECEIVE,
                source=Place(Buffer.OUTPUT, rank),
                target=Place(Buffer.SCRATCH, number),
                count=1,
            ),
        ],
    )
    adding = [
        Step(
            kind=StepKind.REDUCE,
            source=Place(Buffer.SCRATCH, block.id),
            target=Place(Buffer.OUTPUT, rank),
            count=1,
            after=StepId(block.id, 1),
        )
        for block in blocks
    ]
    return blocks, adding


def direct_reduce_scatter(ranks: int) -> Algorithm:
    """Return the algorithm in which every rank gets all parts of its chunk at once."""

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        exchanges, adding = _direct_scatter(rank, ranks)
        local = Threadblock(
            id=len(exchanges), send_peer=None, receive_peer=None, channel=0, steps=tuple(adding)
        )
        return (*exchanges, local)

    return make_algorithm(
        "direct", Collective.REDUCE_SCATTER, ranks, blocks, ranks=ranks, scratch_chunks=ranks - 1
    )


def direct_all_reduce(ranks: int) -> Algorithm:
    """Return the direct reduce-scatter, and then the direct all-gather."""

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        exchanges, adding = _direct_scatter(rank, ranks)
        last = StepId(len(exchanges), len(adding) - 1)
        gathers = [
            replace(
                block,
                steps=(
                    *block.steps,
                    step_on(StepKind.SEND, rank, after=last),
                    step_on(StepKind.RECEIVE, 0 if block.send_peer is None else block.send_peer),
                ),
            )
            for block in exchanges
        ]
        local = Threadblock(
            id=len(exchanges), send_peer=None, receive_peer=None, channel=0, steps=tuple(adding)
        )
        return (*gathers, local)

    return make_algorithm(
        "direct", Collective.ALL_REDUCE, ranks, blocks, ranks=ranks, scratch_chunks=ranks - 1
    )
