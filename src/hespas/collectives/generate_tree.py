"""The double binary tree."""

from __future__ import annotations

from hespas.collectives.algorithm import (
    Algorithm,
    Collective,
    Step,
    StepId,
    StepKind,
    Threadblock,
)
from hespas.collectives.building import make_algorithm, step_on
from hespas.collectives.trees import Node, first_tree, second_tree


def double_binary_tree_all_reduce(ranks: int) -> Algorithm:
    """Return two trees, each of which sums up half of the buffer and hands the sum down.

    A leaf of one tree is an inner node of the other, so that everyone sends about as much.
    """

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        made: list[Threadblock] = []
        for chunk, node in enumerate((first_tree(rank, ranks), second_tree(rank, ranks))):
            made += _tree_blocks(node, chunk, first_id=len(made))
        return tuple(made)

    return make_algorithm("double_binary_tree", Collective.ALL_REDUCE, 2, blocks, ranks=ranks)


def _tree_blocks(node: Node, chunk: int, *, first_id: int) -> list[Threadblock]:
    """Return a threadblock for each neighbour; channel and chunk are the tree's number."""
    last: StepId | None = None
    steps: list[list[Step]] = []
    for number, _ in enumerate(node.children, first_id):
        after = None if last is None else [step_on(StepKind.NOP, 0, count=0, after=last)]
        steps.append([*(after or []), step_on(StepKind.RECEIVE_REDUCE_COPY, chunk)])
        last = StepId(number, len(steps[-1]) - 1)
    neighbours = list(node.children)
    if node.parent is not None:
        neighbours.append(node.parent)
        steps.append([step_on(StepKind.SEND, chunk, after=last), step_on(StepKind.RECEIVE, chunk)])
        last = StepId(first_id + len(node.children), 1)
    for index, _ in enumerate(node.children):
        steps[index].append(step_on(StepKind.SEND, chunk, after=last))
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
