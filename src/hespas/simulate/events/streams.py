"""One member's chunks on their way through the phases of a collective.

Source: ASTRA-sim's stream scheduler. Every phase has queues, and a chunk goes on as soon as its
own member is through.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hespas.simulate.algorithms import Algorithm
from hespas.simulate.events.clock import Alarms
from hespas.simulate.events.direct import Direct
from hespas.simulate.events.post import Post
from hespas.simulate.events.queues import Queues
from hespas.simulate.events.relay import halving_doubling, ring
from hespas.simulate.events.rings import Plan
from hespas.simulate.events.seat import Running, Seat
from hespas.simulate.events.tree import double_binary_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a device brings along: ``trees`` counts, per size of a ring, trees used so far."""

    device: int
    alarms: Alarms
    post: Post
    queues: Queues
    trees: dict[tuple[int, int], int]
    reduce_ps: Callable[[int], int]


class Streams:
    """The chunks of one collective on one device; ``done`` is called when all are through."""

    __slots__ = ("_done", "_first_turns", "_left", "_member", "_plan", "_position", "_tag")

    def __init__(self, plan: Plan, member: Member, tag: Hashable, done: Callable[[], None]) -> None:
        self._plan = plan
        self._member = member
        self._tag = tag
        self._done = done
        self._left = plan.chunks
        self._position = [-1] * plan.chunks
        self._first_turns = [
            member.queues.allocate(phase.queues, plan.chunks) for phase in plan.phases
        ]

    def start(self) -> None:
        """Put all chunks into the queues of the first phase."""
        for chunk in range(self._plan.chunks):
            self._proceed(chunk)

    def _queue(self, chunk: int, position: int) -> int:
        return self._plan.phases[position].queue(self._first_turns[position] + chunk)

    def _proceed(self, chunk: int) -> None:
        queues = self._member.queues
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
        kind = self._plan.rings[phase.ring]
        implementation = kind.implementation
        match implementation.algorithm:
            case Algorithm.RING:
                return ring(self._seat(chunk))
            case Algorithm.DIRECT:
                return Direct(self._seat(chunk), implementation.window)
            case Algorithm.HALVING_DOUBLING:
                return halving_doubling(self._seat(chunk))
            case Algorithm.DOUBLE_BINARY_TREE:
                return double_binary_tree(self._seat(chunk))
            case _:
                assert_never(implementation.algorithm)

    def _seat(self, chunk: int) -> Seat:
        plan, member = self._plan, self._member
        position = self._position[chunk]
        phase = plan.phases[position]
        kind = plan.rings[phase.ring]
        tag = (self._tag, chunk)
        members, own = kind.seat_of(member.device)
        return Seat(
            alarms=member.alarms,
            post=member.post,
            known_boxes=member.post.boxes(tag),
            tag=tag,
            members=members,
            position=own,
            direction=phase.direction(self._first_turns[position] + chunk),
            kind=phase.kind,
            size_bytes=phase.size_bytes,
            endpoint_ps=plan.endpoint_ps,
            reduce_ps=member.reduce_ps,
            is_subgroup=plan.is_subgroup,
            tree=self._tree(kind.size, kind.stride),
            done=partial(self._proceed, chunk),
        )

    def _tree(self, size: int, stride: int) -> int:
        count = self._member.trees.get((size, stride), 0)
        self._member.trees[size, stride] = count + 1
        return count % 2
