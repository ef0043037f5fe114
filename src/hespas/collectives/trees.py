"""Two binary trees over the same ranks, in which inner nodes of one are leaves of the other.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan" (2009), with the numbering of NCCL's trees.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A rank's neighbours in a tree."""

    parent: int | None
    children: tuple[int, ...]


def first_tree(rank: int, ranks: int) -> Node:
    """Return a rank's place in the tree of in-order numbers whose root is rank 0.

    The lowest bit set in a number is its height above the leaves, which are odd. A child whose
    number would be too large is replaced by the next one down on that side.

    >>> first_tree(0, 8), first_tree(4, 8)
    (Node(parent=None, children=(4,)), Node(parent=0, children=(2, 6)))
    """
    if rank == 0:
        below = 1 << (ranks - 1).bit_length() - 1
        return Node(parent=None, children=(below,) if ranks > 1 else ())
    height = rank & -rank
    parent = (rank ^ height) | height << 1
    if parent >= ranks:
        parent = rank ^ height
    below = height >> 1
    left = (rank - below,) if below else ()
    while below and rank + below >= ranks:
        below >>= 1
    right = (rank + below,) if below else ()
    return Node(parent=parent, children=left + right)


def second_tree(rank: int, ranks: int) -> Node:
    """Return a rank's place in the other tree: mirrored for an even number, else shifted by one.

    >>> second_tree(7, 8)
    Node(parent=None, children=(3,))
    """

    def renamed(other: int) -> int:
        return ranks - 1 - other if ranks % 2 == 0 else (other + 1) % ranks

    node = first_tree(ranks - 1 - rank if ranks % 2 == 0 else (rank - 1) % ranks, ranks)
    return Node(
        parent=None if node.parent is None else renamed(node.parent),
        children=tuple([renamed(child) for child in node.children]),
    )
