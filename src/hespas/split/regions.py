"""Regions and the graph that they form, and how groups of operations become that graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hespas.program.program import Op, Program, Value, is_communication_op, values_read
from hespas.split.flatten import FlatProgram
from hespas.split.rounds import LoopRound, rounds_of_regions
from hespas.work.fusion import HostTraffic, host_traffic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compute:
    """Operations that run on a device without communication, in program order.

    ``constants`` are copied into every region that uses them; they cost nothing. Other regions
    make ``inputs`` and use ``outputs``.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTransfer:
    """One operation that moves data between device memory and the host's.

    ``traffic`` is what it moves, in either direction.
    """

    id: int
    operation: Op
    constants: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    traffic: HostTraffic


Region = Compute | Collective | HostTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionGraph:
    """Regions in program order, with edges from producer to consumer.

    ``producers[i]`` lists, ascending, the ids of the regions that region ``i`` waits for: whose
    outputs it reads, or which a compiler's schedule puts before it. Each is less than ``i``.
    ``rounds`` are those of loops that are unrolled, where regions keep their order. Where loops
    are folded into some rounds, ``counts`` says how often each region runs; it is empty elsewhere.
    """

    program: Program
    regions: tuple[Region, ...]
    producers: tuple[tuple[int, ...], ...]
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    assumptions: tuple[str, ...] = ()
    rounds: tuple[LoopRound, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def kernels(self) -> int:
        """How many regions a step runs."""
        return sum(self.counts) if self.counts else len(self.regions)

    @property
    def is_folded(self) -> bool:
        """Whether some rounds of loops stand for others."""
        return self.kernels != len(self.regions)

    @property
    def compute_regions(self) -> tuple[Compute, ...]:
        """The regions of computation, in program order."""
        return tuple(region for region in self.regions if isinstance(region, Compute))

    @property
    def collective_regions(self) -> tuple[Collective, ...]:
        """The regions of communication, in program order."""
        return tuple(region for region in self.regions if isinstance(region, Collective))

    @property
    def host_transfers(self) -> tuple[HostTransfer, ...]:
        """The regions that move data to and from hosts, in program order."""
        return tuple(region for region in self.regions if isinstance(region, HostTransfer))


def operations_of(region: Region) -> tuple[Op, ...]:
    """Return a region's operations, without its constants."""
    return region.operations if isinstance(region, Compute) else (region.operation,)


def is_constant(op: Op) -> bool:
    """Return whether every region that uses an operation may hold its own copy of it."""
    return op.kind == "constant"


def build_graph(program: Program, flat: FlatProgram, groups: Sequence[Sequence[Op]]) -> RegionGraph:
    """Make one region of each group, in order; constants may be left out of the groups.

    A group is one collective, or operations without communication. Time and memory grow
    linearly with the operations.
    """
    constants = {op.results[0]: op for op in flat.operations if is_constant(op)}
    region_of = {
        result: number
        for number, group in enumerate(groups)
        for op in group
        for result in op.results
    }
    reads = [_outside_values(group) for group in groups]
    used_elsewhere = set(flat.results).union(*reads)
    regions = tuple(
        [
            _region(number, group, values, constants, used_elsewhere)
            for number, (group, values) in enumerate(zip(groups, reads, strict=True))
        ]
    )
    producers = tuple(
        [
            tuple(sorted({region_of[value] for value in region.inputs if value in region_of}))
            for region in regions
        ]
    )
    return RegionGraph(
        program=program,
        regions=regions,
        producers=producers,
        arguments=flat.arguments,
        results=flat.results,
        assumptions=(*program.assumptions, *flat.assumptions),
        rounds=_rounds(flat, groups),
    )


def _rounds(flat: FlatProgram, groups: Sequence[Sequence[Op]]) -> tuple[LoopRound, ...]:
    if not flat.rounds:
        return ()
    region_of = {op: number for number, group in enumerate(groups) for op in group}
    return tuple(rounds_of_regions(flat.rounds, [region_of.get(op) for op in flat.operations]))


def values_read_by(op: Op) -> Iterable[Value]:
    """Return the values that an operation and its nested operations read from outside of it."""
    return values_read(op) if op.regions else op.operands


def region_alone(
    number: int,
    op: Op,
    constants: tuple[Op, ...],
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
) -> Collective | HostTransfer | None:
    """Return the region of an operation that communicates or moves to a host, None for others."""
    if is_communication_op(op):
        return Collective(
            id=number, operation=op, constants=constants, inputs=inputs, outputs=outputs
        )
    traffic = host_traffic(op)
    if not traffic:
        return None
    return HostTransfer(
        id=number,
        operation=op,
        constants=constants,
        inputs=inputs,
        outputs=outputs,
        traffic=traffic,
    )


def _outside_values(group: Sequence[Op]) -> dict[Value, None]:
    """Return the values that a group reads from outside, in order of use."""
    if len(group) == 1:
        return dict.fromkeys(values_read_by(group[0]))
    inside: set[Value] = set()
    outside: dict[Value, None] = {}
    for op in group:
        for value in values_read_by(op):
            if value not in inside:
                outside[value] = None
        inside.update(op.results)
    return outside


def _region(
    number: int,
    group: Sequence[Op],
    values: Iterable[Value],
    constants: Mapping[Value, Op],
    used_elsewhere: set[Value],
) -> Region:
    copied = tuple([constants[value] for value in values if value in constants])
    inputs = tuple([value for value in values if value not in constants])
    outputs = tuple([value for op in group for value in op.results if value in used_elsewhere])
    alone = region_alone(number, group[0], copied, inputs, outputs) if len(group) == 1 else None
    return alone or Compute(
        id=number, operations=tuple(group), constants=copied, inputs=inputs, outputs=outputs
    )
