"""Patterns of messages among members, their trees and loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import prod
from typing import TYPE_CHECKING, TypeAlias, TypeVar, assert_never

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]

_Numbers = TypeVar("_Numbers", int, "Integers")


class Form(Enum):
    """The forms of patterns, as text; positions wrap around the members."""

    SHIFT = "each to the members {first} to {last} further"
    NEIGHBOURS = "each to the next and to the previous member"
    EXCHANGE = "each to the member whose position differs in the bit {first}"
    PATH = "each but the last to the next member"
    SPREAD = "the first {first} members each to the one {first} further"
    COLLECT = "members {first} and up, at most {first} of them, each to the one {first} before"
    FROM_ROOT = "the first member to all others"
    TO_ROOT = "all others to the first member"
    CLIMB = "members of depth {first} in a binary tree to their parents"
    DESCEND = "parents to their children of depth {first} in a binary tree"
    CLIMB_BOTH = "members of depth {first} in each of two binary trees to their parents"
    DESCEND_BOTH = "parents to their children of depth {first} in each of two binary trees"
    BOTH_TREES = "each to its parents and children in two binary trees"


class Along(Enum):
    """Sets of dimensions: with neighbour links, or between nodes."""

    LOOP = "around a loop through all of them"
    EVERY_AXIS = "along every axis"
    RAILS = "from node to node, once for each member of a node"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Concurrent messages of equal size: a form and its numbers.

    With ``line`` the pattern runs separately in each line of members along that network dimension,
    or along several dimensions at once; None is the whole list.
    """

    form: Form
    first: int = 0
    last: int = 0
    line: int | Along | None = None


def shift(first: int, last: int | None = None) -> Pattern:
    """Return the pattern `Form.SHIFT`, of one distance or of several."""
    return Pattern(Form.SHIFT, first, first if last is None else last)


def ends(  # noqa: C901, PLR0911 - one case for each form
    pattern: Pattern, members: int
) -> tuple[Integers, Integers]:
    """Return the source and target positions of a pattern's messages.

    >>> [array.tolist() for array in ends(shift(1), 3)]
    [[0, 1, 2], [1, 2, 0]]
    """
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    every = np.arange(members, dtype=np.int64)
    match pattern.form:
        case Form.SHIFT:
            distances = np.arange(pattern.first, pattern.last + 1, dtype=np.int64)
            sources = np.repeat(every, len(distances))
            return sources, (sources + np.tile(distances, members)) % members
        case Form.NEIGHBOURS:
            return np.tile(every, 2), np.concatenate((every + 1, every - 1)) % members
        case Form.EXCHANGE:
            return every, every ^ pattern.first
        case Form.PATH:
            return every[:-1], every[1:]
        case Form.SPREAD | Form.COLLECT:
            near = every[: max(0, min(pattern.first, members - pattern.first))]
            far = near + pattern.first
            return (near, far) if pattern.form is Form.SPREAD else (far, near)
        case Form.FROM_ROOT:
            return np.zeros(members - 1, dtype=np.int64), every[1:]
        case Form.TO_ROOT:
            return every[1:], np.zeros(members - 1, dtype=np.int64)
        case Form.CLIMB | Form.DESCEND:
            child, parent = _tree_edges(members, pattern.first)
            return (child, parent) if pattern.form is Form.CLIMB else (parent, child)
        case Form.CLIMB_BOTH | Form.DESCEND_BOTH:
            child, parent = _edges_of_both(members, pattern.first)
            return (child, parent) if pattern.form is Form.CLIMB_BOTH else (parent, child)
        case Form.BOTH_TREES:
            child, parent = _edges_of_both(members, None)
            return np.concatenate((child, parent)), np.concatenate((parent, child))
        case _:
            assert_never(pattern.form)


def messages(pattern: Pattern, members: int) -> Iterator[tuple[int, int, int]]:
    """Yield the (source, target, channel) of a pattern's messages.

    Only patterns of two structures, two directions or two trees, have a channel 1.

    >>> list(messages(Pattern(Form.NEIGHBOURS), 2))
    [(0, 1, 0), (1, 0, 0), (0, 1, 1), (1, 0, 1)]
    """
    sources, targets = ends(pattern, members)
    overlaid = (Form.NEIGHBOURS, Form.CLIMB_BOTH, Form.DESCEND_BOTH)
    half = len(sources) // 2 if pattern.form in overlaid else len(sources)
    for index, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        yield source, target, int(index >= half)


def messages_per_member(pattern: Pattern, members: int) -> int:
    """Return the most messages that one member sends.

    >>> messages_per_member(shift(1, 3), 8)
    3
    """
    match pattern.form:
        case Form.SHIFT:
            return pattern.last - pattern.first + 1
        case Form.NEIGHBOURS:
            return 2
        case Form.FROM_ROOT:
            return members - 1
        case _:
            return 1


def tree_parent(members: int, position: _Numbers) -> _Numbers:
    """Return a position's parent in a binary tree.

    The root, 0, has one child. Positions are in order: left subtree, member, right subtree. The
    lowest bit set in a position is its height above the leaves, which are odd. Source: NCCL's
    trees.

    >>> [tree_parent(6, position) for position in range(1, 6)]
    [2, 4, 2, 0, 4]
    """
    lowest = position & -position
    parent = (position ^ lowest) | lowest << 1
    # Where there is no such member, it is that of the next level.
    return parent - (parent >= members) * (lowest << 1)


def second_tree_position(members: int, position: _Numbers) -> _Numbers:
    """Return the member at a position of the second tree.

    The tree has the shape of `tree_parent`. It is mirrored for an even number of members, else
    shifted by one, so a leaf of one tree is an inner member of the other. Source: Sanders, Speck
    and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009), as
    NCCL numbers them.

    >>> [second_tree_position(4, position) for position in range(4)]
    [3, 2, 1, 0]
    """
    return members - 1 - position if members % 2 == 0 else (position + 1) % members


@cache
def tree_depths(members: int) -> Integers:
    """Return each position's distance from the root of `tree_parent`'s tree.

    >>> tree_depths(6).tolist()
    [0, 3, 2, 3, 1, 2]
    """
    import numpy as np  # noqa: PLC0415 - as above

    ancestors = np.arange(members, dtype=np.int64)
    parents, depths = tree_parent(members, ancestors), np.zeros_like(ancestors)
    while ancestors.any():
        depths += ancestors > 0
        ancestors = parents[ancestors]
    return depths


def _tree_edges(members: int, depth: int | None) -> tuple[Integers, Integers]:
    """Return children, of one depth or all, and their parents."""
    depths = tree_depths(members)
    (children,) = (depths > 0 if depth is None else depths == depth).nonzero()
    return children, tree_parent(members, children)


def _edges_of_both(members: int, depth: int | None) -> tuple[Integers, Integers]:
    import numpy as np  # noqa: PLC0415 - as above

    child, parent = _tree_edges(members, depth)
    second = [second_tree_position(members, ends) for ends in (child, parent)]
    return np.concatenate((child, second[0])), np.concatenate((parent, second[1]))


def loop_through(sizes: Sequence[int], *, is_closed: bool = False) -> tuple[int, ...]:
    """Return a loop through the positions of a box.

    Positions count along the first side first. Neighbours in the loop are neighbours in the box,
    also the last and the first if a side is even. For one side, ``is_closed`` says that its ends
    are neighbours; otherwise the loop goes out by every second position and back by the others. If
    no side is even, the way from the last back to the first is longer.

    >>> loop_through([4], is_closed=True), loop_through([4])
    ((0, 1, 2, 3), (0, 2, 3, 1))
    >>> loop_through([2, 4])
    (2, 4, 6, 7, 5, 3, 1, 0)
    """
    if len(sizes) == 1:
        (size,) = sizes
        if is_closed:
            return tuple(range(size))
        return (*range(0, size, 2), *reversed(range(1, size, 2)))
    strides = [prod(sizes[:axis]) for axis in range(len(sizes))]
    even = next((axis for axis, size in enumerate(sizes) if size % 2 == 0), None)
    if even is None:
        return tuple(_path(sizes, strides))
    across = [axis for axis in range(len(sizes)) if axis != even]
    column = list(_path([sizes[axis] for axis in across], [strides[axis] for axis in across]))
    rows = [row * strides[even] for row in range(sizes[even])]
    # Up and down all columns except the first, row by row, then back along the first one.
    outward = [
        row + position
        for number, row in enumerate(rows)
        for position in (column[1:] if number % 2 == 0 else column[:0:-1])
    ]
    return (*outward, *[row + column[0] for row in reversed(rows)])


def _path(sizes: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """Yield a box's positions, each next to the preceding one."""
    *inner, size = sizes
    *inner_strides, stride = strides
    if not inner:
        yield from (position * stride for position in range(size))
        return
    for step in range(size):
        row = list(_path(inner, inner_strides))
        yield from (step * stride + position for position in (row[::-1] if step % 2 else row))
