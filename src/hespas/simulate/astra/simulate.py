"""Simulate a job on a system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from hespas.base.limits import MOST_CHUNKS
from hespas.base.units import PS_PER_NS
from hespas.errors import DeviceCountError, SimulationError
from hespas.hardware.system import System
from hespas.simulate.astra.class_engine import Durations, run_classes
from hespas.simulate.astra.device_state import EVERYONE, DeviceState
from hespas.simulate.astra.durations import (
    CollectiveDurations,
    GroupShape,
    Span,
    group_algorithms,
    group_shape,
)
from hespas.simulate.astra.folding import Channel, Folded, Group, GroupClass, Members, fold
from hespas.simulate.astra.plan import (
    SUBGROUP_ENDPOINT_NS,
    ContentionModel,
    Route,
    collective_kind,
    delay_ns,
    endpoint_ns,
    has_custom_collectives,
    route,
    task_text,
)
from hespas.simulate.astra.running import Running
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    Job,
    MemoryTask,
    SendTask,
    Task,
    TaskGraph,
    as_job,
)

if TYPE_CHECKING:
    from hespas.simulate.astra.dataflow import Times


def simulate(
    work: Job | TaskGraph,
    system: System,
    *,
    network: ContentionModel = ContentionModel.CONGESTION_UNAWARE,
    queues_per_dimension: int = 1,
    rendezvous: bool = False,
    injection_scale: float = 1.0,
    is_folded: bool = True,
    by_events: bool = False,
) -> Timeline:
    """Return when each device does what, as ASTRA-sim's analytical simulator has it, to the ns.

    Where closed formulas hold, devices that behave alike are simulated once, unless not
    ``is_folded``; elsewhere, or always if ``by_events``, every message of every device is. The
    result is the same. ``injection_scale`` multiplies the system's endpoint delay, rounded down.
    Raises `DeviceCountError` if the job and the system differ in size, and
    `SimulationError`, which says why, for whatever is outside this model.
    """
    job = as_job(work)
    if job.device_count != system.device_count:
        message = f"the job is for {job.device_count} devices, {system.name} has"
        raise DeviceCountError(f"{message} {system.device_count}")
    check_settings(system, queues_per_dimension, injection_scale)
    # Groups smaller than the system have an endpoint delay of their own, which nothing scales.
    endpoint_delay_s = int(endpoint_ns(system) * injection_scale) / 1e9
    system = replace(system, endpoint_delay_s=endpoint_delay_s)
    events = partial(
        _by_events,
        system=system,
        network=network,
        queues_per_dimension=queues_per_dimension,
        rendezvous=rendezvous,
    )
    job = with_durations(job, system)
    if is_replay(system):
        check_recorded(job)
        # Devices do not communicate, so those of one graph do the same.
        return with_replayed(events(fold(job, _check_group, each_alone=not is_folded)))
    if not by_events and _has_closed_forms(
        job, system, network=network, queues=queues_per_dimension, rendezvous=rendezvous
    ):
        timeline = _by_closed_forms(job, ClosedForms(_tasks_of(job), system), is_folded=is_folded)
        if timeline is not None:
            return timeline
    return events(fold(job, _check_group, each_alone=True))


def _tasks_of(job: Job) -> Iterator[Task]:
    return (task for graph in job.graphs for task in graph.tasks)


def _has_closed_forms(
    job: Job, system: System, *, network: ContentionModel, queues: int, rendezvous: bool
) -> bool:
    """Return whether a job has only what closed forms cover.

    They may come to an end even so: where the order of events at one instant matters.
    """
    if (
        rendezvous
        or network is not ContentionModel.CONGESTION_UNAWARE
        or has_custom_collectives(system)
    ):
        return False
    # Whose turn it is in several queues goes on from collective to collective.
    return queues == 1 and not any(_is_for_events(task) for task in _tasks_of(job))


def _is_for_events(task: Task) -> bool:
    match task:
        case MemoryTask(duration_ps=int()):
            return False
        case MemoryTask() | EmptyTask():
            return True
        case ComputeTask():
            return task.is_on_host
        case CollectiveTask():
            return task.recorded_ps is not None
        case _:
            return False


def _by_closed_forms(job: Job, model: ClosedForms, *, is_folded: bool) -> Timeline | None:
    """Return what the closed forms say, by the fastest engine for which they hold, if any."""
    timeline = None
    if is_folded:
        timeline = model.run_classes(fold(job, model.timing), is_staggered=False)
        if timeline is None:
            timeline = model.run_dataflow(job)
        if timeline is None:
            timeline = model.run_classes(fold(job, model.timing, in_order=True), is_staggered=True)
    if timeline is None:
        timeline = model.run_classes(fold(job, model.timing, each_alone=True), is_staggered=True)
    return timeline


def _by_events(
    folded: Folded,
    *,
    system: System,
    network: ContentionModel,
    queues_per_dimension: int,
    rendezvous: bool,
) -> Timeline:
    from hespas.simulate.astra.events.run import run_events  # noqa: PLC0415 - few jobs need it

    return run_events(
        folded,
        system,
        network=network,
        queues_per_dimension=queues_per_dimension,
        rendezvous=rendezvous,
    )


def _check_group(group: Group) -> None:
    """Raise `SimulationError` for a group of one device, and a device that sends to itself."""
    if isinstance(group, Channel):
        if group.source == group.target:
            raise SimulationError(f"device {group.source} sends to itself")
    elif len(group) < 2:
        message = f"the group {list(group)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")


def check_settings(system: System, queues_per_dimension: int, injection_scale: float) -> None:
    """Raise `SimulationError` for settings that have no model here."""
    place = system.name
    if not 0 <= injection_scale < inf:
        raise SimulationError(f"the injection scale is {injection_scale}", location=place)
    if queues_per_dimension < 1:
        raise SimulationError(f"{queues_per_dimension} queues per dimension", location=place)
    if system.options.get("model-shared-bus"):
        message = "model-shared-bus has no model here: no recorded run shows its rules"
        hint = "remove it; endpoints then wait endpoint-delay before each message"
        raise SimulationError(message, location=place, hint=hint)
    if system.preferred_dataset_splits < 1 or system.active_chunks_per_dimension < 1:
        message = "preferred-dataset-splits and active-chunks-per-dimension must be positive"
        raise SimulationError(message, location=place)
    if system.preferred_dataset_splits > MOST_CHUNKS:
        raise SimulationError(
            f"preferred-dataset-splits is {system.preferred_dataset_splits}",
            location=place,
            hint=f"give at most {MOST_CHUNKS}",
        )
    if system.collective_optimization not in ("baseline", "localBWAware"):
        message = f"collective-optimization {system.collective_optimization} has no model here"
        raise SimulationError(message, location=place, hint="use baseline or localBWAware")


class ClosedForms:
    """Durations of one job's communication on one system, and the engines that run on them."""

    def __init__(self, tasks: Iterable[Task], system: System) -> None:
        self._system = system
        self._endpoint_ns = endpoint_ns(system)
        self._collectives = CollectiveDurations(system, queues_per_dimension=1)
        used = {
            collective_kind(task)
            for task in tasks
            if isinstance(task, CollectiveTask) and task.group_table is not None
        }
        self._algorithms = group_algorithms(system, used)

    def timing(self, group: Group) -> Route | GroupShape | None:
        """Return what decides the time of communication: a channel's route, a group's shape.

        None stands for a group of all devices.
        """
        _check_group(group)
        if isinstance(group, Channel):
            return route(self._system, group.source, group.target)
        if len(group) == self._system.device_count:
            return None
        return group_shape(self._system, group, self._algorithms)

    def run_classes(self, folded: Folded, *, is_staggered: bool) -> Timeline | None:
        """Simulate symmetry classes; None where the closed forms don't hold.

        Unless ``is_staggered``, members of a collective must start it together.
        """
        states = [DeviceState(number, one) for number, one in enumerate(folded.devices)]
        if not self.run_states(states, folded.groups, is_staggered=is_staggered):
            return None
        return Timeline(classes=tuple([state.timeline() for state in states]))

    def run_states(
        self, states: Sequence[Running], groups: Sequence[GroupClass], *, is_staggered: bool
    ) -> bool:
        """Run classes of devices to their ends; False where the closed forms don't hold."""
        timings = [self.timing(one.group) for one in groups]

        def timing(group: int) -> Route | GroupShape | None:
            return None if group == EVERYONE else timings[group]

        def joins_all(task: CollectiveTask, group: int) -> bool:
            return timing(group) is not None or self._collectives.joins_everyone(
                collective_kind(task), task.involved_dimensions
            )

        class_of = {device: state.number for state in states for device in state.devices}

        def ends_ps(
            task: CollectiveTask, number: int, starts_ps: Mapping[int, int]
        ) -> Mapping[int, int] | None:
            shape = _shape(timing(number))
            group = None if shape is None else groups[number].group
            members: Iterable[int] = range(self._system.device_count)
            if group is not None and not isinstance(group, Channel):
                members = group
            classes = [class_of[device] for device in members]
            return self._ends_of_classes(task, shape, classes, starts_ps)

        durations = Durations(
            collective=lambda task, group: self._span(task, _shape(timing(group))),
            message_ns=lambda task, group: self._message_ns(task, timing(group)),
            joins_all=joins_all,
            ends_ps=ends_ps if is_staggered else None,
            endpoint_ns=lambda group: self._wait_ns(timing(group)),
        )
        return run_classes(states, groups, durations)

    def run_dataflow(self, job: Job) -> Timeline | None:
        """Simulate devices that differ, task by task, if the job allows that; else return None."""
        from hespas.simulate.astra import dataflow  # noqa: PLC0415 - numpy comes with it

        if not dataflow.supports(job):
            return None

        def shape_of(group: Members) -> GroupShape | None:
            return _shape(self.timing(group))

        def ends(task: CollectiveTask, group: Members | None, starts_ps: Times) -> Times | None:
            shape = None if group is None else shape_of(group)
            span = self._span(task, shape)
            if span is None or (self._wait_ns(shape) == 0 and not starts_ps.all()):
                return None  # of what takes no time at the start, events say what is wrong
            if (starts_ps == starts_ps[:, :1]).all():
                return starts_ps + span.total_ns * PS_PER_NS
            return self._ends_ps(task, shape, starts_ps)

        classes = dataflow.run_dataflow(job, shape_of, ends)
        return None if classes is None else Timeline(classes=classes)

    def _wait_ns(self, timing: Route | GroupShape | None) -> int:
        """Return what endpoints wait before each message of a collective."""
        return self._endpoint_ns if timing is None else SUBGROUP_ENDPOINT_NS

    def _ends_ps(
        self, task: CollectiveTask, shape: GroupShape | None, starts_ps: Times
    ) -> Times | None:
        kind = collective_kind(task)
        return self._collectives.ends_ps(
            kind, task.size_bytes, task.involved_dimensions, shape, starts_ps
        )

    def _ends_of_classes(
        self,
        task: CollectiveTask,
        shape: GroupShape | None,
        classes: Sequence[int],
        starts_ps: Mapping[int, int],
    ) -> Mapping[int, int] | None:
        """Return when the classes of a group's members end, given when they start.

        None where there is no closed form, or members of one class don't end together.
        """
        import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

        starts = np.array([[starts_ps[one] for one in classes]], dtype=np.int64)
        ends = self._ends_ps(task, shape, starts)
        if ends is None:
            return None
        result: dict[int, int] = {}
        for one, end_ps in zip(classes, ends[0].tolist(), strict=True):
            if result.setdefault(one, end_ps) != end_ps:
                return None
        return result

    def _message_ns(self, task: SendTask, timing: Route | GroupShape | None) -> int:
        if not isinstance(timing, Route):
            raise SimulationError(f"send {task.id} ({task.name}) has no route")
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        return delay_ns(self._system, timing, task.size_bytes)

    def _span(self, task: CollectiveTask, shape: GroupShape | None) -> Span | None:
        kind = collective_kind(task)
        try:
            return self._collectives.span(kind, task.size_bytes, task.involved_dimensions, shape)
        except SimulationError as error:
            error.location = task_text(task)
            raise


def _shape(timing: Route | GroupShape | None) -> GroupShape | None:
    return timing if isinstance(timing, GroupShape) else None


OPTION = "replay-only"


def is_replay(system: System) -> bool:
    """Return whether a system only replays what was recorded."""
    return bool(system.options.get(OPTION))


def check_recorded(job: Job) -> None:
    """Raise `SimulationError` for a task whose recorded duration isn't there."""
    for graph in job.graphs:
        for task in graph.tasks:
            if not _is_recorded(task):
                raise SimulationError(
                    f"{OPTION} needs the recorded duration of task {task.id} ({task.name})",
                    location=graph.name,
                    hint="read its traces with is_recorded=True",
                )


def _is_recorded(task: Task) -> bool:
    match task:
        case ComputeTask():
            return True
        case CollectiveTask():
            return task.recorded_ps is not None
        case _:
            return False


def with_replayed(timeline: Timeline) -> Timeline:
    """Return a timeline that counts what was replayed as ASTRA-sim does.

    Replayed communication counts as computation in what is called exposed, which may thus be
    less than 0, where communication was hidden.
    """
    return Timeline(classes=tuple([_with_replayed(one) for one in timeline.classes]))


def _with_replayed(one: ClassTimeline) -> ClassTimeline:
    spans = [one.nodes[task.id] for task in one.graph.tasks if isinstance(task, CollectiveTask)]
    return replace(one, replayed_ps=sum(end - start for start, end in spans))


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
