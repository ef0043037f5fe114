"""The double binary tree: the whole chunk goes up a tree and down again.

Source: ASTRA-sim's double binary tree. A tree is perfect but for its root, which has one child,
and numbered in order; chunks take the two trees, mirror images of each other, in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from hespas.errors import SimulationError
from hespas.simulate.events.post import Box
from hespas.simulate.events.seat import Running, Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A member's neighbours in a tree, as positions."""

    parent: int | None
    children: tuple[int, ...]


def tree_node(members: int, position: int, *, is_mirrored: bool) -> Node:
    """Return the place of a member in the tree whose root is the last, or mirrored, the first.

    >>> tree_node(4, 1, is_mirrored=False)
    Node(parent=3, children=(0, 2))
    """
    if is_mirrored:
        node = tree_node(members, members - 1 - position, is_mirrored=False)
        parent = None if node.parent is None else members - 1 - node.parent
        children = tuple([members - 1 - child for child in reversed(node.children)])
        return Node(parent=parent, children=children)
    number = position + 1
    height = number & -number  # 1 for leaves, 2 for their parents, and so on
    if number == members:
        return Node(parent=None, children=(members // 2 - 1,))
    parent = number + height if number & height * 2 == 0 else number - height
    parent = min(parent, members)
    half = height // 2
    children = (number - half - 1, number + half - 1) if half else ()
    return Node(parent=parent - 1, children=children)


def double_binary_tree(seat: Seat) -> Running:
    """Return the double binary tree, which always reduces the whole chunk among all members.

    Raises `SimulationError` among a number that isn't a power of two.
    """
    n = len(seat.members)
    if n & n - 1:
        raise SimulationError(f"doubleBinaryTree among {n}, which is not a power of two")
    return _TreeMember(seat, tree_node(n, seat.position, is_mirrored=seat.tree == 1))


class _TreeMember:
    __slots__ = ("_missing", "_node", "_seat")

    def __init__(self, seat: Seat, node: Node) -> None:
        self._seat = seat
        self._node = node
        self._missing = len(node.children)

    def start(self) -> None:
        if not self._node.children:
            self._seat.wait(self._send_up)
        for child in self._node.children:
            self._seat.post.receive(self._box_from(child), self._take)

    def _box_to(self, position: int) -> Box:
        return self._seat.box_to(position - self._seat.position, self._seat.size_bytes)

    def _box_from(self, position: int) -> Box:
        return self._seat.box_from(position - self._seat.position, self._seat.size_bytes)

    def _reduce_ps(self) -> int | None:
        return self._seat.reduce_ps(self._seat.size_bytes) if self._node.children else None

    def _take(self, _: object) -> None:
        self._seat.wait(self._count, reduce_ps=self._reduce_ps())

    def _count(self, _: object) -> None:
        self._missing -= 1
        if self._missing:
            return
        if self._node.parent is None:
            self._send_down(None)
        else:
            self._send_up(None)

    def _send_up(self, _: object) -> None:
        parent = self._node.parent
        if parent is None:
            return
        self._seat.post.send(self._box_to(parent))
        self._seat.post.receive(self._box_from(parent), self._take_result)

    def _take_result(self, _: object) -> None:
        self._seat.wait(self._send_down, reduce_ps=self._reduce_ps())

    def _send_down(self, _: object) -> None:
        for child in self._node.children:
            self._seat.post.send(self._box_to(child))
        self._seat.done()
