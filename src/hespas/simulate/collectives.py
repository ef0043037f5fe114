"""How long a collective takes on a system: which rings, which phases, which chunks.

Source: ASTRA-sim's system layer. A collective of all devices runs along the dimensions of the
network, one logical ring each; a smaller group is one logical ring in the order of its list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import ceil, prod
from typing import TYPE_CHECKING

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind, System
from hespas.simulate.algorithms import Circle, Span, span
from hespas.simulate.group_shape import GroupShape
from hespas.simulate.implementations import (
    Implementation,
    group_implementation,
    implementations,
)
from hespas.simulate.needs_engine import NeedsEngineError
from hespas.simulate.network import Route, delay_ns, endpoint_ns, hops, reduce_ns, route
from hespas.simulate.pipeline import Stage, pipeline_ns
from hespas.simulate.plan import PhaseRing, chunks_of, phases_of

if TYPE_CHECKING:
    from hespas.simulate.skew import Times

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
        from hespas.simulate.skew import skewed_ends_ps  # noqa: PLC0415 - numpy comes with it

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
