"""How long a collective takes on a system, by closed forms.

The phases of its chunks take what `hespas.simulate.astra.closed_forms` says, and queue up as in
ASTRA-sim's stream scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from heapq import heappop, heappush
from math import ceil, prod
from typing import TYPE_CHECKING, assert_never

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind, System
from hespas.simulate.astra.closed_forms import Algorithm, Circle, NeedsEngineError, Span, span
from hespas.simulate.astra.options import (
    Implementation,
    group_implementation,
    implementations,
)
from hespas.simulate.astra.plan import PhaseRing, chunks_of, phases_of
from hespas.simulate.network import Route, delay_ns, endpoint_ns, hops, reduce_ns, route

if TYPE_CHECKING:
    from hespas.simulate.astra.staggered import Times


Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's size, and its routes by algorithm and by distance in its list.

    A route is None where members at that distance do not all have equal routes.
    """

    size: int
    routes: tuple[tuple[Algorithm, int, Route | None], ...]


def group_shape(system: System, group: Group, algorithms: frozenset[Algorithm]) -> GroupShape:
    """Return the shape of a group, with the distances that its algorithms use.

    Raises `SimulationError` for a group of one device.
    """
    if len(group) < 2:
        message = f"the group {list(group)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")
    routes = [
        (algorithm, distance, _common_route(system, _pairs(algorithm, group, distance)))
        for algorithm in sorted(algorithms, key=lambda algorithm: algorithm.value)
        for distance in _distances(algorithm, len(group))
    ]
    return GroupShape(len(group), tuple(routes))


def group_algorithms(system: System, kinds: Iterable[CollectiveKind]) -> frozenset[Algorithm]:
    """Return the algorithms that groups smaller than the system use for some collectives."""
    return frozenset(group_implementation(system, kind).algorithm for kind in kinds)


def _distances(algorithm: Algorithm, size: int) -> Iterable[int]:
    match algorithm:
        case Algorithm.RING:
            return (1,)
        case Algorithm.DIRECT:
            return range(1, size)
        case Algorithm.HALVING_DOUBLING:
            return [1 << level for level in range((size - 1).bit_length())]
        case Algorithm.DOUBLE_BINARY_TREE:
            return ()
        case _:
            assert_never(algorithm)


def _pairs(algorithm: Algorithm, group: Group, distance: int) -> Iterator[tuple[int, int]]:
    """Yield the members that speak to each other: around the list, or within its blocks."""
    size = len(group)
    if algorithm is not Algorithm.HALVING_DOUBLING:
        yield from ((group[i], group[(i + distance) % size]) for i in range(size))
        return
    for index in range(size - distance):
        if index // distance % 2 == 0:
            yield group[index], group[index + distance]


def _common_route(system: System, pairs: Iterable[tuple[int, int]]) -> Route | None:
    found: Route | None = None
    for source, target in pairs:
        way = route(system, source, target)
        if found not in (None, way):
            return None
        found = way
    return found


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
    return _Pipeline(chunks, width).run()


class _Pipeline:
    def __init__(self, chunks: Sequence[Sequence[Stage]], width: int) -> None:
        self._chunks = chunks
        self._width = width
        self._now_ns = 0
        self._position = [-1] * len(chunks)
        self._waiting: dict[int, deque[int]] = {}
        self._running: dict[int, int] = {}
        self._ends: list[tuple[int, int, int]] = []
        self._sequence = 0

    def run(self) -> int:
        for chunk in range(len(self._chunks)):
            self._proceed(chunk)
        while self._ends:
            self._now_ns, _, chunk = heappop(self._ends)
            self._proceed(chunk)
        return self._now_ns

    def _proceed(self, chunk: int) -> None:
        stages = self._chunks[chunk]
        position = self._position[chunk]
        self._position[chunk] = following = position + 1
        if following < len(stages):
            self._waiting.setdefault(stages[following].queue, deque()).append(chunk)
        if position >= 0:
            self._running[stages[position].queue] -= 1
            self._kick(stages[position].queue)
        if following < len(stages):
            self._kick(stages[following].queue)

    def _kick(self, queue: int) -> None:
        waiting = self._waiting.get(queue)
        while waiting and self._running.get(queue, 0) < self._width:
            chunk = waiting.popleft()
            self._running[queue] = self._running.get(queue, 0) + 1
            stage = self._chunks[chunk][self._position[chunk]]
            self._sequence += 1
            heappush(self._ends, (self._now_ns + stage.duration_ns, self._sequence, chunk))


SUBGROUP_ENDPOINT_NS = 10
"""What endpoints of groups smaller than the system wait, whatever the system says."""


@dataclass(frozen=True, slots=True)
class _Ring:
    """A logical ring with what a phase along it takes; its members are ``stride`` apart."""

    circle: Circle
    implementation: Implementation
    dimension: int = 0
    stride: int = 1

    def span(self, kind: CollectiveKind, size_bytes: int) -> Span:
        implementation = self.implementation
        return span(implementation.algorithm, implementation.window, kind, self.circle, size_bytes)


def _sizes(rings: list[_Ring]) -> list[PhaseRing]:
    return [
        PhaseRing(ring.implementation.algorithm, ring.circle.size, ring.dimension) for ring in rings
    ]


class CollectiveModel:
    """Durations of collectives on one system, each computed once."""

    def __init__(self, system: System, queues_per_dimension: int) -> None:
        self._system = system
        self._queues = queues_per_dimension
        self.everyone_ns = cache(self._everyone_ns)
        self.group_ns = cache(self._group_ns)

    def _everyone_ns(
        self, kind: CollectiveKind, size_bytes: int, involved: tuple[bool, ...] | None
    ) -> Span:
        return self._chunked(kind, size_bytes, self._involved_rings(kind, involved))

    def _involved_rings(
        self, kind: CollectiveKind, involved: tuple[bool, ...] | None
    ) -> list[_Ring]:
        rings = self._world_rings(kind)
        if involved is not None:
            rings = [ring for ring, on in zip(rings, involved, strict=False) if on]
        rings = [ring for ring in rings if ring.circle.size > 1]
        if not rings:
            raise SimulationError("the collective involves no dimension with several devices")
        return rings

    def _group_ns(self, kind: CollectiveKind, size_bytes: int, shape: GroupShape) -> Span:
        return self._chunked(kind, size_bytes, [self._group_ring(kind, shape)])

    def _group_ring(self, kind: CollectiveKind, shape: GroupShape) -> _Ring:
        implementation = group_implementation(self._system, kind)
        algorithm = implementation.algorithm
        routes = {distance: way for of, distance, way in shape.routes if of is algorithm}
        return _Ring(self._circle(shape.size, routes, is_subgroup=True), implementation)

    def joins_everyone(self, kind: CollectiveKind, involved: tuple[bool, ...] | None) -> bool:
        """Return whether a collective of all devices joins them all, rather than parts of them."""
        sizes = [ring.circle.size for ring in self._involved_rings(kind, involved)]
        return prod(sizes) >= self._system.device_count

    def everyone_ends_ps(
        self,
        kind: CollectiveKind,
        size_bytes: int,
        involved: tuple[bool, ...] | None,
        starts_ps: Times,
    ) -> Times:
        """Return when each device ends, given when each starts.

        Both are arrays with a single row. Raises `NeedsEngineError` where several chunks, or
        what `skewed_ends_ps` doesn't know, start apart.
        """
        rings = self._involved_rings(kind, involved)
        return self._skewed(kind, size_bytes, rings, starts_ps)

    def group_ends_ps(
        self, kind: CollectiveKind, size_bytes: int, shape: GroupShape, starts_ps: Times
    ) -> Times:
        """Return the same of groups of one shape, of which each is a row."""
        return self._skewed(kind, size_bytes, [self._group_ring(kind, shape)], starts_ps)

    def _skewed(
        self, kind: CollectiveKind, size_bytes: int, rings: list[_Ring], starts_ps: Times
    ) -> Times:
        """Send a single chunk through the phases, each member at its own pace."""
        from hespas.simulate.astra.staggered import skewed_ends_ps  # noqa: PLC0415 - numpy comes with it

        chunks, chunk_bytes = chunks_of(self._system, kind, size_bytes)
        if chunks > 1:
            raise NeedsEngineError
        ends_ps = starts_ps
        for phase in phases_of(self._system, kind, chunk_bytes, _sizes(rings), self._queues):
            ring = rings[phase.ring]
            window = ring.implementation.window
            if window is not None and window < ring.circle.size - 1:
                raise NeedsEngineError
            # The members of a ring are ``stride`` apart: bring them next to each other.
            blocks = ends_ps.reshape(-1, ring.circle.size, ring.stride).swapaxes(1, 2)
            found = skewed_ends_ps(
                ring.implementation.algorithm,
                phase.kind,
                ring.circle,
                phase.size_bytes,
                blocks.reshape(-1, ring.circle.size),
                direction=phase.direction(0),
            )
            ends_ps = found.reshape(blocks.shape).swapaxes(1, 2).reshape(ends_ps.shape)
        return ends_ps

    def _chunked(self, kind: CollectiveKind, size_bytes: int, rings: list[_Ring]) -> Span:
        """Cut the collective into chunks, and send them through the phases."""
        chunks, chunk_bytes = chunks_of(self._system, kind, size_bytes)
        phases = list(phases_of(self._system, kind, chunk_bytes, _sizes(rings), self._queues))
        spans = [rings[phase.ring].span(phase.kind, phase.size_bytes) for phase in phases]
        last_wait_ns = spans[-1].last_wait_ns
        if chunks == 1:
            return Span(sum(one.total_ns for one in spans), last_wait_ns)
        stages = [
            [
                Stage(phase.queue(number), one.total_ns)
                for phase, one in zip(phases, spans, strict=True)
            ]
            for number in range(chunks)
        ]
        width = ceil(self._system.active_chunks_per_dimension / self._queues)
        return Span(pipeline_ns(stages, width), last_wait_ns)

    def _world_rings(self, kind: CollectiveKind) -> list[_Ring]:
        rings: list[_Ring] = []
        for index, implementation in enumerate(implementations(self._system, kind)):
            if implementation.is_one_ring:
                # One ring of all devices, also after other dimensions, ends the list.
                return [*rings, _Ring(self._one_ring(), implementation, index)]
            stride = prod(one.npus_count for one in self._system.dimensions[:index])
            rings.append(_Ring(self._dimension_circle(index), implementation, index, stride))
        return rings

    def _one_ring(self) -> Circle:
        system = self._system
        return self._circle(
            system.device_count,
            {distance: route(system, 0, distance) for distance in range(1, system.device_count)},
        )

    def _dimension_circle(self, index: int) -> Circle:
        dimension = self._system.dimensions[index]
        count = dimension.npus_count
        routes = {distance: Route(index, hops(dimension, distance)) for distance in range(1, count)}
        return self._circle(count, routes)

    def _circle(
        self, size: int, routes: Mapping[int, Route | None], *, is_subgroup: bool = False
    ) -> Circle:
        system = self._system

        def delay(distance: int, size_bytes: int) -> int:
            way = routes[distance]
            if way is None:
                # Members at unequal distances don't end together.
                raise NeedsEngineError
            return delay_ns(system, way, size_bytes)

        return Circle(
            size=size,
            endpoint_ns=SUBGROUP_ENDPOINT_NS if is_subgroup else endpoint_ns(system),
            delay_ns=cache(delay),
            reduce_ns=partial(reduce_ns, self._system),
            is_subgroup=is_subgroup,
        )
