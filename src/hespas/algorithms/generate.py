"""The common algorithms, written out: ring, direct, halving-doubling, double binary tree.

Sources: the ring and recursive halving and doubling of Thakur, Rabenseifner and Gropp (2005);
the two trees of Sanders, Speck and Traeff (2009), numbered as NCCL numbers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hespas.algorithms.algorithm import (
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
from hespas.algorithms.trees import Node, first_tree, second_tree
from hespas.errors import AlgorithmError

_K = StepKind
_C = Collective


def _at(kind: StepKind, chunk: int, *, count: int = 1, after: StepId | None = None) -> Step:
    """Return a step on the same chunks at both ends: of the output, or in place, the input."""
    place = Place(Buffer.OUTPUT, chunk)
    return Step(kind=kind, source=place, target=place, count=count, after=after)


def _algorithm(
    name: str,
    collective: Collective,
    chunks: int,
    blocks: Callable[[int], tuple[Threadblock, ...]],
    *,
    ranks: int,
    scratch_chunks: int = 0,
) -> Algorithm:
    if ranks < 2:
        raise AlgorithmError(f"{name} among {ranks} ranks", mend="give 2 or more")
    inputs, outputs = chunk_counts(collective, ranks, chunks)
    in_input = collective is _C.REDUCE_SCATTER
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


def _ring(collective: Collective, ranks: int, steps: Callable[[int], list[Step]]) -> Algorithm:
    def blocks(rank: int) -> tuple[Threadblock, ...]:
        block = Threadblock(
            id=0,
            send_peer=(rank + 1) % ranks,
            receive_peer=(rank - 1) % ranks,
            channel=0,
            steps=tuple(steps(rank)),
        )
        return (block,)

    return _algorithm("ring", collective, ranks, blocks, ranks=ranks)


def _ring_scatter(rank: int, ranks: int, *, first: int) -> list[Step]:
    """Return steps after which the rank holds the sum of chunk ``first + 1 - ranks``."""
    steps = [_at(_K.SEND, (rank + first) % ranks)]
    for hop in range(1, ranks):
        chunk = (rank + first - hop) % ranks
        steps.append(_at(_K.RECEIVE_REDUCE_COPY, chunk))
        if hop < ranks - 1:
            steps.append(_at(_K.SEND, chunk))
    return steps


def _ring_gather(rank: int, ranks: int, *, first: int) -> list[Step]:
    """Return steps that hand chunks on, beginning with ``first`` past the rank's own number."""
    steps: list[Step] = []
    for hop in range(ranks - 1):
        steps.append(_at(_K.SEND, (rank + first - hop) % ranks))
        steps.append(_at(_K.RECEIVE, (rank + first - hop - 1) % ranks))
    return steps


def ring_all_reduce(ranks: int) -> Algorithm:
    """Return the ring: every chunk goes around once to be summed up, and once to be known."""
    return _ring(
        _C.ALL_REDUCE,
        ranks,
        lambda rank: [
            *_ring_scatter(rank, ranks, first=0),
            *_ring_gather(rank, ranks, first=1),
        ],
    )


def ring_reduce_scatter(ranks: int) -> Algorithm:
    """Return the ring's first half, at whose end a rank has the sum of its own chunk."""
    return _ring(_C.REDUCE_SCATTER, ranks, lambda rank: _ring_scatter(rank, ranks, first=ranks - 1))


def ring_all_gather(ranks: int) -> Algorithm:
    """Return the ring's second half, which begins with the rank's own chunk."""
    return _ring(_C.ALL_GATHER, ranks, lambda rank: _ring_gather(rank, ranks, first=0))


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
            _exchange(rank, ranks, lambda _, other: [_at(_K.SEND, rank), _at(_K.RECEIVE, other)])
        )

    return _algorithm("direct", _C.ALL_GATHER, ranks, blocks, ranks=ranks)


def direct_all_to_all(ranks: int) -> Algorithm:
    """Return the algorithm in which every rank sends every other its chunk at once."""

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        def steps(_: int, other: int) -> list[Step]:
            outgoing, incoming = Place(Buffer.INPUT, other), Place(Buffer.OUTPUT, other)
            return [
                Step(kind=kind, source=outgoing, target=incoming, count=1)
                for kind in (_K.SEND, _K.RECEIVE)
            ]

        own = Step(
            kind=_K.COPY,
            source=Place(Buffer.INPUT, rank),
            target=Place(Buffer.OUTPUT, rank),
            count=1,
        )
        copy = Threadblock(id=ranks - 1, send_peer=None, receive_peer=None, channel=0, steps=(own,))
        return (*_exchange(rank, ranks, steps), copy)

    made = _algorithm("direct", _C.ALL_TO_ALL, ranks, blocks, ranks=ranks)
    return replace(made, is_in_place=False)


def _direct_scatter(rank: int, ranks: int) -> tuple[list[Threadblock], list[Step]]:
    """Return threadblocks that bring others' parts of the rank's chunk, and steps that add them."""
    blocks = _exchange(
        rank,
        ranks,
        lambda number, other: [
            _at(_K.SEND, other),
            Step(
                kind=_K.RECEIVE,
                source=Place(Buffer.OUTPUT, rank),
                target=Place(Buffer.SCRATCH, number),
                count=1,
            ),
        ],
    )
    adding = [
        Step(
            kind=_K.REDUCE,
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

    return _algorithm(
        "direct", _C.REDUCE_SCATTER, ranks, blocks, ranks=ranks, scratch_chunks=ranks - 1
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
                    _at(_K.SEND, rank, after=last),
                    _at(_K.RECEIVE, 0 if block.send_peer is None else block.send_peer),
                ),
            )
            for block in exchanges
        ]
        local = Threadblock(
            id=len(exchanges), send_peer=None, receive_peer=None, channel=0, steps=tuple(adding)
        )
        return (*gathers, local)

    return _algorithm("direct", _C.ALL_REDUCE, ranks, blocks, ranks=ranks, scratch_chunks=ranks - 1)


def _halving(rank: int, ranks: int) -> list[tuple[int, int, int, int]]:
    """Return (partner, first chunk to send, first chunk to keep, count) of every halving."""
    found: list[tuple[int, int, int, int]] = []
    first, count = 0, ranks
    while count > 1:
        count //= 2
        is_upper = bool(rank & count)
        keep, give = (first + count, first) if is_upper else (first, first + count)
        found.append((rank ^ count, give, keep, count))
        first = keep
    return found


def _halving_doubling(collective: Collective, ranks: int) -> Algorithm:
    if ranks < 2 or ranks & ranks - 1:
        raise AlgorithmError(f"halving-doubling among {ranks} ranks, which is not a power of two")

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        found = _halving(rank, ranks)
        levels = range(len(found))
        steps: list[list[Step]] = [[] for _ in found]
        last: StepId | None = None
        order = [(level, True) for level in levels if collective is not _C.ALL_GATHER]
        order += [
            (level, False) for level in reversed(levels) if collective is not _C.REDUCE_SCATTER
        ]
        for level, halves in order:
            _, give, keep, count = found[level]
            # What is given away in halving comes back in doubling.
            outgoing, incoming = (give, keep) if halves else (keep, give)
            kind = _K.RECEIVE_REDUCE_COPY if halves else _K.RECEIVE
            steps[level] += [
                _at(_K.SEND, outgoing, count=count, after=last),
                _at(kind, incoming, count=count),
            ]
            last = StepId(level, len(steps[level]) - 1)
        return tuple([
            Threadblock(
                id=level,
                send_peer=partner,
                receive_peer=partner,
                channel=0,
                steps=tuple(steps[level]),
            )
            for level, (partner, *_) in enumerate(found)
        ])  # fmt: skip

    return _algorithm("halving_doubling", collective, ranks, blocks, ranks=ranks)


def halving_doubling_all_reduce(ranks: int) -> Algorithm:
    """Return recursive halving and then doubling; raises `AlgorithmError` but for powers of 2."""
    return _halving_doubling(_C.ALL_REDUCE, ranks)


def halving_doubling_reduce_scatter(ranks: int) -> Algorithm:
    """Return recursive halving; raises `AlgorithmError` but for powers of two."""
    return _halving_doubling(_C.REDUCE_SCATTER, ranks)


def halving_doubling_all_gather(ranks: int) -> Algorithm:
    """Return recursive doubling; raises `AlgorithmError` but for powers of two."""
    return _halving_doubling(_C.ALL_GATHER, ranks)


def double_binary_tree_all_reduce(ranks: int) -> Algorithm:
    """Return two trees, each of which sums up half of the buffer and hands the sum down.

    A leaf of one tree is an inner node of the other, so that everyone sends about as much.
    """

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        made: list[Threadblock] = []
        for chunk, node in enumerate((first_tree(rank, ranks), second_tree(rank, ranks))):
            made += _tree_blocks(node, chunk, first_id=len(made))
        return tuple(made)

    return _algorithm("double_binary_tree", _C.ALL_REDUCE, 2, blocks, ranks=ranks)


def _tree_blocks(node: Node, chunk: int, *, first_id: int) -> list[Threadblock]:
    """Return a threadblock for each neighbour; channel and chunk are the tree's number."""
    last: StepId | None = None
    steps: list[list[Step]] = []
    for number, _ in enumerate(node.children, first_id):
        after = None if last is None else [_at(_K.NOP, 0, count=0, after=last)]
        steps.append([*(after or []), _at(_K.RECEIVE_REDUCE_COPY, chunk)])
        last = StepId(number, len(steps[-1]) - 1)
    neighbours = list(node.children)
    if node.parent is not None:
        neighbours.append(node.parent)
        steps.append([_at(_K.SEND, chunk, after=last), _at(_K.RECEIVE, chunk)])
        last = StepId(first_id + len(node.children), 1)
    for index, _ in enumerate(node.children):
        steps[index].append(_at(_K.SEND, chunk, after=last))
    return [
        Threadblock(
            id=first_id + index,
            send_peer=neighbour,
            receive_peer=neighbour,
            channel=chunk,
            steps=tuple(steps[index]),
        )
        for index, neighbour in enumerate(neighbours)
    ]


GENERATORS: Mapping[tuple[str, Collective], Callable[[int], Algorithm]] = {
    ("ring", _C.ALL_REDUCE): ring_all_reduce,
    ("ring", _C.REDUCE_SCATTER): ring_reduce_scatter,
    ("ring", _C.ALL_GATHER): ring_all_gather,
    ("direct", _C.ALL_REDUCE): direct_all_reduce,
    ("direct", _C.REDUCE_SCATTER): direct_reduce_scatter,
    ("direct", _C.ALL_GATHER): direct_all_gather,
    ("direct", _C.ALL_TO_ALL): direct_all_to_all,
    ("halving-doubling", _C.ALL_REDUCE): halving_doubling_all_reduce,
    ("halving-doubling", _C.REDUCE_SCATTER): halving_doubling_reduce_scatter,
    ("halving-doubling", _C.ALL_GATHER): halving_doubling_all_gather,
    ("double-binary-tree", _C.ALL_REDUCE): double_binary_tree_all_reduce,
}
"""The algorithms by name and collective, each for a number of ranks."""
