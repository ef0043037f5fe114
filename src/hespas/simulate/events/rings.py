"""Which devices a collective's phases run among, for each of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind, System
from hespas.simulate.implementations import (
    Implementation,
    group_implementation,
    implementations,
)
from hespas.simulate.network import endpoint_ns
from hespas.simulate.plan import Phase, PhaseRing, chunks_of, phases_of
from hespas.units import PS_PER_NS

_SUBGROUP_ENDPOINT_NS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RingKind:
    """Logical rings of ``size`` devices that are ``stride`` apart; or one of ``members``.

    ``dimension`` is the one whose queues they take.
    """

    implementation: Implementation
    size: int
    stride: int
    dimension: int = 0
    members: tuple[int, ...] | None = None

    def seat_of(self, device: int) -> tuple[Sequence[int], int]:
        """Return the members of the device's ring, and its position among them."""
        if self.members is not None:
            return self.members, self.members.index(device)
        position = device // self.stride % self.size
        first = device - position * self.stride
        return range(first, first + self.size * self.stride, self.stride), position


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every member of a collective does: chunks, each of which goes through all phases."""

    chunks: int
    phases: tuple[Phase, ...]
    rings: tuple[RingKind, ...]
    endpoint_ps: int
    is_subgroup: bool


class Planner:
    """Plans of collectives on one system, each made once."""

    def __init__(self, system: System, queues_per_dimension: int) -> None:
        self._system = system
        self._queues = queues_per_dimension
        self.everyone = cache(self._everyone)
        self.group = cache(self._group)

    def _everyone(
        self, kind: CollectiveKind, size_bytes: int, involved: tuple[bool, ...] | None
    ) -> Plan:
        rings = self._world_rings(kind)
        if involved is not None:
            rings = [ring for ring, on in zip(rings, involved, strict=False) if on]
        rings = [ring for ring in rings if ring.size > 1]
        if not rings:
            raise SimulationError("the collective involves no dimension with several devices")
        return self._plan(kind, size_bytes, rings, is_subgroup=False)

    def _group(self, kind: CollectiveKind, size_bytes: int, members: tuple[int, ...]) -> Plan:
        implementation = group_implementation(self._system, kind)
        ring = RingKind(implementation=implementation, size=len(members), stride=0, members=members)
        return self._plan(kind, size_bytes, [ring], is_subgroup=True)

    def _plan(
        self, kind: CollectiveKind, size_bytes: int, rings: list[RingKind], *, is_subgroup: bool
    ) -> Plan:
        chunks, chunk_bytes = chunks_of(self._system, kind, size_bytes)
        sizes = [
            PhaseRing(ring.implementation.algorithm, ring.size, ring.dimension) for ring in rings
        ]
        phases = phases_of(self._system, kind, chunk_bytes, sizes, self._queues)
        wait_ns = _SUBGROUP_ENDPOINT_NS if is_subgroup else endpoint_ns(self._system)
        return Plan(
            chunks=chunks,
            phases=tuple(phases),
            rings=tuple(rings),
            endpoint_ps=wait_ns * PS_PER_NS,
            is_subgroup=is_subgroup,
        )

    def _world_rings(self, kind: CollectiveKind) -> list[RingKind]:
        counts = [dimension.npus_count for dimension in self._system.dimensions]
        rings: list[RingKind] = []
        for index, told in enumerate(implementations(self._system, kind)):
            if told.is_one_ring:
                # One ring of all devices, also after other dimensions, ends the list.
                size, stride = prod(counts), 1
            else:
                size, stride = counts[index], prod(counts[:index])
            rings.append(RingKind(implementation=told, size=size, stride=stride, dimension=index))
            if told.is_one_ring:
                break
        return rings
