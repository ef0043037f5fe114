"""Run ASTRA-sim's algorithms message by message, for one ring member.

The messages are those of `hespas.collectives.algorithms`; their times are ASTRA-sim's. Each message
is handed in, waits at the endpoint, and creates a token, which allows one send; each arriving
message is handed in again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, assert_never

from hespas.base.frozen import frozen
from hespas.collectives.patterns import tree_parent
from hespas.errors import SimulationError
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.messages import Transport
from hespas.simulate.astra.plan import Plan, Queues
from hespas.simulate.astra.relays import RelayRounds, message_bytes, relay_rounds
from hespas.simulate.kernel import Action, Clock, Mailbox, MailboxesOfTag


@frozen
class PhaseMember:
    """A collective's member in one phase of a chunk.

    ``position`` is the member's own one among ``members`` of the logical ring; ``direction`` is -1
    for a ring that turns backwards. ``mailboxes`` are the existing ones of ``tag``. ``tree``
    alternates between 0 and 1 for the two trees. ``done`` is called at the end.
    """

    actor: Clock
    transport: Transport
    mailboxes: MailboxesOfTag[Any]
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

    def mailboxes_at(self, distance: int, size_bytes: int) -> tuple[Mailbox[Any], Mailbox[Any]]:
        """Return the outgoing and incoming mailbox at a distance."""
        own, distance = self.position, distance * self.direction
        outgoing = self.mailbox(own, own + distance, size_bytes)
        return outgoing, self.mailbox(own - distance, own, size_bytes)

    def mailbox(self, source: int, target: int, size_bytes: int) -> Mailbox[Any]:
        """Return the mailbox of messages between two positions."""
        members, count = self.members, len(self.members)
        key = (members[source % count], members[target % count], size_bytes)
        return self.mailboxes.get(key) or self.transport.mailbox(self.tag, *key)

    def wait(self, action: Action, *, reduce_ps: int | None = None) -> None:
        """Schedule ``action`` after the endpoint's delay and any reduction."""
        if reduce_ps is None:
            self.actor.after(self.endpoint_ps, action)
        else:
            self.actor.after(self.endpoint_ps, self._reduce, (reduce_ps, action))

    def _reduce(self, reduction: tuple[int, Action]) -> None:
        # Even a reduction that takes no time goes after the other actions of this instant.
        self.actor.after(*reduction)


class Relay:
    """Sends messages one by one, each after the last arrived."""

    __slots__ = ("_in_hand", "_member", "_pairs", "_reductions_ps", "_remaining", "_tokens")

    def __init__(self, member: PhaseMember, rounds: tuple[RelayRounds, ...]) -> None:
        self._member = member
        self._pairs = chain.from_iterable(
            [repeat(self._mailboxes(item), item.repeats) for item in rounds]
        )
        reductions = [
            repeat(item.reduced_bytes and member.reduce_ps(item.reduced_bytes), item.repeats)
            for item in rounds
        ]
        self._reductions_ps = chain((None,), *reductions)
        self._remaining = sum(item.repeats for item in rounds)
        self._tokens = self._in_hand = 0

    def _mailboxes(self, rounds: RelayRounds) -> tuple[Mailbox[Any], Mailbox[Any]]:
        member = self._member
        if not rounds.is_exchange:
            return member.mailboxes_at(rounds.distance, rounds.size_bytes)
        own, peer = member.position, member.position ^ rounds.distance
        outgoing = member.mailbox(own, peer, rounds.size_bytes)
        return outgoing, member.mailbox(peer, own, rounds.size_bytes)

    def start(self) -> None:
        """Hand in the first message."""
        self._hand_in(None)

    def _hand_in(self, _: object) -> None:
        self._in_hand += 1
        self._member.wait(self._take_token, reduce_ps=next(self._reductions_ps))

    def _take_token(self, _: object) -> None:
        self._tokens += 1
        if self._remaining and self._in_hand:
            self._send()
        if self._remaining == 0 and self._tokens == 1:
            self._member.done()

    def _send(self) -> None:
        outgoing, incoming = next(self._pairs)
        self._remaining -= 1
        self._tokens -= 1
        self._in_hand -= 1
        transport = self._member.transport
        transport.send(outgoing)
        transport.receive(incoming, self._hand_in)


class Direct:
    """Sends messages to all peers in turn.

    Handed-in message k goes to the ``k mod peers``-th next member. Each message creates a token
    when it has passed the endpoint, and a token allows one send. An all-reduce does everything
    twice; its second half begins when all messages of the first have arrived.
    """

    __slots__ = (
        "_handed_in", "_is_all_reduce", "_is_odd_round", "_mailboxes", "_member", "_peers",
        "_plain_count", "_queue", "_received", "_reduce_ps", "_reduced_count", "_remaining",
        "_size_bytes", "_tokens", "_window",
    )  # fmt: skip

    def __init__(self, member: PhaseMember, window: int | None) -> None:
        self._member = member
        self._peers = len(member.members) - 1
        self._window = min(window or self._peers, self._peers)
        self._is_all_reduce = member.kind is CollectiveKind.ALL_REDUCE
        self._size_bytes = message_bytes(member.kind, len(member.members), member.size_bytes)
        self._reduce_ps = member.reduce_ps(self._size_bytes)
        self._remaining = self._peers * (2 if self._is_all_reduce else 1)
        self._queue: deque[int] = deque()
        # The second half of an all-reduce reuses the mailboxes of the first.
        self._mailboxes: dict[int, tuple[Mailbox[Any], Mailbox[Any]]] = {}
        self._handed_in = self._received = self._tokens = 0
        self._plain_count = self._reduced_count = 0
        self._is_odd_round = False

    def start(self) -> None:
        """Hand in as many messages as the window allows."""
        for _ in range(self._window):
            self._hand_in()

    def _hand_in(self) -> None:
        self._queue.append(self._handed_in % self._peers + 1)
        self._handed_in += 1
        reduce_ps = self._reduce_ps if self._is_reduced() else None
        self._member.wait(self._take_token, reduce_ps=reduce_ps)

    def _is_reduced(self) -> bool:
        if self._plain_count == self._reduced_count == 0:
            windows = self._peers if self._member.is_subgroup else 1
            self._plain_count, self._reduced_count = self._window, windows * self._window
            self._is_odd_round = not self._is_odd_round
        if self._plain_count:
            self._plain_count -= 1
            return False
        self._reduced_count -= 1
        is_scatter = self._member.kind is CollectiveKind.REDUCE_SCATTER
        return is_scatter or (self._is_all_reduce and self._is_odd_round)

    def _take_token(self, _: object) -> None:
        self._tokens += 1
        if not self._is_all_reduce or self._remaining > self._peers:
            self._send()
        elif self._received < self._peers:
            return
        else:
            sent = 0
            while sent < self._window and self._send():
                sent += 1
        if self._remaining == 0 and self._tokens == self._window:
            self._member.done()

    def _send(self) -> bool:
        if not (self._remaining and self._tokens and self._queue):
            return False
        self._remaining -= 1
        self._tokens -= 1
        outgoing, incoming = self._next_mailboxes()
        transport = self._member.transport
        transport.send(outgoing)
        transport.receive(incoming, self._receive)
        return True

    def _next_mailboxes(self) -> tuple[Mailbox[Any], Mailbox[Any]]:
        distance = self._queue.popleft()
        pair = self._mailboxes.pop(distance, None)
        if pair is None:
            pair = self._member.mailboxes_at(distance, self._size_bytes)
            if self._is_all_reduce:
                self._mailboxes[distance] = pair
        return pair

    def _receive(self, _: object) -> None:
        self._received += 1
        self._hand_in()


@frozen
class Node:
    """A member's neighbours in a tree, as positions."""

    parent: int | None
    children: tuple[int, ...]


def tree_node(members: int, position: int, *, is_mirrored: bool) -> Node:
    """Return a member's tree neighbours.

    The root is the last member, in the mirrored tree the first. It is the tree of
    `hespas.collectives.patterns.tree_parent` among a power of two, with member 0 at the end of the
    list.

    >>> tree_node(4, 1, is_mirrored=False)
    Node(parent=3, children=(0, 2))
    """

    def renamed(number: int) -> int:
        return -number % members if is_mirrored else (number - 1) % members

    number = -position % members if is_mirrored else (position + 1) % members
    if number == 0:
        return Node(parent=None, children=(renamed(members // 2),))
    half = (number & -number) // 2
    children = [renamed(number - half), renamed(number + half)] if half else []
    return Node(parent=renamed(tree_parent(members, number)), children=tuple(sorted(children)))


class TreeMember:
    """A member of a double binary tree, reducing whole chunks."""

    __slots__ = ("_member", "_missing", "_node")

    def __init__(self, member: PhaseMember) -> None:
        n = len(member.members)
        if n & n - 1:
            raise SimulationError(f"doubleBinaryTree among {n}, which is not a power of two")
        self._member = member
        self._node = tree_node(n, member.position, is_mirrored=member.tree == 1)
        self._missing = len(self._node.children)

    def start(self) -> None:
        """Send up from a leaf; otherwise wait for the children."""
        if not self._node.children:
            self._member.wait(self._send_up)
        for child in self._node.children:
            self._receive(child, self._take)

    def _send(self, position: int) -> None:
        member = self._member
        mailbox = member.mailbox(member.position, position, member.size_bytes)
        member.transport.send(mailbox)

    def _receive(self, position: int, action: Action) -> None:
        member = self._member
        mailbox = member.mailbox(position, member.position, member.size_bytes)
        member.transport.receive(mailbox, action)

    def _reduce_ps(self) -> int | None:
        return self._member.reduce_ps(self._member.size_bytes) if self._node.children else None

    def _take(self, _: object) -> None:
        self._member.wait(self._count, reduce_ps=self._reduce_ps())

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
        self._send(parent)
        self._receive(parent, self._take_result)

    def _take_result(self, _: object) -> None:
        self._member.wait(self._send_down, reduce_ps=self._reduce_ps())

    def _send_down(self, _: object) -> None:
        for child in self._node.children:
            self._send(child)
        self._member.done()


@frozen
class DeviceContext:
    """A device's collective state; ``trees`` counts runs by ring size and stride."""

    device: int
    actor: Clock
    transport: Transport
    queues: Queues
    trees: dict[tuple[int, int], int]
    reduce_ps: Callable[[int], int]


class Streams:
    """The chunks of one collective on one device.

    ``done`` is called when all chunks have finished. Every phase has queues, and a chunk continues
    as soon as its own member has finished. Source: ASTRA-sim's stream scheduler.
    """

    __slots__ = (
        "_context", "_done", "_first_turns", "_group", "_plan", "_position", "_remaining", "_tag",
    )  # fmt: skip

    def __init__(
        self,
        plan: Plan,
        group: tuple[int, ...] | None,
        context: DeviceContext,
        tag: Hashable,
        done: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._group = group
        self._context = context
        self._tag = tag
        self._done = done
        self._remaining = plan.chunks
        self._position = [-1] * plan.chunks
        self._first_turns = [
            context.queues.allocate(phase.queues, plan.chunks) for phase in plan.phases
        ]

    def start(self) -> None:
        """Put all chunks into the queues of the first phase."""
        for chunk in range(self._plan.chunks):
            self._proceed(chunk)

    def _queue(self, chunk: int, position: int) -> int:
        return self._plan.phases[position].queue(self._first_turns[position] + chunk)

    def _proceed(self, chunk: int) -> None:
        queues = self._context.queues
        position = self._position[chunk]
        self._position[chunk] = following = position + 1
        is_through = following == len(self._plan.phases)
        if is_through:
            self._remaining -= 1
            if not self._remaining:
                # The device's next tasks queue behind this chunk, which still runs.
                self._done()
        else:
            queues.enter(self._queue(chunk, following), partial(self._run, chunk))
        if position >= 0:
            queues.leave(self._queue(chunk, position))
        if not is_through:
            queues.kick(self._queue(chunk, following))

    def _run(self, chunk: int) -> None:
        phase = self._plan.phases[self._position[chunk]]
        implementation = self._plan.rings[phase.ring].implementation
        member = self._phase_member(chunk)
        match implementation.algorithm:
            case "ring" | "halving-doubling" as algorithm:
                members = len(member.members)
                rounds = relay_rounds(algorithm, member.kind, members, member.size_bytes)
                Relay(member, rounds).start()
            case "direct":
                Direct(member, implementation.window).start()
            case "double-binary-tree":
                TreeMember(member).start()
            case _:
                assert_never(implementation.algorithm)

    def _phase_member(self, chunk: int) -> PhaseMember:
        plan, context = self._plan, self._context
        position = self._position[chunk]
        phase = plan.phases[position]
        ring = plan.rings[phase.ring]
        tag = (self._tag, chunk)
        members, own = ring.members_with(context.device, self._group)
        trees = context.trees.get((ring.size, ring.stride), 0)
        context.trees[ring.size, ring.stride] = trees + 1
        return PhaseMember(
            actor=context.actor,
            transport=context.transport,
            mailboxes=context.transport.mailboxes_of_tag(tag),
            tag=tag,
            members=members,
            position=own,
            direction=phase.direction(self._first_turns[position] + chunk),
            kind=phase.kind,
            size_bytes=phase.size_bytes,
            endpoint_ps=plan.endpoint_ps,
            reduce_ps=context.reduce_ps,
            is_subgroup=plan.is_subgroup,
            tree=trees % 2,
            done=partial(self._proceed, chunk),
        )
