"""Define regions and build their graph from groups of operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hespas.base.frozen import frozen
from hespas.program.program import (
    Function,
    Op,
    Program,
    Value,
    is_communication_op,
    values_read,
)
from hespas.program.work import CustomCallCost
from hespas.work.expand import Cost, expand
from hespas.work.fusion import HostTraffic, host_traffic


@frozen
class LoopRound:
    """A round of a loop: the ``number``-th of ``count``, from 1.

    ``first`` and ``last`` are the ids of its first and its last region. ``loop`` names the loop.
    """

    loop: str
    number: int
    count: int
    first: int
    last: int


def rounds_of_regions(
    rounds: Iterable[LoopRound], region_of: Sequence[int | None]
) -> Iterator[LoopRound]:
    """Convert rounds from operation positions to region ids.

    ``first`` and ``last`` of the input are positions of operations. ``region_of`` gives the region
    of each operation, or None. A region with the end of a round and the beginning of the next one
    belongs to the former; a round without its own region is left out.
    """
    reached: dict[str, int] = {}
    for loop_round in rounds:
        region_ids = [
            number
            for number in region_of[loop_round.first : loop_round.last + 1]
            if number is not None
        ]
        first = max(min(region_ids, default=0), reached.get(loop_round.loop, -1) + 1)
        last = max(region_ids, default=-1)
        if first <= last:
            reached[loop_round.loop] = last
            yield replace(loop_round, first=first, last=last)


@frozen
class FlatProgram:
    """Operations without the terminator, and the assumptions made in flattening.

    ``rounds`` are the iterations of unrolled loops, by positions of operations.
    """

    arguments: tuple[Value, ...]
    operations: tuple[Op, ...]
    results: tuple[Value, ...]
    assumptions: tuple[str, ...]
    rounds: tuple[LoopRound, ...] = ()


Stated = frozenset[tuple[str, CustomCallCost]]
"""What is stated of the work of custom calls, by target."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compute:
    """Operations that run on a device without communication, in program order.

    ``constants`` are copied into every region that uses them; they cost nothing. Other regions
    produce ``inputs`` and use ``outputs``. ``opened`` keeps the work inside, by what is stated of
    custom calls: every method that prices a region asks for it.
    """

    id: int
    operations: tuple[Op, ...]
    constants: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    opened: dict[Stated, tuple[Cost, ...]] = field(
        init=False, default_factory=dict[Stated, tuple[Cost, ...]], repr=False
    )

    def costs(
        self, functions: Mapping[str, Function], custom_calls: Mapping[str, CustomCallCost]
    ) -> tuple[Cost, ...]:
        """Return the work inside; raises as `hespas.work.expand.expand` does."""
        stated = frozenset(custom_calls.items())
        if stated not in self.opened:
            self.opened[stated] = expand(self.operations, functions, custom_calls=custom_calls)
        return self.opened[stated]


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
    """One operation that moves data between device and host memory.

    ``traffic`` has the bytes of each direction.
    """

    id: int
    operation: Op
    constants: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    traffic: HostTraffic


Region = Compute | Collective | HostTransfer


@frozen
class RegionGraph:
    """Regions in program order, with edges from producer to consumer.

    ``producers[i]`` lists, ascending, the ids of the regions that region ``i`` waits for: whose
    outputs it reads, or which a compiler's schedule puts before it. Each is less than ``i``.
    ``rounds`` are the iterations of unrolled loops whose regions keep their order. If loops are
    folded into some rounds, ``counts`` says how often each region runs; else it is empty.
    ``host_waits`` lists, by region, the regions that the host waits for before its launch.
    """

    program: Program
    regions: tuple[Region, ...]
    producers: tuple[tuple[int, ...], ...]
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    assumptions: tuple[str, ...] = ()
    rounds: tuple[LoopRound, ...] = ()
    counts: tuple[int, ...] = ()
    host_waits: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    @property
    def kernels(self) -> int:
        """The number of regions that a step runs."""
        return sum(self.counts) if self.counts else len(self.regions)

    @property
    def is_folded(self) -> bool:
        """Whether some rounds of loops represent several."""
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
    """Return whether regions may hold their own copies of an operation."""
    return op.kind == "constant"


def build_graph(program: Program, flat: FlatProgram, groups: Sequence[Sequence[Op]]) -> RegionGraph:
    """Make one region of each group, in order.

    A group is one collective, or operations without communication; groups may leave out constants.
    Time and memory grow linearly with the operations.
    """
    constants = {op.results[0]: op for op in flat.operations if is_constant(op)}
    producer_of = {
        result: number
        for number, group in enumerate(groups)
        for op in group
        for result in op.results
    }
    reads = [_outside_values(group) for group in groups]
    used_elsewhere = set(flat.results).union(*reads)
    regions: list[Region] = []
    for number, (group, values) in enumerate(zip(groups, reads, strict=True)):
        copied = tuple([constants[value] for value in values if value in constants])
        inputs = tuple([value for value in values if value not in constants])
        outputs = tuple([value for op in group for value in op.results if value in used_elsewhere])
        regions.append(region_of(number, group, copied, inputs, outputs))
    producers = [
        tuple(sorted({producer_of[value] for value in region.inputs if value in producer_of}))
        for region in regions
    ]
    group_of = {op: number for number, group in enumerate(groups) for op in group}
    positions = [group_of.get(op) for op in flat.operations] if flat.rounds else []
    return RegionGraph(
        program=program,
        regions=tuple(regions),
        producers=tuple(producers),
        arguments=flat.arguments,
        results=flat.results,
        assumptions=(*program.assumptions, *flat.assumptions),
        rounds=tuple(rounds_of_regions(flat.rounds, positions)),
    )


def _outside_values(group: Sequence[Op]) -> dict[Value, None]:
    inside: set[Value] = set()
    outside: dict[Value, None] = {}
    for op in group:
        outside.update((value, None) for value in values_read(op) if value not in inside)
        inside.update(op.results)
    return outside


def region_of(
    number: int,
    group: Sequence[Op],
    constants: tuple[Op, ...],
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
) -> Region:
    """Return the region of a group of operations."""
    operation = group[0]
    if len(group) == 1 and is_communication_op(operation):
        return Collective(
            id=number, operation=operation, constants=constants, inputs=inputs, outputs=outputs
        )
    traffic = host_traffic(operation) if len(group) == 1 else None
    if traffic:
        return HostTransfer(
            id=number,
            operation=operation,
            constants=constants,
            inputs=inputs,
            outputs=outputs,
            traffic=traffic,
        )
    return Compute(
        id=number, operations=tuple(group), constants=constants, inputs=inputs, outputs=outputs
    )
