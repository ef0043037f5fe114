"""Regions and the graph that they form."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.program.program import Op, Program, Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compute:
    """Operations that run on a device without communication, in program order.

    ``constants`` are copied into every region that uses them; they cost nothing. ``inputs``
    are made elsewhere; ``outputs`` are used elsewhere.
    """

    id: int
    operations: tuple[Op, ...]
    constants: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collective:
    """One operation that moves data between devices."""

    id: int
    operation: Op
    constants: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


Region = Compute | Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionGraph:
    """Regions in program order, with edges from producer to consumer.

    ``producers[i]`` lists, ascending, the ids of the regions whose outputs region ``i`` reads, or
    for which the schedule makes it wait, where a compiler made one; each is less than ``i``.
    """

    program: Program
    regions: tuple[Region, ...]
    producers: tuple[tuple[int, ...], ...]
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def compute_regions(self) -> tuple[Compute, ...]:
        """The regions of computation, in program order."""
        return tuple(region for region in self.regions if isinstance(region, Compute))

    @property
    def collective_regions(self) -> tuple[Collective, ...]:
        """The regions of communication, in program order."""
        return tuple(region for region in self.regions if isinstance(region, Collective))


def operations_of(region: Region) -> tuple[Op, ...]:
    """Return a region's operations, without its constants."""
    return region.operations if isinstance(region, Compute) else (region.operation,)
