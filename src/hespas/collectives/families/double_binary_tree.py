"""The double binary tree: each of two trees adds up half of the data and hands the sum down.

A leaf of one tree is an inner member of the other, so that everyone sends about as much. See
`hespas.collectives.patterns.tree_parent` for the trees and their source.
"""

from __future__ import annotations

from hespas.collectives.patterns import Form, Pattern, tree_depths
from hespas.collectives.schedule import (
    Collective,
    CollectiveAlgorithm,
    Message,
    Operation,
    Rounds,
    Schedule,
    cut_evenly,
)


def _part_of_channel(message: Message) -> range:
    return range(message.channel, message.channel + 1)


def _up_and_down(members: int, climb: Form, descend: Form) -> tuple[Rounds, ...]:
    depth = max(tree_depths(members))
    up = [
        Rounds(pattern=Pattern(climb, level), parts=_part_of_channel, operation=Operation.REDUCE)
        for level in range(depth, 0, -1)
    ]
    down = [
        Rounds(pattern=Pattern(descend, level), parts=_part_of_channel)
        for level in range(1, depth + 1)
    ]
    return (*up, *down)


def binary_tree_all_reduce(members: int) -> Schedule:
    """Return the sum of everything up one tree, level by level, and down again."""
    rounds = _up_and_down(members, Form.CLIMB, Form.DESCEND)
    return cut_evenly("binary-tree", Collective.ALL_REDUCE, members, rounds, parts=1)


def all_reduce(members: int) -> Schedule:
    """Return two trees at the same time, with half of the data each."""
    rounds = _up_and_down(members, Form.CLIMB_BOTH, Form.DESCEND_BOTH)
    name = "double-binary-tree"
    return cut_evenly(name, Collective.ALL_REDUCE, members, rounds, parts=2, channels=2)


ALGORITHM = CollectiveAlgorithm(
    name="double-binary-tree", schedules={Collective.ALL_REDUCE: all_reduce}
)
