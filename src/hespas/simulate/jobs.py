"""Jobs as devices run them: computed durations, devices that differ, several programs.

Source of the roofline and of ``replay-only``: ASTRA-sim. A task that is replayed lasts as long as
it did where it was recorded, and waits for no other device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING

from hespas.base.units import PS_PER_NS, PS_PER_S
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.kernel import BYTES_PER_TASK, check_memory
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    GroupTable,
    Job,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    needs,
)

if TYPE_CHECKING:
    from hespas.hardware.cluster import Cluster, Jitter

REPLAY = "replay-only"
"""The option of a system whose tasks last as long as they were recorded to."""


def is_replay(system: System) -> bool:
    """Return whether a system only replays what was recorded."""
    return bool(system.options.get(REPLAY))


def with_durations(job: Job, system: System | None) -> Job:
    """Return the job with a duration for every computation.

    It is the roofline's where the system has ``roofline-enabled``. Raises `SimulationError` as
    `with_roofline` does, and elsewhere for a computation that has work and no duration.
    """
    if system is not None and system.options.get("roofline-enabled") and not is_replay(system):
        return with_roofline(job, system)
    for graph in job.graphs:
        for task in graph.tasks:
            if isinstance(task, ComputeTask) and not task.has_duration:
                raise SimulationError(
                    f"task {task.id} ({task.name}) has num_ops or tensor_size and no duration",
                    location=graph.name,
                    hint="give it a duration, or set roofline-enabled, peak-perf and local-mem-bw "
                    "in system.json",
                )
    return job


def with_roofline(job: Job, system: System) -> Job:
    """Return the job with the durations that the system's peak and local memory allow.

    A computation of N operations that moves M bytes takes ``floor(N / min(peak, bw N / M))``,
    in ns; those on a CPU keep their durations. One of no bytes is skipped: it ends when it
    starts, and what depends on it starts when another task of the device ends. Raises
    `SimulationError` for a computation that lacks ``num_ops`` or ``tensor_size``, or has 0
    operations, and a system without ``peak-perf`` (TFLOP/s) or ``local-mem-bw``.
    """
    peak, bandwidth = system.options.get("peak-perf"), system.local_memory_bandwidth_bytes_per_s
    if not isinstance(peak, int | float) or bandwidth is None:
        hint = "add both to system.json"
        raise SimulationError(
            "roofline-enabled needs peak-perf and local-mem-bw", location=system.name, hint=hint
        )
    graphs = [
        replace(graph, tasks=tuple([_timed(task, peak * 1e12, bandwidth) for task in graph.tasks]))
        for graph in job.graphs
    ]
    return replace(job, graphs=tuple(graphs))


def _timed(task: Task, peak: float, bandwidth: float) -> Task:
    if not isinstance(task, ComputeTask) or task.is_on_host:
        return task
    if task.operations is not None and task.tensor_bytes == 0:
        # ASTRA-sim skips it, as a node that does nothing.
        return EmptyTask(id=task.id, name=task.name, depends_on=task.depends_on, is_compute=True)
    if not task.operations or not task.tensor_bytes:
        message = "roofline-enabled needs num_ops, above 0, and tensor_size"
        hint = "give it both, or mark computation of the CPU with is_cpu_op"
        raise SimulationError(message, location=f"task {task.id} ({task.name})", hint=hint)
    rate = min(bandwidth * (task.operations / task.tensor_bytes), peak)
    duration_ns = int(task.operations / rate * 1e9)
    return replace(task, duration_ps=duration_ns * PS_PER_NS, has_duration=True)


def on_cluster(job: Job, cluster: Cluster) -> Job:
    """Return the job as the devices of a cluster run it.

    Devices that differ follow graphs of their own; a delay is a task of the CPU that everything
    waits for. Raises `SimulationError` for devices that the job doesn't have.
    """
    check_devices(cluster, job.device_count)
    if not cluster.changes_devices:
        return job
    if cluster.jitter is not None:
        tasks = sum(len(job.graphs[index].tasks) for index in job.graph_of_device)
        check_memory(tasks, "tasks", bytes_each=BYTES_PER_TASK)
    graphs: list[TaskGraph] = []
    graph_numbers: dict[object, int] = {}
    graph_of_device: list[int] = []
    for device, index in enumerate(job.graph_of_device):
        scale = cluster.compute_scales.get(device, 1.0)
        delay_ps = round(cluster.delays_s.get(device, 0.0) * PS_PER_S)
        key = (index, scale, delay_ps, device if cluster.jitter else None)
        if key not in graph_numbers:
            graph_numbers[key] = len(graphs)
            graph = _scaled(job.graphs[index], scale, cluster.jitter, device)
            graphs.append(_delayed(graph, delay_ps))
        graph_of_device.append(graph_numbers[key])
    return Job(graphs=tuple(graphs), graph_of_device=tuple(graph_of_device))


def check_devices(cluster: Cluster, device_count: int) -> None:
    """Raise `SimulationError` for devices of a cluster that are not among so many."""
    named = {*cluster.compute_scales, *cluster.delays_s}
    absent = sorted(device for device in named if not 0 <= device < device_count)
    if absent:
        message = f"device {absent[0]} is not among the {device_count} devices"
        raise SimulationError(message, location=cluster.source)


def _scaled(graph: TaskGraph, scale: float, jitter: Jitter | None, device: int) -> TaskGraph:
    if scale == 1.0 and jitter is None:
        return graph
    factors = repeat(1.0) if jitter is None else jitter.factors(device)
    tasks = [
        replace(task, duration_ps=round(task.duration_ps * (scale * next(factors))))
        if isinstance(task, ComputeTask)
        else task
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))


def _delayed(graph: TaskGraph, delay_ps: int) -> TaskGraph:
    if not delay_ps:
        return graph
    number = max((task.id for task in graph.tasks), default=0) + 1
    delay = ComputeTask(
        id=number, name="delay", depends_on=(), duration_ps=delay_ps, is_on_host=True
    )
    tasks = [
        task if needs(task) else replace(task, depends_on=(*task.depends_on, number))
        for task in graph.tasks
    ]
    return replace(graph, tasks=(delay, *tasks))


def joined_job(
    programs: Sequence[tuple[Job, tuple[int, ...]]], device_count: int, *, location: str
) -> Job:
    """Return one job of several, each on its own devices.

    A job for as many devices as are listed for it numbers them from 0 in their order; a job for all
    devices numbers them as they are, so that programs can send to each other. Raises
    `SimulationError` for devices with two programs or none, and jobs of other sizes.
    """
    graphs: list[TaskGraph] = []
    graph_of: dict[int, int] = {}
    for job, devices in programs:
        if job.device_count not in (len(devices), device_count):
            message = f"a program for {job.device_count} devices runs on {len(devices)}"
            raise SimulationError(message, location=location)
        is_local = job.device_count == len(devices)
        first = len(graphs)
        graphs += [_moved(graph, devices if is_local else None, device_count)
                   for graph in job.graphs]  # fmt: skip
        for position, device in enumerate(devices):
            if device in graph_of or not 0 <= device < device_count:
                message = (
                    f"device {device} has two programs, or is not among the {device_count} devices"
                )
                raise SimulationError(message, location=location)
            graph_of[device] = first + job.graph_of_device[position if is_local else device]
    missing = [device for device in range(device_count) if device not in graph_of]
    if missing:
        raise SimulationError(f"device {missing[0]} has no program", location=location)
    order = tuple([graph_of[device] for device in range(device_count)])
    return Job(graphs=tuple(graphs), graph_of_device=order)


def _moved(graph: TaskGraph, devices: tuple[int, ...] | None, device_count: int) -> TaskGraph:
    if devices is None:
        return graph
    tables: list[GroupTable] = [
        tuple([tuple([devices[member] for member in group]) for group in table])
        for table in graph.group_tables
    ]
    if any(isinstance(task, CollectiveTask) and task.group_table is None for task in graph.tasks):
        tables.append((devices,))

    def moved(task: Task) -> Task:
        match task:
            case CollectiveTask(group_table=None):
                return replace(task, group_table=len(tables) - 1)
            case SendTask() | ReceiveTask():
                pairs = tuple([(devices[source], devices[target]) for source, target in task.pairs])
                return replace(task, pairs=pairs)
            case _:
                return task

    return replace(
        graph,
        device_count=device_count,
        tasks=tuple([moved(task) for task in graph.tasks]),
        group_tables=tuple(tables),
    )
