"""The algorithms of ASTRA-sim, message by message, for one member of one logical ring.

Each message is handed in, waits at the endpoint, and makes a token, which allows to send; each one
that comes is handed in again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind
from hespas.simulate.astra.closed_forms import halving_doubling_steps, message_bytes, ring_steps
from hespas.simulate.astra.events.network import Box, Boxes, Post
from hespas.simulate.kernel import Action, ActorQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One member's place in one phase of one chunk of a collective.

    ``members`` are the devices of the logical ring, ``position`` is the own one among them, and
    ``direction`` is 1, or -1 for a ring that turns backwards. ``size_bytes`` is the phase's.
    ``known_boxes`` are those of ``tag`` that the post has made so far. ``tree`` alternates
    between 0 and 1 for the two trees. ``done`` is called at the end.
    """

    alarms: ActorQueue
    post: Post
    known_boxes: Boxes
    tag: Hashable
    members: Sequence[int]
    position: int
    direction: int
    kind: CollectiveKind
    size_bytes: int
    endpoint_ps: int
    reduce_ps: Callable[[int], int]
    is_subgroup: bool
    tree: int
    done: Callable[[], None]

    def boxes(self, distance: int, size_bytes: int) -> tuple[Box, Box]:
        """Return where to send at a distance in the ring, and where the like of it comes from."""
        distance *= self.direction
        return (self.box_to(distance, size_bytes), self.box_from(-distance, size_bytes))

    def box_to(self, distance: int, size_bytes: int) -> Box:
        """Return the box for messages to the member at a distance."""
        members = self.members
        other = members[(self.position + distance) % len(members)]
        key = (members[self.position], other, size_bytes)
        return self.known_boxes.get(key) or self.post.box(self.tag, *key)

    def box_from(self, distance: int, size_bytes: int) -> Box:
        """Return the box of messages from the member at a distance."""
        members = self.members
        other = members[(self.position + distance) % len(members)]
        key = (other, members[self.position], size_bytes)
        return self.known_boxes.get(key) or self.post.box(self.tag, *key)

    def wait(self, act: Action, *, reduce_ps: int | None = None) -> None:
        """Have ``act`` called after the endpoint's delay, and then a reduction if there is one."""
        if reduce_ps is None:
            self.alarms.after(self.endpoint_ps, act)
        else:
            self.alarms.after(self.endpoint_ps, self._reduce, (reduce_ps, act))

    def _reduce(self, reduction: tuple[int, Action]) -> None:
        # Even a reduction that takes no time goes behind what else is set for this instant.
        self.alarms.after(*reduction)


class Running(Protocol):
    """An algorithm that runs for one member."""

    def start(self) -> None:
        """Begin."""
        ...


_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


def ring(seat: Seat) -> Running:
    """Return the ring algorithm: every message goes to the next member."""
    n = len(seat.members)
    size_bytes = message_bytes(seat.kind, n, seat.size_bytes)
    reductions: list[int] = []
    if seat.kind in _REDUCING:
        reductions = [seat.reduce_ps(size_bytes)] * (n - 1)
    return _Relay(seat, [seat.boxes(1, size_bytes)], ring_steps(seat.kind, n), reductions)


def halving_doubling(seat: Seat) -> Running:
    """Return halving-doubling: the k-th message goes across 2**k members.

    Raises `SimulationError` among a number that isn't a power of two, and for an all-to-all.
    """
    steps = halving_doubling_steps(seat.kind, len(seat.members), seat.size_bytes)
    pairs = [_partner_boxes(seat, distance, size_bytes) for distance, size_bytes in steps]
    levels = len(seat.members).bit_length() - 1
    reductions: list[int] = []
    if seat.kind in _REDUCING:
        reductions = [seat.reduce_ps(size_bytes) for _, size_bytes in steps[1:levels]]
    return _Relay(seat, pairs, len(steps), reductions)


def _partner_boxes(seat: Seat, distance: int, size_bytes: int) -> tuple[Box, Box]:
    away = distance if seat.position // distance % 2 == 0 else -distance
    return seat.box_to(away, size_bytes), seat.box_from(away, size_bytes)


class _Relay:
    """``steps`` messages through ``pairs`` in turn; after the first, some are reduced."""

    __slots__ = ("_in_hand", "_left", "_next", "_pairs", "_reductions", "_seat", "_tokens")

    def __init__(
        self, seat: Seat, pairs: Sequence[tuple[Box, Box]], steps: int, reductions: Sequence[int]
    ) -> None:
        self._seat = seat
        self._pairs = pairs
        self._left = steps
        self._reductions = iter((None, *reductions))
        self._next = self._tokens = self._in_hand = 0

    def start(self) -> None:
        self._hand_in(None)

    def _hand_in(self, _: object) -> None:
        self._in_hand += 1
        self._seat.wait(self._take_token, reduce_ps=next(self._reductions, None))

    def _take_token(self, _: object) -> None:
        self._tokens += 1
        if self._left and self._in_hand:
            self._send()
        if self._left == 0 and self._tokens == 1:
            self._seat.done()

    def _send(self) -> None:
        outgoing, incoming = self._pairs[self._next % len(self._pairs)]
        self._next += 1
        self._left -= 1
        self._tokens -= 1
        self._in_hand -= 1
        post = self._seat.post
        post.send(outgoing)
        post.receive(incoming, self._hand_in)


class Direct:
    """Of the messages handed in, message k is for the ``k mod peers``-th next member.

    Each makes a token when it is through the endpoint, and a token allows to send. An
    all-reduce does everything twice; its second half begins when all of the first has come.
    """

    __slots__ = (
        "_boxes",
        "_handed_in",
        "_is_all_reduce",
        "_is_odd_round",
        "_left",
        "_peers",
        "_plain_left",
        "_queue",
        "_received",
        "_reduce_ps",
        "_reduced_left",
        "_seat",
        "_size_bytes",
        "_tokens",
        "_window",
    )

    def __init__(self, seat: Seat, window: int | None) -> None:
        self._seat = seat
        self._peers = len(seat.members) - 1
        self._window = min(window or self._peers, self._peers)
        self._is_all_reduce = seat.kind is CollectiveKind.ALL_REDUCE
        self._size_bytes = message_bytes(seat.kind, len(seat.members), seat.size_bytes)
        self._reduce_ps = seat.reduce_ps(self._size_bytes)
        self._left = self._peers * (2 if self._is_all_reduce else 1)
        self._queue: deque[int] = deque()
        # The second half of an all-reduce goes through the boxes of the first again.
        self._boxes: dict[int, tuple[Box, Box]] = {}
        self._handed_in = self._received = self._tokens = 0
        self._plain_left = self._reduced_left = 0
        self._is_odd_round = False

    def start(self) -> None:
        """Hand in as many messages as the window allows."""
        for _ in range(self._window):
            self._hand_in()

    def _hand_in(self) -> None:
        self._queue.append(self._handed_in % self._peers + 1)
        self._handed_in += 1
        reduce_ps = self._reduce_ps if self._is_reduced() else None
        self._seat.wait(self._take_token, reduce_ps=reduce_ps)

    def _is_reduced(self) -> bool:
        if self._plain_left == self._reduced_left == 0:
            each = self._peers if self._seat.is_subgroup else 1
            self._plain_left, self._reduced_left = self._window, each * self._window
            self._is_odd_round = not self._is_odd_round
        if self._plain_left:
            self._plain_left -= 1
            return False
        self._reduced_left -= 1
        is_scatter = self._seat.kind is CollectiveKind.REDUCE_SCATTER
        return is_scatter or (self._is_all_reduce and self._is_odd_round)

    def _take_token(self, _: object) -> None:
        self._tokens += 1
        if not self._is_all_reduce or self._left > self._peers:
            self._send()
        elif self._received < self._peers:
            return
        else:
            sent = 0
            while sent < self._window and self._send():
                sent += 1
        if self._left == 0 and self._tokens == self._window:
            self._seat.done()

    def _send(self) -> bool:
        """Send the next message, and return whether there was one that might go."""
        if not (self._left and self._tokens and self._queue):
            return False
        self._left -= 1
        self._tokens -= 1
        outgoing, incoming = self._next_boxes()
        post = self._seat.post
        post.send(outgoing)
        post.receive(incoming, self._receive)
        return True

    def _next_boxes(self) -> tuple[Box, Box]:
        distance = self._queue.popleft()
        known = self._boxes.pop(distance, None)
        if known is None:
            known = self._seat.boxes(distance, self._size_bytes)
            if self._is_all_reduce:
                self._boxes[distance] = known
        return known

    def _receive(self, _: object) -> None:
        self._received += 1
        self._hand_in()


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
