"""How long a collective takes on a system: which rings, which phases, which chunks.

Source: ASTRA-sim's system layer. A collective of all devices runs along the dimensions of the
network, one logical ring each; a smaller group is one logical ring in the order of its list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind, System
from hespas.simulate.algorithms import Circle, Span, output_bytes, span
from hespas.simulate.group_shape import GroupShape
from hespas.simulate.implementations import (
    Implementation,
    group_implementation,
    implementations,
)
from hespas.simulate.network import Route, delay_ns, hops, route
from hespas.simulate.pipeline import Stage, pipeline_ns

_SUBGROUP_ENDPOINT_NS = 10
_AR, _AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
_RS = CollectiveKind.REDUCE_SCATTER


@dataclass(frozen=True, slots=True)
class _Ring:
    """A logical ring with what a phase along it takes."""

    circle: Circle
    implementation: Implementation

    def span(self, kind: CollectiveKind, size_bytes: int) -> Span:
        implementation = self.implementation
        return span(implementation.algorithm, implementation.window, kind, self.circle, size_bytes)


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
        rings = self._world_rings(kind)
        if involved is not None:
            rings = [ring for ring, on in zip(rings, involved, strict=False) if on]
        rings = [ring for ring in rings if ring.circle.size > 1]
        if not rings:
            raise SimulationError("the collective involves no dimension with several devices")
        return self._chunked(kind, size_bytes, rings)

    def _group_ns(self, kind: CollectiveKind, size_bytes: int, shape: GroupShape) -> Span:
        implementation = group_implementation(self._system, kind)
        algorithm = implementation.algorithm
        routes = {distance: way for of, distance, way in shape.routes if of is algorithm}
        ring = _Ring(self._circle(shape.size, routes, is_subgroup=True), implementation)
        return self._chunked(kind, size_bytes, [ring])

    def _chunked(self, kind: CollectiveKind, size_bytes: int, rings: list[_Ring]) -> Span:
        """Cut the collective into chunks, and send them through the phases."""
        splits = self._system.preferred_dataset_splits
        chunk_bytes = size_bytes // splits
        if kind is not _AG and chunk_bytes < self._system.device_count:
            chunk_bytes = self._system.device_count
            size_bytes = splits * chunk_bytes
        if chunk_bytes == 0:
            raise SimulationError(f"{size_bytes} bytes can't be cut into {splits} chunks")
        # A rest makes one chunk more, of full size.
        chunks = ceil(size_bytes / chunk_bytes)
        phases = list(self._phases(kind, chunk_bytes, rings))
        spans = [ring.span(phase, phase_bytes) for _, ring, phase, phase_bytes in phases]
        last_wait_ns = spans[-1].last_wait_ns
        if chunks == 1:
            return Span(sum(one.total_ns for one in spans), last_wait_ns)
        queues = [self._queue_pool(kind, dimension, phase) for dimension, _, phase, _ in phases]
        stages = [
            [
                Stage(pool[number % len(pool)], one.total_ns)
                for pool, one in zip(queues, spans, strict=True)
            ]
            for number in range(chunks)
        ]
        width = ceil(self._system.active_chunks_per_dimension / self._queues)
        return Span(pipeline_ns(stages, width), last_wait_ns)

    def _phases(
        self, kind: CollectiveKind, size_bytes: int, rings: list[_Ring]
    ) -> Iterator[tuple[int, _Ring, CollectiveKind, int]]:
        """Yield (dimension, ring, collective, bytes at its start) of the phases in order."""
        for dimension, phase in self._phase_kinds(kind, len(rings)):
            ring = rings[dimension]
            yield dimension, ring, phase, size_bytes
            size_bytes = output_bytes(phase, ring.circle.size, size_bytes)

    def _phase_kinds(
        self, kind: CollectiveKind, dimensions: int
    ) -> Sequence[tuple[int, CollectiveKind]]:
        ascending = range(dimensions)
        if kind is _AG:
            return [(dimension, kind) for dimension in reversed(ascending)]
        if kind is not _AR or self._system.collective_optimization == "baseline":
            return [(dimension, kind) for dimension in ascending]
        *inner, last = ascending
        down = [(dimension, _RS) for dimension in inner]
        up = [(dimension, _AG) for dimension in reversed(inner)]
        return [*down, (last, _AR), *up]

    def _queue_pool(self, kind: CollectiveKind, dimension: int, phase: CollectiveKind) -> range:
        """Return the queues that the chunks of a phase take in turn."""
        first, count = dimension * self._queues, self._queues
        is_cut = kind is _AR and self._system.collective_optimization != "baseline"
        if not is_cut or count == 1:
            return range(first, first + count)
        half = first + count // 2
        return range(half, first + count) if phase is _AG else range(first, half)

    def _world_rings(self, kind: CollectiveKind) -> list[_Ring]:
        rings: list[_Ring] = []
        for index, implementation in enumerate(implementations(self._system, kind)):
            if implementation.is_one_ring and index > 0:
                raise SimulationError("one ring of all devices after other dimensions")
            if implementation.is_one_ring:
                return [_Ring(self._one_ring(), implementation)]
            rings.append(_Ring(self._dimension_circle(index), implementation))
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
                raise SimulationError(
                    "the members of the group are at unequal distances, so that they don't end "
                    "together; this needs the event engine, which this version doesn't have"
                )
            return delay_ns(system, way, size_bytes)

        return Circle(
            size=size,
            endpoint_ns=_SUBGROUP_ENDPOINT_NS if is_subgroup else system.endpoint_delay_ns,
            delay_ns=cache(delay),
            reduce_ns=self._reduce_ns,
            is_subgroup=is_subgroup,
        )

    def _reduce_ns(self, size_bytes: int) -> int:
        """Two reads and a write of local memory, each rounded down to whole ns."""
        bandwidth_gb_per_s = self._system.local_memory_bandwidth_gb_per_s
        if bandwidth_gb_per_s is None:
            return 0
        return 3 * int(size_bytes / (bandwidth_gb_per_s * 1e9) * 1e9)
