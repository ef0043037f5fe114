"""Who sends to whom in one step of a collective, by positions in the list of members."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers


class Form(Enum):
    """The kinds of patterns; what ``first`` and ``last`` of a `Pattern` mean in each."""

    SHIFT = "everyone to the members first ... last places further, around the list"
    NEIGHBOURS = "everyone to the next and to the one before, around the list"
    EXCHANGE = "everyone to the member whose position differs in the bit first"
    PATH = "everyone but the last to the next"
    SPREAD = "the first `first` members each to the one `first` places further"
    COLLECT = "the reverse of SPREAD"
    FROM_ROOT = "the first member to all others"
    TO_ROOT = "all others to the first member"
    CLIMB = "members of depth first in a binary tree to their parents"
    DESCEND = "the reverse of CLIMB"
    BOTH_TREES = "everyone to its parents and children in two binary trees"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Messages of equal size at the same time.

    ``line`` is the dimension of the network along whose lines the members are arranged, each
    line by itself; None for the whole list.
    """

    form: Form
    first: int = 0
    last: int = 0
    line: int | None = None


def shift(first: int, last: int | None = None) -> Pattern:
    """Return the pattern `Form.SHIFT`."""
    return Pattern(Form.SHIFT, first, first if last is None else last)


def tree_parent(members: int, position: int) -> int:
    """Return the parent in a binary tree of any size, whose root, 0, has one child.

    Positions are in order: left of a member, the member, right of it.

    >>> [tree_parent(6, position) for position in range(1, 6)]
    [2, 4, 2, 0, 4]
    """
    lowest = position & -position
    parent = (position ^ lowest) | lowest << 1
    return parent if parent < members else position ^ lowest


@cache
def tree_depths(members: int) -> tuple[int, ...]:
    """Return how far each position is from the root.

    >>> tree_depths(6)
    (0, 3, 2, 3, 1, 2)
    """
    depths = [0] * members
    for position in range(1, members):
        at = position
        while at:
            at = tree_parent(members, at)
            depths[position] += 1
    return tuple(depths)


def ends(  # noqa: PLR0911 - one for each form
    pattern: Pattern, members: int
) -> tuple[Integers, Integers]:
    """Return the positions of the sources and of the targets of a pattern's messages."""
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
        case Form.BOTH_TREES:
            child, parent = _tree_edges(members, None)
            mirrored = members - 1 - child, members - 1 - parent
            low = np.concatenate((child, mirrored[0]))
            high = np.concatenate((parent, mirrored[1]))
            return np.concatenate((low, high)), np.concatenate((high, low))
        case _:
            assert_never(pattern.form)


def _tree_edges(members: int, depth: int | None) -> tuple[Integers, Integers]:
    import numpy as np  # noqa: PLC0415 - as above

    depths = tree_depths(members)
    children = [at for at in range(1, members) if depth is None or depths[at] == depth]
    parents = [tree_parent(members, at) for at in children]
    return np.array(children, dtype=np.int64), np.array(parents, dtype=np.int64)
