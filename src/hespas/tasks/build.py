"""Build a program's task graph from regions and durations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S, format_quantity
from hespas.errors import HardwareError, TraceError, UnsupportedError, option
from hespas.price.estimate import Estimate
from hespas.price.graph import GraphEstimate
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.collectives import CollectiveKind
from hespas.program.devices import device_group_table, device_pairs
from hespas.program.program import Op, Program
from hespas.program.types import size_bytes
from hespas.split.regions import Collective, Compute, HostTransfer, Region, RegionGraph
from hespas.tasks.graph import (
    HOST_LAUNCH,
    CollectiveTask,
    ComputeTask,
    GroupTable,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    is_host_launch,
)

_KINDS = {
    "all_gather": CollectiveKind.ALL_GATHER,
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "cross-replica-sum": CollectiveKind.ALL_REDUCE,
    "all_to_all": CollectiveKind.ALL_TO_ALL,
    "collective_broadcast": CollectiveKind.BROADCAST,
    "ragged_all_to_all": CollectiveKind.ALL_TO_ALL,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
}


BETWEEN_PROGRAMS = 2**31 - 1
"""The tag of messages whose ends are in two programs; other tags are ids of tasks."""


@frozen
class RegionTime:
    """A compute region's duration.

    ``label`` is its most expensive operation, ``arithmetic_share`` the share that arithmetic
    bounds.
    """

    duration_ps: int
    label: str
    arithmetic_share: float = 1.0


@dataclass(slots=True, kw_only=True)
class _Builder:
    """The tasks of the regions so far.

    ``ends`` holds the last tasks of each region, ``latest`` the tasks of the latest communication,
    ``launched`` the host's latest launch, ``numbers`` the tables of groups by their identity.
    ``host_bandwidth_bytes_per_s`` is the bandwidth of the host link in each direction.
    """

    program: Program
    host_bandwidth_bytes_per_s: float | None
    tasks: list[Task] = field(default_factory=list[Task])
    ends: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    tables: dict[GroupTable, int] = field(default_factory=dict[GroupTable, int])
    numbers: dict[int, tuple[GroupTable, int]] = field(
        default_factory=dict[int, tuple[GroupTable, int]]
    )
    latest: tuple[int, ...] = ()
    launched: tuple[int, ...] = ()

    def launch(self, region: Region, waits: Sequence[int]) -> tuple[int, ...]:
        """Append the host's launch of a region, if any.

        The launch waits for the regions ``waits``.
        """
        recorded = self.program.recorded
        if recorded is None or recorded.host_launch_s <= 0:
            return ()
        number = len(self.tasks)
        self.tasks.append(
            ComputeTask(
                id=number,
                name=f"launch {region_name(region)}",
                depends_on=tuple(sorted({*self.launched, *self.depends_on(waits)})),
                duration_ps=round(recorded.host_launch_s * PS_PER_S),
                label=HOST_LAUNCH,
                is_on_host=True,
            )
        )
        self.launched = (number,)
        return self.launched

    def table_number(self, groups: GroupTable) -> int:
        """Return the number of the table of groups of several devices.

        To compare the groups of a million devices takes long: most collectives share one table.
        """
        found = self.numbers.get(id(groups))
        if found is None:
            table = tuple([group for group in groups if len(group) > 1])
            found = groups, self.tables.setdefault(table, len(self.tables))
            self.numbers[id(groups)] = found
        return found[1]

    def depends_on(self, producers: Sequence[int]) -> tuple[int, ...]:
        if len(producers) == 1:
            return self.ends[producers[0]]
        return tuple(sorted({end for producer in producers for end in self.ends[producer]}))

    def communicate(self, *tasks: Task) -> tuple[int, ...]:
        """Append a communication's tasks, and make it the latest."""
        self.tasks.extend(tasks)
        self.latest = tuple(task.id for task in tasks)
        return self.latest

    def after_latest(self, depends_on: tuple[int, ...]) -> tuple[int, ...]:
        """Return a communication's dependencies, with the latest communication."""
        return tuple(sorted({*depends_on, *self.latest}))

    def order_only(self, depends_on: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dependencies that `after_latest` adds.

        There are none for a program that a compiler scheduled: a device that runs it has one stream
        for all communication. Frameworks have one for each group.
        """
        program = self.program
        if program.is_scheduled and not (program.is_recorded or program.is_of_libraries):
            return ()
        return tuple(sorted({*self.latest}.difference(depends_on)))


def build_task_graph(
    graph: RegionGraph,
    times: Sequence[RegionTime | None],
    *,
    name: str,
    host_bandwidth_bytes_per_s: float | None = None,
) -> TaskGraph:
    """Build the task graph of a program for its devices.

    ``times`` has one entry per region, None for communication and transfers. Ids count up from 0 in
    program order; names carry the region's id. Each communication waits for the one before it in
    the program: if devices started any communication that is ready, unequal devices would start
    them in different orders and deadlock. A collective among groups of one device, or of no bytes,
    becomes no task. A transfer to or from the host takes its bytes divided by
    ``host_bandwidth_bytes_per_s``. Raises `UnsupportedError` for a collective that no task
    represents, and `HardwareError` for a transfer over a link of unknown bandwidth.

    In a recorded program, the host launches one region after another.
    """
    builder = _Builder(program=graph.program, host_bandwidth_bytes_per_s=host_bandwidth_bytes_per_s)
    for region, producers, time in zip(graph.regions, graph.producers, times, strict=True):
        launch = builder.launch(region, graph.host_waits.get(region.id, ()))
        depends_on = builder.depends_on(producers)
        depends_on = tuple(sorted({*depends_on, *launch})) if launch else depends_on
        builder.ends.append(_add(builder, region, depends_on, time))
    return TaskGraph(
        name=name,
        device_count=graph.program.declared_devices or 1,
        tasks=tuple(builder.tasks),
        group_tables=tuple(builder.tables),
    )


def estimated_tasks(
    graph: RegionGraph,
    estimates: GraphEstimate,
    *,
    host_bandwidth_bytes_per_s: float | None = None,
) -> TaskGraph:
    """Build the task graph of all devices from regions' estimates.

    Raises `TraceError` for estimates of another graph, and what `build_task_graph` raises.
    """
    costs = estimates.estimate_of_region
    is_computed = [isinstance(region, Compute) for region in graph.regions]
    if is_computed != [estimate is not None for estimate in costs]:
        raise TraceError(
            f"these are estimates of another graph: {len(costs)} regions, not {len(is_computed)}, "
            "or others of them communicate",
            location=graph.program.source,
            hint="estimate the graph that is traced",
        )
    times = [
        estimate and _region_time(region, estimate)
        for region, estimate in zip(graph.regions, costs, strict=True)
    ]
    return build_task_graph(
        graph,
        times,
        name=graph.program.source,
        host_bandwidth_bytes_per_s=host_bandwidth_bytes_per_s,
    )


def arithmetic_share(estimate: Estimate) -> float:
    """Return the share of a region's time that arithmetic bounds."""
    total = estimate.total
    return min(1.0, total.bound.compute_s / total.time_s) if total.time_s > 0 else 0.0


def _region_time(region: Region, estimate: Estimate) -> RegionTime:
    """Return a region's time, with its only or longest operation."""
    match region:
        case Compute(operations=(op,)):
            label = op.name
        case _:
            label = estimate.longest_kind
    share = arithmetic_share(estimate)
    return RegionTime(duration_ps=estimate.duration_ps, label=label, arithmetic_share=share)


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
        case HostTransfer():
            return _add_host_transfer(builder, region, depends_on)


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
            arithmetic_share=time.arithmetic_share,
        )
    )
    return (number,)


def region_name(region: Region) -> str:
    """Return a region's task name, preferably the compiler's."""
    match region:
        case Compute(operations=(op,)) if op.instruction:
            return op.instruction
        case Compute():
            return f"region_{region.id}"
        case Collective(operation=op) | HostTransfer(operation=op):
            return op.instruction or f"{op.kind}_{region.id}"


def regions_of_tasks(graph: RegionGraph, tasks: TaskGraph) -> dict[int, Region]:
    """Return the region of each task, by task id.

    A collective that moves no data has no task; a permutation has a send and a receive, and a
    transfer in both directions has two tasks.
    """
    region_of: dict[int, Region] = {}
    remaining = deque(task for task in tasks.tasks if not is_host_launch(task))
    for region in graph.regions:
        name = region_name(region)
        # A region with two tasks begins with a send, or with a transfer to the host.
        first_names = () if isinstance(region, Compute) else (f"{name}_send", f"{name}_to_host")
        names = {name, *first_names}
        if not remaining or remaining[0].name not in names:
            continue
        task = remaining.popleft()
        region_of[task.id] = region
        if task.name != name:
            region_of[remaining.popleft().id] = region
    return region_of


def check_host_link(graph: RegionGraph, bandwidth_bytes_per_s: float | None) -> None:
    """Raise `HardwareError` if host transfers have no link bandwidth."""
    transfers = graph.host_transfers
    if not transfers or bandwidth_bytes_per_s is not None:
        return
    total_text = format_quantity(sum(transfer.traffic.total_bytes for transfer in transfers), "B")
    raise HardwareError(
        f"a step moves {total_text} between the device and its host, and the bandwidth of the link "
        "between them is not known",
        location=transfers[0].operation.location,
        hint=f"give {option('host_bandwidth')}, in each direction, as in 64e9 for 64 GB/s",
    )


def _add_host_transfer(
    builder: _Builder, region: HostTransfer, depends_on: tuple[int, ...]
) -> tuple[int, ...]:
    bandwidth = builder.host_bandwidth_bytes_per_s
    if bandwidth is None:
        raise HardwareError(
            "the bandwidth of the link to the host is not known", location=region.operation.location
        )
    traffic = region.traffic
    directions = ((traffic.to_host_bytes, True), (traffic.from_host_bytes, False))
    parts = [(count, is_store) for count, is_store in directions if count]
    name, first = region_name(region), len(builder.tasks)
    for count, is_store in parts:
        suffix = "_to_host" if is_store else "_from_host"
        builder.tasks.append(
            MemoryTask(
                id=len(builder.tasks),
                name=name if len(parts) == 1 else f"{name}{suffix}",
                depends_on=depends_on,
                size_bytes=count,
                is_store=is_store,
                duration_ps=round(count / bandwidth * PS_PER_S),
            )
        )
    return tuple(range(first, len(builder.tasks)))


def operand_bytes(op: Op) -> int:
    """Return the bytes that one device contributes to a collective.

    One of the two arrays of a ``ragged_all_to_all`` may be longer than the data moved, because a
    device allocates more than its share. The shorter array counts, multiplied by the imbalance: the
    link of the busiest device decides.
    """
    if isinstance(op.attrs, CollectiveAttrs) and op.kind == "ragged_all_to_all":
        shorter = min(size_bytes(value.type) for value in op.operands[:2])
        return round(shorter * op.attrs.imbalance)
    is_received = isinstance(op.attrs, PermuteAttrs) and op.attrs.end == "receive"
    return sum(size_bytes(value.type) for value in (op.results if is_received else op.operands))


def _add_collective(
    builder: _Builder, region: Collective, depends_on: tuple[int, ...]
) -> tuple[int, ...]:
    op = region.operation
    kind = _KINDS.get(op.kind)
    if kind is None:
        raise UnsupportedError("this kind of communication has no model", location=op.location)
    groups = device_group_table(op, builder.program)
    size = operand_bytes(op)
    is_alone = all(len(group) < 2 for group in groups)
    if is_alone or size == 0:
        return depends_on
    number = len(builder.tasks)
    everyone = len(groups) == 1 and len(groups[0]) == builder.program.declared_devices
    group_table = None if everyone else builder.table_number(groups)
    return builder.communicate(
        CollectiveTask(
            id=number,
            name=region_name(region),
            depends_on=builder.after_latest(depends_on),
            kind=kind,
            size_bytes=size,
            group_table=group_table,
            order_only=builder.order_only(depends_on),
            kernel=op.attrs.kernel if isinstance(op.attrs, CollectiveAttrs) else "",
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
    if isinstance(op.attrs, PermuteAttrs) and op.attrs.end:
        one_end = ReceiveTask if op.attrs.end == "receive" else SendTask
        return builder.communicate(
            one_end(
                id=send,
                name=region_name(region),
                depends_on=waits_for,
                pairs=pairs,
                size_bytes=size,
                tag=BETWEEN_PROGRAMS,
                order_only=order_only,
            )
        )
    tasks = [
        kind(
            id=number,
            name=f"{region_name(region)}_{suffix}",
            depends_on=waits_for,
            pairs=pairs,
            size_bytes=size,
            tag=send,
            order_only=order_only,
        )
        for kind, number, suffix in (
            (SendTask, send, "send"),
            (ReceiveTask, send + 1, "receive"),
        )
    ]
    return builder.communicate(*tasks)
