"""A device's queues for chunks, and the chunks of its collectives, which pass through them.

Source: ASTRA-sim's stream scheduler and its queue levels. A queue lets a number of chunks run at
once, in order of arrival. Which queue of several a chunk takes goes on from collective to
collective. Every phase has queues, and a chunk goes on as soon as its own member is through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hespas.simulate.astra.events.algorithms import (
    Direct,
    PhaseMember,
    Running,
    double_binary_tree,
    relay,
)
from hespas.simulate.astra.events.network import Transport
from hespas.simulate.astra.plan import Plan
from hespas.simulate.kernel import ActorQueue


class Queues:
    """Queues that run ``width`` chunks each."""

    __slots__ = ("_allocated", "_running", "_waiting", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._waiting: dict[int, deque[Callable[[], None]]] = {}
        self._running: dict[int, int] = {}
        self._allocated: dict[range, int] = {}

    def allocate(self, pool: range, count: int) -> int:
        """Return the turn, in some queues, of the first of ``count`` chunks that now come."""
        first = self._allocated.get(pool, 0)
        self._allocated[pool] = (first + count) % len(pool)
        return first

    def enter(self, queue: int, start: Callable[[], None]) -> None:
        """Put a chunk into a queue: ``start`` is called, from `kick`, when it may run."""
        self._waiting.setdefault(queue, deque()).append(start)

    def kick(self, queue: int) -> None:
        """Start what may run."""
        waiting = self._waiting.get(queue)
        while waiting and self._running.get(queue, 0) < self._width:
            self._running[queue] = self._running.get(queue, 0) + 1
            waiting.popleft()()

    def leave(self, queue: int) -> None:
        """Note that a chunk that ran in a queue is through, and start what then may run."""
        self._running[queue] -= 1
        self.kick(queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceContext:
    """What collectives need of a device; ``trees`` counts, per ring, how often trees ran."""

    device: int
    actor: ActorQueue
    transport: Transport
    queues: Queues
    trees: dict[tuple[int, int], int]
    reduce_ps: Callable[[int], int]


class Streams:
    """The chunks of one collective on one device; ``done`` is called when all are through."""

    __slots__ = (
        "_context",
        "_done",
        "_first_turns",
        "_group",
        "_left",
        "_plan",
        "_position",
        "_tag",
    )

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
        self._left = plan.chunks
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
            self._left -= 1
            if not self._left:
                # What the device then starts waits behind this chunk, which still runs.
                self._done()
        else:
            queues.enter(self._queue(chunk, following), partial(self._run, chunk))
        if position >= 0:
            queues.leave(self._queue(chunk, position))
        if not is_through:
            queues.kick(self._queue(chunk, following))

    def _run(self, chunk: int) -> None:
        self._algorithm(chunk).start()

    def _algorithm(self, chunk: int) -> Running:
        phase = self._plan.phases[self._position[chunk]]
        implementation = self._plan.rings[phase.ring].implementation
        member = self._phase_member(chunk)
        match implementation.algorithm:
            case "ring" | "halving-doubling":
                return relay(implementation.algorithm, member)
            case "direct":
                return Direct(member, implementation.window)
            case "double-binary-tree":
                return double_binary_tree(member)
            case _:
                assert_never(implementation.algorithm)

    def _phase_member(self, chunk: int) -> PhaseMember:
        plan, context = self._plan, self._context
        position = self._position[chunk]
        phase = plan.phases[position]
        ring = plan.rings[phase.ring]
        tag = (self._tag, chunk)
        members, own = ring.members_with(context.device, self._group)
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
            tree=self._tree(ring.size, ring.stride),
            done=partial(self._proceed, chunk),
        )

    def _tree(self, size: int, stride: int) -> int:
        count = self._context.trees.get((size, stride), 0)
        self._context.trees[size, stride] = count + 1
        return count % 2
