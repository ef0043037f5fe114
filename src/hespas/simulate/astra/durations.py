"""How long a collective takes on a system, by closed forms.

The phases of its chunks take what `hespas.simulate.astra.closed_forms` says, and queue up as in
ASTRA-sim's stream scheduler: every phase has a queue, which runs so many chunks at once, in order
of arrival, and all members of the collective do so alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import ceil, prod
from typing import TYPE_CHECKING, assert_never

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.closed_forms import AlgorithmName, LogicalRing, Span, span
from hespas.simulate.astra.messages import Route, delay_ns, endpoint_ns, hops, reduce_ns, route
from hespas.simulate.astra.options import group_implementation
from hespas.simulate.astra.plan import SUBGROUP_ENDPOINT_NS, Plan, PlannedRing, Planner
from hespas.simulate.kernel import Kernel

if TYPE_CHECKING:
    from hespas.simulate.astra.staggered import Times

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's size, and its routes by algorithm and by distance in its list.

    A route is None where members at that distance do not all have equal routes.
    """

    size: int
    routes: tuple[tuple[AlgorithmName, int, Route | None], ...]


def group_shape(system: System, group: Group, algorithms: frozenset[AlgorithmName]) -> GroupShape:
    """Return the shape of a group, with the distances that its algorithms use.

    Raises `SimulationError` for a group of one device.
    """
    if len(group) < 2:
        message = f"the group {list(group)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")
    routes: list[tuple[AlgorithmName, int, Route | None]] = [
        (algorithm, distance, _common_route(system, _pairs(algorithm, group, distance)))
        for algorithm in sorted(algorithms)
        for distance in _distances(algorithm, len(group))
    ]
    return GroupShape(len(group), tuple(routes))


def group_algorithms(system: System, kinds: Iterable[CollectiveKind]) -> frozenset[AlgorithmName]:
    """Return the algorithms that groups smaller than the system use for some collectives."""
    return frozenset(group_implementation(system, kind).algorithm for kind in kinds)


def _distances(algorithm: AlgorithmName, size: int) -> Iterable[int]:
    match algorithm:
        case "ring":
            return (1,)
        case "direct":
            return range(1, size)
        case "halving-doubling":
            return [1 << level for level in range((size - 1).bit_length())]
        case "double-binary-tree":
            return ()
        case _:
            assert_never(algorithm)


def _pairs(algorithm: AlgorithmName, group: Group, distance: int) -> Iterator[tuple[int, int]]:
    """Yield the members that send to each other: around the list, or within its blocks."""
    size = len(group)
    if algorithm != "halving-doubling":
        yield from ((group[i], group[(i + distance) % size]) for i in range(size))
        return
    for index in range(size - distance):
        if index // distance % 2 == 0:
            yield group[index], group[index + distance]


def _common_route(system: System, pairs: Iterable[tuple[int, int]]) -> Route | None:
    common: Route | None = None
    # Pairs that are as far apart from places alike along the dimensions have equal routes.
    sizes = [dimension.npus_count for dimension in system.dimensions]
    known: set[tuple[int, int]] = set()
    for source, target in pairs:
        place = _first_difference(sizes, source, target)
        if place in known:
            continue
        known.add(place)
        one = route(system, source, target)
        if common not in (None, one):
            return None
        common = one
    return common


def _first_difference(sizes: Sequence[int], source: int, target: int) -> tuple[int, int]:
    """Return the first dimension in which two devices differ, and by how much."""
    for index, size in enumerate(sizes):
        distance = target % size - source % size
        if distance:
            return index, distance
        source //= size
        target //= size
    return len(sizes), 0


Involved = tuple[bool, ...] | None
"""Of each dimension, whether a collective runs along it; None for all of them."""


class CollectiveDurations:
    """How long collectives take on one system, each computed once.

    Of a collective of a smaller group, ``shape`` is the group's; it is None for all devices.
    """

    def __init__(self, system: System, queues_per_dimension: int) -> None:
        self._system = system
        self._planner = Planner(system, queues_per_dimension)
        self._width = ceil(system.active_chunks_per_dimension / queues_per_dimension)
        self._logical_ring = cache(self._make_logical_ring)
        self.span = cache(self._span)

    def _plan(
        self, kind: CollectiveKind, size_bytes: int, involved: Involved, shape: GroupShape | None
    ) -> Plan:
        if shape is None:
            return self._planner.everyone(kind, size_bytes, involved)
        return self._planner.group(kind, size_bytes, shape.size)

    def joins_everyone(self, kind: CollectiveKind, involved: Involved) -> bool:
        """Return whether a collective of all devices joins them all, rather than parts of them."""
        rings = self._planner.rings_of_everyone(kind, involved)
        return prod(ring.size for ring in rings) >= self._system.device_count

    def _span(
        self, kind: CollectiveKind, size_bytes: int, involved: Involved, shape: GroupShape | None
    ) -> Span | None:
        """Return how long a collective takes whose members start together.

        None where there is no closed form: for the double binary tree, and where members of a
        group are at unequal distances, and thus don't end together.
        """
        plan = self._plan(kind, size_bytes, involved, shape)
        spans: list[Span] = []
        for phase in plan.phases:
            ring = plan.rings[phase.ring]
            logical = self._logical_ring(ring, shape)
            if logical is None:
                return None
            implementation = ring.implementation
            one = span(
                implementation.algorithm,
                implementation.window,
                phase.kind,
                logical,
                phase.size_bytes,
            )
            if one is None:
                return None
            spans.append(one)
        last_wait_ns = spans[-1].last_wait_ns
        if plan.chunks == 1:
            return Span(sum(one.total_ns for one in spans), last_wait_ns)
        stages = [
            [
                Stage(phase.queue(number), one.total_ns)
                for phase, one in zip(plan.phases, spans, strict=True)
            ]
            for number in range(plan.chunks)
        ]
        return Span(pipeline_ns(stages, self._width), last_wait_ns)

    def ends_ps(
        self,
        kind: CollectiveKind,
        size_bytes: int,
        involved: Involved,
        shape: GroupShape | None,
        starts_ps: Times,
    ) -> Times | None:
        """Return when each member ends, given when each starts, as an array of the same form.

        It has a row for each group of the shape; for all devices, a single one. None where there
        is no closed form: for several chunks, a window of peers, and what
        `hespas.simulate.astra.staggered.staggered_ends_ps` doesn't cover.
        """
        from hespas.simulate.astra.staggered import (  # noqa: PLC0415 - numpy comes with it
            staggered_ends_ps,
        )

        plan = self._plan(kind, size_bytes, involved, shape)
        if plan.chunks > 1:
            return None
        ends_ps = starts_ps
        for phase in plan.phases:
            ring = plan.rings[phase.ring]
            logical = self._logical_ring(ring, shape)
            window = ring.implementation.window
            if logical is None or (window is not None and window < ring.size - 1):
                return None
            # The members of a ring are ``stride`` apart: bring them next to each other.
            blocks = ends_ps.reshape(-1, ring.size, ring.stride or 1).swapaxes(1, 2)
            ended = staggered_ends_ps(
                ring.implementation.algorithm,
                phase.kind,
                logical,
                phase.size_bytes,
                blocks.reshape(-1, ring.size),
                direction=phase.direction(0),
            )
            if ended is None:
                return None
            ends_ps = ended.reshape(blocks.shape).swapaxes(1, 2).reshape(ends_ps.shape)
        return ends_ps

    def _make_logical_ring(self, ring: PlannedRing, shape: GroupShape | None) -> LogicalRing | None:
        """Return a ring with the delays in it; None where not all members see the same ones."""
        system = self._system
        routes: Mapping[int, Route | None]
        if shape is not None:
            algorithm = ring.implementation.algorithm
            routes = {distance: one for of, distance, one in shape.routes if of == algorithm}
            if None in routes.values():
                return None
        elif ring.implementation.is_one_ring:
            routes = {distance: route(system, 0, distance) for distance in range(1, ring.size)}
        else:
            dimension = system.dimensions[ring.dimension]
            routes = {
                distance: Route(ring.dimension, hops(dimension, distance))
                for distance in range(1, ring.size)
            }

        def delay(distance: int, size_bytes: int) -> int:
            common = routes[distance]
            if common is None:
                raise ValueError(distance)
            return delay_ns(system, common, size_bytes)

        is_subgroup = shape is not None
        return LogicalRing(
            size=ring.size,
            endpoint_ns=SUBGROUP_ENDPOINT_NS if is_subgroup else endpoint_ns(system),
            delay_ns=cache(delay),
            reduce_ns=partial(reduce_ns, system),
            is_subgroup=is_subgroup,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase of one chunk: the queue that it waits in, and how long it then takes."""

    queue: int
    duration_ns: int


def pipeline_ns(chunks: Sequence[Sequence[Stage]], width: int) -> int:
    """Return when the last of the chunks, which are all there from the start, is through.

    >>> pipeline_ns([[Stage(0, 5), Stage(1, 3)]] * 3, width=1)
    18
    """
    kernel = Kernel()
    position = [-1] * len(chunks)
    waiting: dict[int, deque[int]] = {}
    running: dict[int, int] = {}

    def proceed(chunk: int) -> None:
        stages = chunks[chunk]
        before = position[chunk]
        position[chunk] = after = before + 1
        if after < len(stages):
            waiting.setdefault(stages[after].queue, deque()).append(chunk)
        if before >= 0:
            running[stages[before].queue] -= 1
            start_waiting(stages[before].queue)
        if after < len(stages):
            start_waiting(stages[after].queue)

    def start_waiting(queue: int) -> None:
        chunks_there = waiting.get(queue)
        while chunks_there and running.get(queue, 0) < width:
            chunk = chunks_there.popleft()
            running[queue] = running.get(queue, 0) + 1
            duration_ns = chunks[chunk][position[chunk]].duration_ns
            kernel.after(duration_ns * PS_PER_NS, proceed, chunk)

    for chunk in range(len(chunks)):
        proceed(chunk)
    kernel.run()
    return kernel.now_ps // PS_PER_NS
