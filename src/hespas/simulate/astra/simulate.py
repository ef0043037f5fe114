"""Simulate a job on a system as ASTRA-sim does.

`simulate` uses the first of these methods that can run a job; all give equal results. The first
ones use closed forms: classes of devices whose collectives' members start together, then all
devices task by task as arrays (`hespas.simulate.astra.dataflow`), then classes that start
collectives at different times, then each device. The last one simulates every message of every
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from hespas.base.figures import MOST_CHUNKS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.astra.classes import run_classes, stream_of
from hespas.simulate.astra.durations import ClosedForms
from hespas.simulate.astra.folding import Folded, fold
from hespas.simulate.astra.plan import endpoint_ns, has_custom_collectives
from hespas.simulate.communicators import check_group
from hespas.simulate.devices import EVERYONE, Device, work_of
from hespas.simulate.models import REPLAY, check_size, is_replay, with_durations
from hespas.simulate.options import USUAL, AstraSettings, ContentionModel
from hespas.simulate.timeline import ClassTimeline, Timeline, host_streams
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    Job,
    MemoryTask,
    Task,
    TaskGraph,
    as_job,
)


def simulate(
    work: Job | TaskGraph,
    system: System,
    *,
    network: ContentionModel = ContentionModel.CONGESTION_UNAWARE,
    settings: AstraSettings = USUAL,
    is_folded: bool = True,
    by_events: bool = False,
) -> Timeline:
    """Return the timeline of ASTRA-sim's analytical simulator, to the ns.

    If closed forms hold, devices that behave alike are simulated once, unless not ``is_folded``;
    otherwise, or always with ``by_events``, every message of every device is simulated. The results
    are equal.
    Raises `DeviceCountError` if the job and the system differ in size, and
    `SimulationError`, which says why, for jobs and systems outside this model.
    """
    job = as_job(work)
    check_size(job.device_count, system)
    system = checked_system(system, settings)
    job = with_durations(job, system)
    is_replayed = is_replay(system)
    if is_replayed:
        _check_recorded(job)
    elif not by_events and not (
        # The turn among several queues continues from collective to collective.
        settings.queues > 1
        or settings.rendezvous_protocol
        or network is not ContentionModel.CONGESTION_UNAWARE
        or has_custom_collectives(system)
        or any(_is_for_events(task) for task in _tasks_of(job))
    ):
        timeline = _by_closed_forms(job, ClosedForms(_tasks_of(job), system), is_folded=is_folded)
        if timeline is not None:
            return timeline
    from hespas.simulate.astra.events import run_events  # noqa: PLC0415 - few jobs need it

    # Replaying devices do not communicate, so all devices of one graph behave alike.
    folded = fold(job, check_group, is_unfolded=not (is_replayed and is_folded))
    devices = _devices_of(folded)
    run_events(folded, devices, system, network=network, settings=settings)
    return _timeline(folded, devices, is_replayed=is_replayed)


def _tasks_of(job: Job) -> Iterator[Task]:
    return (task for graph in job.graphs for task in graph.tasks)


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


def _by_closed_forms(job: Job, forms: ClosedForms, *, is_folded: bool) -> Timeline | None:
    """Return the timeline by the fastest applicable closed form."""
    if is_folded:
        timeline = _by_classes(forms, fold(job, forms.timing), is_staggered=False)
        if timeline is not None:
            return timeline
        from hespas.simulate.astra.dataflow import run_dataflow  # noqa: PLC0415 - numpy

        classes = run_dataflow(job, forms)
        if classes is not None:
            return Timeline(classes=classes)
        timeline = _by_classes(forms, fold(job, forms.timing, in_order=True), is_staggered=True)
        if timeline is not None:
            return timeline
    return _by_classes(forms, fold(job, forms.timing, is_unfolded=True), is_staggered=True)


def _by_classes(forms: ClosedForms, folded: Folded, *, is_staggered: bool) -> Timeline | None:
    devices = _devices_of(folded)
    if not run_classes(forms, devices, folded.groups, is_staggered=is_staggered):
        return None
    return _timeline(folded, devices)


def _devices_of(folded: Folded) -> list[Device]:
    return [
        Device(number, item.devices, work_of(item, EVERYONE, keeps_order=True), stream_of)
        for number, item in enumerate(folded.devices)
    ]


def _timeline(folded: Folded, devices: list[Device], *, is_replayed: bool = False) -> Timeline:
    """Return the timelines of devices.

    Replayed communication counts as in ASTRA-sim: as computation in the exposed time, which may
    thus be less than 0 if communication was hidden.
    """
    classes: list[ClassTimeline] = []
    for item, device in zip(folded.devices, devices, strict=True):
        timeline = device.timeline(item.graph)
        tasks = item.graph.tasks
        replayed = [
            timeline.nodes[task.id]
            for task in tasks
            if is_replayed and isinstance(task, CollectiveTask)
        ]
        replayed_ps = sum(end - start for start, end in replayed)
        classes.append(replace(timeline, streams=host_streams(tasks), replayed_ps=replayed_ps))
    return Timeline(classes=tuple(classes))


def _check_recorded(job: Job) -> None:
    for graph in job.graphs:
        for task in graph.tasks:
            is_recorded = isinstance(task, CollectiveTask) and task.recorded_ps is not None
            if not (is_recorded or isinstance(task, ComputeTask)):
                raise SimulationError(
                    f"{REPLAY} needs the recorded duration of task {task.id} ({task.name})",
                    location=graph.name,
                    hint="read its traces with is_recorded=True",
                )


def checked_system(system: System, settings: AstraSettings) -> System:
    """Return a checked system with a scaled endpoint delay, rounded down to ns.

    Groups smaller than the system have their own endpoint delay, which is not scaled.
    Raises `SimulationError` for settings that have no model here.
    """
    place = system.name
    if not 0 <= settings.scale < inf:
        raise SimulationError(f"the injection scale is {settings.scale}", location=place)
    if settings.queues < 1:
        raise SimulationError(f"{settings.queues} queues per dimension", location=place)
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
    endpoint_delay_s = int(endpoint_ns(system) * settings.scale) / 1e9
    return replace(system, endpoint_delay_s=endpoint_delay_s)
