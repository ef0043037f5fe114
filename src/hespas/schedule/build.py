"""From regions and their durations to a task graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hespas.errors import UnsupportedError
from hespas.program.attrs import PermuteAttrs
from hespas.program.devices import device_group_table, device_pairs
from hespas.program.program import Op, Program
from hespas.program.types import size_bytes
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    ComputeTask,
    GroupTable,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)
from hespas.split.regions import Collective, Compute, Region, RegionGraph

_KINDS = {
    "all_gather": CommunicationKind.ALL_GATHER,
    "all_reduce": CommunicationKind.ALL_REDUCE,
    "cross-replica-sum": CommunicationKind.ALL_REDUCE,
    "all_to_all": CommunicationKind.ALL_TO_ALL,
    "collective_broadcast": CommunicationKind.BROADCAST,
    "reduce_scatter": CommunicationKind.REDUCE_SCATTER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTime:
    """How long a compute region takes, and the kind of operation that takes most of it."""

    duration_ps: int
    label: str


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Tasks made so far.

    ``ends`` holds, for each region, the tasks that finish it; ``latest`` the tasks of the latest
    communication.
    """

    program: Program
    tasks: list[Task] = field(default_factory=list[Task])
    ends: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    tables: dict[GroupTable, int] = field(default_factory=dict[GroupTable, int])
    latest: tuple[int, ...] = ()

    def depends_on(self, producers: Sequence[int]) -> tuple[int, ...]:
        if len(producers) == 1:
            return self.ends[producers[0]]
        return tuple(sorted({end for producer in producers for end in self.ends[producer]}))

    def communicate(self, *tasks: Task) -> tuple[int, ...]:
        """Append tasks of one communication, the next in the order that all devices keep."""
        self.tasks.extend(tasks)
        self.latest = tuple(task.id for task in tasks)
        return self.latest

    def after_latest(self, depends_on: tuple[int, ...]) -> tuple[int, ...]:
        """Add the latest communication to what a communication depends on."""
        return tuple(sorted({*depends_on, *self.latest}))

    def order_only(self, depends_on: tuple[int, ...]) -> tuple[int, ...]:
        """Return what `after_latest` adds, unless one stream carries all that communicates.

        A scheduled program's device has such a stream.
        """
        if self.program.is_scheduled:
            return ()
        return tuple(sorted({*self.latest}.difference(depends_on)))


def build_task_graph(
    graph: RegionGraph, times: Sequence[RegionTime | None], *, name: str
) -> TaskGraph:
    """Make the task graph of a program whose device count is settled.

    ``times`` has one entry per region, None for a collective. Ids count up from 0 in program
    order; names carry the region's id. Communication waits for the one before it in the
    program: left to start what is ready first, devices that differ would start it in different
    orders and wait for each other for ever. A collective among groups of one device, or of
    nothing, moves no data and makes no task. Raises `UnsupportedError` for communication that
    has no task.
    """
    builder = _Builder(program=graph.program)
    for region, producers, time in zip(graph.regions, graph.producers, times, strict=True):
        depends_on = builder.depends_on(producers)
        builder.ends.append(_add(builder, region, depends_on, time))
    return TaskGraph(
        name=name,
        device_count=graph.program.declared_devices or 1,
        tasks=tuple(builder.tasks),
        group_tables=tuple(builder.tables),
    )


def _add(
    builder: _Builder, region: Region, depends_on: tuple[int, ...], time: RegionTime | None
) -> tuple[int, ...]:
    match region:
        case Compute():
            return _add_compute(builder, region, depends_on, time)
        case Collective(operation=op) if isinstance(op.attrs, PermuteAttrs):
            return _add_permute(builder, region, depends_on)
        case Collective():
            return _add_collective(builder, region, depends_on)


def _add_compute(
    builder: _Builder, region: Compute, depends_on: tuple[int, ...], time: RegionTime | None
) -> tuple[int, ...]:
    if time is None:
        raise ValueError(f"region {region.id} computes but has no duration")
    number = len(builder.tasks)
    builder.tasks.append(
        ComputeTask(
            id=number,
            name=region_name(region),
            depends_on=depends_on,
            duration_ps=time.duration_ps,
            label=time.label,
        )
    )
    return (number,)


def region_name(region: Region) -> str:
    """Return the name of a region's task: the compiler's, where the region is an instruction."""
    match region:
        case Compute(operations=(op,)) if op.instruction:
            return op.instruction
        case Compute():
            return f"region_{region.id}"
        case Collective(operation=op):
            return op.instruction or f"{op.kind}_{region.id}"


def operand_bytes(op: Op) -> int:
    """Return the bytes that one device puts into a collective."""
    return sum(size_bytes(value.type) for value in op.operands)


def _add_collective(
    builder: _Builder, region: Collective, depends_on: tuple[int, ...]
) -> tuple[int, ...]:
    op = region.operation
    kind = _KINDS.get(op.kind)
    if kind is None:
        raise UnsupportedError("this way of communicating has no model", location=op.location)
    groups = device_group_table(op, builder.program)
    table = tuple(group for group in groups if len(group) > 1)
    size = operand_bytes(op)
    if not table or size == 0:
        return depends_on
    number = len(builder.tasks)
    everyone = len(table) == 1 and len(table[0]) == builder.program.declared_devices
    group_table = None if everyone else builder.tables.setdefault(table, len(builder.tables))
    return builder.communicate(
        CollectiveTask(
            id=number,
            name=region_name(region),
            depends_on=builder.after_latest(depends_on),
            kind=kind,
            size_bytes=size,
            group_table=group_table,
            order_only=builder.order_only(depends_on),
        )
    )


def _add_permute(
    builder: _Builder, region: Collective, depends_on: tuple[int, ...]
) -> tuple[int, ...]:
    op = region.operation
    pairs = tuple(pair for pair in device_pairs(op, builder.program) if pair[0] != pair[1])
    size = operand_bytes(op)
    if not pairs or size == 0:
        return depends_on
    send = len(builder.tasks)
    waits_for = builder.after_latest(depends_on)
    order_only = builder.order_only(depends_on)
    return builder.communicate(
        SendTask(
            id=send,
            name=f"{region_name(region)}_send",
            depends_on=waits_for,
            pairs=pairs,
            size_bytes=size,
            tag=send,
            order_only=order_only,
        ),
        ReceiveTask(
            id=send + 1,
            name=f"{region_name(region)}_receive",
            depends_on=waits_for,
            pairs=pairs,
            size_bytes=size,
            tag=send,
            order_only=order_only,
        ),
    )
