"""Simulate jobs by either network model, with its settings.

It prepares jobs for their devices: computed durations, devices that differ, several programs.
Source of the roofline and of ``replay-only``: ASTRA-sim. A replayed task takes its recorded
duration and waits for no other device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import assert_never

from hespas.base.fields import changed
from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.errors import ConfigError, DeviceCountError, SimulationError, option
from hespas.hardware.cluster import Cluster, Jitter
from hespas.hardware.interconnect import Interconnect
from hespas.hardware.jobs import ALONE
from hespas.hardware.system import System, interconnect_of
from hespas.program.collectives import COMMON_KINDS
from hespas.simulate.astra.plan import PER_NODE, custom_option
from hespas.simulate.kernel import BYTES_PER_TASK, check_memory
from hespas.simulate.options import SPECIFIED, USUAL, AstraSettings, ContentionModel, Model
from hespas.simulate.timeline import ClassTimeline, Timeline
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
    as_job,
    needs,
)

REPLAY = "replay-only"
"""The option of a system whose tasks take their recorded durations."""


def is_replay(system: System) -> bool:
    """Return whether a system replays recorded durations."""
    return bool(system.options.get(REPLAY))


def with_durations(job: Job, system: System | None) -> Job:
    """Return the job with a duration for every computation.

    With the system's ``roofline-enabled`` it is the roofline's. Otherwise a computation with work
    and no duration raises `SimulationError`.
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
    """Return the job with durations of the roofline.

    A computation of N operations that moves M bytes takes ``floor(N / min(peak, bw N / M))``,
    in ns; computations on a CPU keep their durations. A computation of no bytes is skipped: it ends
    when it starts, and its dependents start when another task of the device ends. Raises
    `SimulationError` for a computation that lacks ``num_ops`` or ``tensor_size``, or has 0
    operations, and for a system without ``peak-perf`` (TFLOP/s) or ``local-mem-bw``.
    """
    peak, bandwidth = system.options.get("peak-perf"), system.local_memory_bandwidth_bytes_per_s
    if not isinstance(peak, int | float) or bandwidth is None:
        hint = "add both to system.json"
        raise SimulationError(
            "roofline-enabled needs peak-perf and local-mem-bw", location=system.name, hint=hint
        )
    graphs: list[TaskGraph] = []
    for graph in job.graphs:
        tasks = [_with_roofline_duration(task, peak * 1e12, bandwidth) for task in graph.tasks]
        graphs.append(replace(graph, tasks=tuple(tasks)))
    return replace(job, graphs=tuple(graphs))


def _with_roofline_duration(task: Task, peak: float, bandwidth: float) -> Task:
    if not isinstance(task, ComputeTask) or task.is_on_host:
        return task
    if task.operations is not None and task.tensor_bytes == 0:
        # ASTRA-sim skips it like a node without work.
        return EmptyTask(id=task.id, name=task.name, depends_on=task.depends_on, is_compute=True)
    if not task.operations or not task.tensor_bytes:
        message = "roofline-enabled needs num_ops, above 0, and tensor_size"
        hint = "give it both, or mark computation of the CPU with is_cpu_op"
        raise SimulationError(message, location=f"task {task.id} ({task.name})", hint=hint)
    rate = min(bandwidth * (task.operations / task.tensor_bytes), peak)
    duration_ns = int(task.operations / rate * 1e9)
    return replace(task, duration_ps=duration_ns * PS_PER_NS, has_duration=True)


def on_cluster(job: Job, cluster: Cluster) -> Job:
    """Return the job as a cluster's devices run it.

    Devices that differ follow separate graphs; a delay is a CPU task that all tasks wait for.
    Raises `SimulationError` for devices that the job doesn't have.
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


def check_size(device_count: int, network: System | Interconnect) -> None:
    """Raise `DeviceCountError` if network and job differ in size."""
    if device_count != network.device_count:
        has = f"{network.name} has {network.device_count}"
        raise DeviceCountError(f"the job is for {device_count} devices, {has}")


def option_of_astra_sim(system: System) -> str | None:
    """Return a set option that only ASTRA-sim's model has."""
    names = (REPLAY, "model-shared-bus", PER_NODE, *map(custom_option, COMMON_KINDS))
    return next((name for name in names if system.options.get(name)), None)


def check_devices(cluster: Cluster, device_count: int) -> None:
    """Raise `SimulationError` for a cluster's devices outside the job."""
    devices = {*cluster.compute_scales, *cluster.delays_s}
    absent = sorted(device for device in devices if not 0 <= device < device_count)
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
    """Join several jobs, each on its own devices.

    A job for exactly its listed devices numbers them from 0 in their order; a job for all devices
    keeps their numbers, so programs can send to each other. Raises `SimulationError` for devices
    with two programs or none, and for jobs of other sizes.
    """
    graphs: list[TaskGraph] = []
    graph_of: dict[int, int] = {}
    for job, devices in programs:
        if job.device_count not in (len(devices), device_count):
            message = f"a program for {job.device_count} devices runs on {len(devices)}"
            raise SimulationError(message, location=location)
        is_local = job.device_count == len(devices)
        first = len(graphs)
        graphs += (
            [_renumbered(graph, devices, device_count) for graph in job.graphs]
            if is_local
            else job.graphs
        )
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


def _renumbered(graph: TaskGraph, devices: tuple[int, ...], device_count: int) -> TaskGraph:
    """Return a graph of local device numbers with the cluster's."""
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


_OWNERS = {
    "network": Model.ASTRA_SIM,
    "num_queues_per_dim": Model.ASTRA_SIM,
    "rendezvous_protocol": Model.ASTRA_SIM,
    "injection_scale": Model.ASTRA_SIM,
    "algorithm": Model.HESPAS,
    "links": Model.HESPAS,
    "jobs": Model.HESPAS,
}
"""The model that has each setting, by option name; links are an imperfect cluster's."""


def default_model(system: System | None, settings: Mapping[str, object]) -> Model:
    """Return a system's model if the user names none.

    ``settings`` are by option name, None if not set: the first set one decides, because only one
    model has it. Otherwise it is hespas' own model if the system's network is described
    for it, or if nothing describes the system to ASTRA-sim; else it is ASTRA-sim's.
    """
    for name, value in settings.items():
        if value is not None:
            return _OWNERS[name]
    if system is None or system.interconnect is not None or not system.dimensions:
        return Model.HESPAS
    return Model.ASTRA_SIM


@frozen
class ModelChoice:
    """A network model with its settings; None is the default.

    ``network`` and ``astra`` are settings of ASTRA-sim's model, ``algorithm`` is a setting of
    hespas' own. ``cluster`` lists imperfections.
    Raises `ConfigError` for a setting of the other model.
    """

    model: Model = Model.ASTRA_SIM
    network: ContentionModel | None = None
    astra: AstraSettings = USUAL
    algorithm: str | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        settings = {
            "network": self.network,
            **dict.fromkeys(changed(self.astra), True),
            "algorithm": self.algorithm,
        }
        for name, value in settings.items():
            owner = _OWNERS[name]
            if value is not None and owner is not self.model:
                message = f"{option(name)} has no effect on the model {self.model.value}"
                hint = f"leave it out, or use {option('model')} {owner.value}"
                raise ConfigError(message, hint=hint)


def simulate_job(work: Job | TaskGraph, system: System, choice: ModelChoice) -> Timeline:
    """Return the timeline of a job by the chosen model.

    If a cluster has slow, late or jittering devices, the job is simulated a second time with every
    device as specified, so the timeline says how much time they cost. Raises
    `hespas.errors.DeviceCountError` if the job and the system differ in size, and `SimulationError`
    for jobs and systems that the model doesn't cover.
    """
    if system.jobs.count > 1:
        return _simulate_sharing(as_job(work), system, choice)
    job, cluster = as_job(work), choice.cluster
    timeline = _simulate(job, system, choice, cluster)
    if cluster is None:
        return timeline
    timeline = replace(timeline, imperfections=(cluster.assumption,))
    if not cluster.changes_devices:
        return timeline
    return replace(timeline, as_specified=_simulate(job, system, choice, None).slowest)


def _simulate_sharing(job: Job, system: System, choice: ModelChoice) -> Timeline:
    """Return the first of equal jobs' timelines on one network."""
    jobs, shared = system.jobs, replace(system, jobs=ALONE)
    if choice.model is not Model.HESPAS:
        raise ConfigError(
            f"{option('jobs')} is {jobs.count}: jobs share no links in ASTRA-sim's model",
            hint=f"use {option('model')} {Model.HESPAS.value}",
        )
    check_size(job.device_count, system)
    own, *other_devices = jobs.devices(interconnect_of(system))
    idle = as_job(TaskGraph(name="idle", device_count=job.device_count, tasks=(), group_tables=()))

    def simulated(neighbour: Job) -> Timeline:
        programs = [(job, own), *[(neighbour, devices) for devices in other_devices]]
        joined = joined_job(programs, shared.device_count, location=shared.name)
        return _of_devices(simulate_job(joined, shared, choice), job, own)

    contended, alone = simulated(job), simulated(idle)
    sharing = (
        f"network: {jobs.count} jobs share {shared.device_count} devices ({jobs.placement.value}), "
        "and run the same step from the same moment on"
    )
    times = format_time(alone.step_time_s), format_time(contended.step_time_s)
    verdict = "as long" if times[0] == times[1] else f"{times[0]} rather than {times[1]}"
    by_itself = f"network: alone on the same devices, {job.graphs[0].name} takes {verdict}"
    return replace(contended, assumptions=(sharing, by_itself, *contended.assumptions))


def _of_devices(timeline: Timeline, job: Job, devices: tuple[int, ...]) -> Timeline:
    """Return some devices' timeline, numbered from 0."""
    number = {device: index for index, device in enumerate(devices)}

    def of_job(timeline_of_class: ClassTimeline) -> ClassTimeline:
        own = tuple(number[device] for device in timeline_of_class.devices if device in number)
        return replace(
            timeline_of_class, devices=own, graph=job.graphs[job.graph_of_device[own[0]]]
        )

    classes = [item for item in timeline.classes if not number.keys().isdisjoint(item.devices)]
    specified = timeline.as_specified
    if specified is not None and number.keys().isdisjoint(specified.devices):
        specified = None
    return replace(
        timeline,
        classes=tuple([of_job(item) for item in classes]),
        as_specified=None if specified is None else of_job(specified),
    )


def step_times_s(
    work: Job | TaskGraph, system: System, choice: ModelChoice
) -> Callable[[Job | TaskGraph], float]:
    """Return a function that gives the step time of ``work`` with any durations."""
    is_shared = system.jobs.count > 1
    if choice.model is not Model.HESPAS or choice.cluster is not None or is_shared:
        return lambda job: simulate_job(job, system, choice).step_time_s
    # Imported here, as in `_simulate`.
    from hespas.simulate.flow.simulate import planned_flow  # noqa: PLC0415

    return planned_flow(work, system, algorithm=choice.algorithm or SPECIFIED).step_time_s


def _simulate(job: Job, system: System, choice: ModelChoice, devices: Cluster | None) -> Timeline:
    """Return the timeline on imperfect ``devices`` (None: as specified)."""
    try:
        job = job if devices is None else on_cluster(job, devices)
        check_supported(system, choice)
        match choice.model:
            case Model.HESPAS:
                # Neither model pays for the other's imports.
                from hespas.simulate.flow.simulate import simulate_flow  # noqa: PLC0415

                algorithm = choice.algorithm or SPECIFIED
                return simulate_flow(job, system, algorithm=algorithm, cluster=choice.cluster)
            case Model.ASTRA_SIM:
                from hespas.simulate.astra.simulate import simulate  # noqa: PLC0415 - as above

                return simulate(
                    job,
                    system,
                    network=choice.network or ContentionModel.CONGESTION_UNAWARE,
                    settings=choice.astra,
                )
            case _:
                assert_never(choice.model)
    except OverflowError as error:
        raise SimulationError(
            "a transfer or a task takes longer than can be computed with",
            location=system.name,
            hint="check its bandwidths and latencies, and the times of the job",
        ) from error


def check_choice(system: System, choice: ModelChoice) -> None:
    """Raise `SimulationError` for settings that are invalid for any job."""
    check_supported(system, choice)
    cluster = choice.cluster
    if cluster is not None:
        check_devices(cluster, interconnect_of(system).device_count)
    if choice.model is Model.HESPAS:
        # ASTRA-sim's model does not pay for this import.
        from hespas.simulate.flow.simulate import check_network  # noqa: PLC0415

        check_network(system, cluster)


def check_supported(system: System, choice: ModelChoice) -> None:
    """Raise `SimulationError` for a system or cluster the model lacks."""
    changes_devices = choice.cluster is not None and choice.cluster.changes_devices
    if changes_devices and system.options.get("roofline-enabled") and not is_replay(system):
        raise SimulationError(
            "slow devices have no effect on durations that roofline-enabled computes",
            location=system.name,
            hint="give the traces durations, or leave slow and late devices out",
        )
    if choice.model is not Model.ASTRA_SIM:
        return
    hint = f"use {option('model')} {Model.HESPAS.value}"
    if choice.cluster is not None and choice.cluster.links:
        message = "links that differ have no model in ASTRA-sim"
        raise SimulationError(message, location=choice.cluster.source, hint=hint)
    if not system.dimensions:
        message = "the system has no files for ASTRA-sim"
        raise SimulationError(message, location=system.name, hint=hint)
