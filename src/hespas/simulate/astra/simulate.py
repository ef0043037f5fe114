"""Simulate a job on a system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from hespas.errors import DeviceCountError, SimulationError
from hespas.hardware.system import System
from hespas.schedule.tasks import (
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
from hespas.simulate.astra.class_engine import Durations, run
from hespas.simulate.astra.closed_forms import NeedsEngineError, Span
from hespas.simulate.astra.device_state import EVERYONE, Machine
from hespas.simulate.astra.durations import (
    SUBGROUP_ENDPOINT_NS,
    CollectiveModel,
    Group,
    GroupShape,
    group_algorithms,
    group_shape,
)
from hespas.simulate.astra.folding import Channel, Folded, Place, fold
from hespas.simulate.astra.options import has_custom_collectives
from hespas.simulate.astra.plan import collective_kind, task_text
from hespas.simulate.astra.replay import check_recorded, is_replay, with_replayed
from hespas.simulate.astra.roofline import with_roofline
from hespas.simulate.meeting import Meetings
from hespas.simulate.network import Network, Route, delay_ns, endpoint_ns, route
from hespas.simulate.timeline import Timeline
from hespas.units import PS_PER_NS

if TYPE_CHECKING:
    from hespas.simulate.astra.staggered import Times

_UNSUPPORTED_OPTIONS = ("model-shared-bus",)


def simulate(
    work: Job | TaskGraph,
    system: System,
    *,
    network: Network = Network.CONGESTION_UNAWARE,
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
    _refuse(system, queues_per_dimension, injection_scale)
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
    if is_replay(system):
        check_recorded(job)
        # Nobody meets anybody, so that devices of one graph do the same.
        return with_replayed(events(fold(job, _check_place, each_alone=not is_folded)))
    if system.options.get("roofline-enabled"):
        job = with_roofline(job, system)
    needs_events = by_events or rendezvous or network is not Network.CONGESTION_UNAWARE
    # Whose turn it is in several queues goes on from collective to collective.
    needs_events = needs_events or has_custom_collectives(system) or queues_per_dimension > 1
    if not needs_events and _has_closed_form(job):
        found = _by_formulas(job, _Model(job, system, queues_per_dimension), is_folded=is_folded)
        if found is not None:
            return found
    return events(fold(job, _check_place, each_alone=True))


def _by_formulas(job: Job, model: _Model, *, is_folded: bool) -> Timeline | None:
    """Return what the closed formulas give, in the cheapest way in which they hold, if any."""
    if is_folded:
        # A device that meets others too early here may seem to start what it never would, until
        # those others come: what is an error is told by the ways in which all wait for all.
        with suppress(NeedsEngineError, SimulationError):
            return model.run(fold(job, model.timing), apart=False)
        with suppress(NeedsEngineError):
            return model.run_dataflow(job)
        with suppress(NeedsEngineError):
            return model.run(fold(job, model.timing, in_order=True), apart=True)
    with suppress(NeedsEngineError):
        return model.run(fold(job, model.timing, each_alone=True), apart=True)
    return None


def _by_events(
    folded: Folded,
    *,
    system: System,
    network: Network,
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


def _has_closed_form(job: Job) -> bool:
    """Return whether a job has only what the closed formulas know."""
    return not any(_is_for_events(task) for graph in job.graphs for task in graph.tasks)


def _is_for_events(task: Task) -> bool:
    match task:
        case MemoryTask() | EmptyTask():
            return True
        case ComputeTask():
            return task.is_on_host
        case CollectiveTask():
            return task.recorded_ps is not None
        case _:
            return False


def _check_place(place: Place) -> None:
    """Raise `SimulationError` for a group of one device, and a device that sends to itself."""
    if isinstance(place, Channel):
        if place.source == place.target:
            raise SimulationError(f"device {place.source} sends to itself")
    elif len(place) < 2:
        message = f"the group {list(place)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")


def _refuse(system: System, queues_per_dimension: int, injection_scale: float) -> None:
    place = system.name
    if not 0 <= injection_scale < inf:
        raise SimulationError(f"the injection scale is {injection_scale}", location=place)
    if queues_per_dimension < 1:
        raise SimulationError(f"{queues_per_dimension} queues per dimension", location=place)
    for option in _UNSUPPORTED_OPTIONS:
        if system.options.get(option):
            raise SimulationError(f"{option} has no model here", location=place, hint="remove it")
    if system.preferred_dataset_splits < 1 or system.active_chunks_per_dimension < 1:
        message = "preferred-dataset-splits and active-chunks-per-dimension must be positive"
        raise SimulationError(message, location=place)
    if system.collective_optimization not in ("baseline", "localBWAware"):
        message = f"collective-optimization {system.collective_optimization} has no model here"
        raise SimulationError(message, location=place, hint="use baseline or localBWAware")


def _row(times_ps: list[int]) -> Times:
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    return np.array([times_ps], dtype=np.int64)


class _Model:
    """Durations of one job's communication on one system."""

    def __init__(self, job: Job, system: System, queues_per_dimension: int) -> None:
        self._system = system
        self._collectives = CollectiveModel(system, queues_per_dimension)
        used = {
            collective_kind(task)
            for graph in job.graphs
            for task in graph.tasks
            if isinstance(task, CollectiveTask) and task.group_table is not None
        }
        self._algorithms = group_algorithms(system, used)

    def timing(self, place: Place) -> Route | GroupShape | None:
        """Return what matters of a place: a channel's route, a group's shape (None: everyone)."""
        _check_place(place)
        if isinstance(place, Channel):
            return route(self._system, place.source, place.target)
        if len(place) == self._system.device_count:
            return None
        return group_shape(self._system, place, self._algorithms)

    def run(self, folded: Folded, *, apart: bool) -> Timeline:
        """Simulate the classes; members of a collective may start ``apart``.

        Raises `NeedsEngineError` where the formulas don't hold, or a class has to be divided.
        """
        machines = [Machine(number, one) for number, one in enumerate(folded.devices)]
        timings = [self.timing(place.place) for place in folded.places]
        durations = Durations(
            collective=lambda task, place: self._collective(
                task, None if place == EVERYONE else timings[place]
            ),
            message_ns=lambda task, place: self._message_ns(task, timings[place]),
            joins_all=lambda task, place: (
                (place != EVERYONE and timings[place] is not None)
                or self._collectives.joins_everyone(collective_kind(task), task.involved_dimensions)
            ),
            ends_ps=self._ends(folded, timings) if apart else None,
            endpoint_ns=lambda place: (
                endpoint_ns(self._system)
                if place == EVERYONE or timings[place] is None
                else SUBGROUP_ENDPOINT_NS
            ),
        )
        run(machines, Meetings(machines, [one.members for one in folded.places]), durations)
        return Timeline(classes=tuple([machine.timeline() for machine in machines]))

    def run_dataflow(self, job: Job) -> Timeline:
        """Simulate devices that differ, task by task; see `hespas.simulate.astra.dataflow`."""
        from hespas.simulate.astra.dataflow import run_dataflow  # noqa: PLC0415 - numpy comes with it

        def shape_of(group: Group) -> GroupShape | None:
            timing = self.timing(group)
            return timing if isinstance(timing, GroupShape) else None

        def ends(task: CollectiveTask, group: Group | None, starts_ps: Times) -> Times:
            timing = None if group is None else shape_of(group)
            span = self._collective(task, timing)
            wait_ns = endpoint_ns(self._system) if timing is None else SUBGROUP_ENDPOINT_NS
            if wait_ns == 0 and not starts_ps.all():
                raise NeedsEngineError  # which says what is wrong with it
            if (starts_ps == starts_ps[:, :1]).all():
                return starts_ps + span.total_ns * PS_PER_NS
            return self._ends_apart(task, timing, starts_ps)

        return Timeline(classes=run_dataflow(job, shape_of, ends))

    def _ends_apart(
        self, task: CollectiveTask, timing: GroupShape | None, starts_ps: Times
    ) -> Times:
        kind, model = collective_kind(task), self._collectives
        if timing is not None:
            return model.group_ends_ps(kind, task.size_bytes, timing, starts_ps)
        return model.everyone_ends_ps(kind, task.size_bytes, task.involved_dimensions, starts_ps)

    def _ends(
        self, folded: Folded, timings: Sequence[Route | GroupShape | None]
    ) -> Callable[[CollectiveTask, int, Mapping[int, int]], Mapping[int, int]]:
        """Return what gives the ends of classes; their devices must end together."""
        class_of = {
            device: number for number, one in enumerate(folded.devices) for device in one.devices
        }

        def ends(task: CollectiveTask, place: int, starts_ps: Mapping[int, int]) -> dict[int, int]:
            timing = None if place == EVERYONE else timings[place]
            group = () if place == EVERYONE else folded.places[place].place
            if not isinstance(timing, GroupShape) or isinstance(group, Channel):
                group, timing = range(self._system.device_count), None
            members = [class_of[device] for device in group]
            starts = _row([starts_ps[number] for number in members])
            found = self._ends_apart(task, timing, starts)
            result: dict[int, int] = {}
            for number, end_ps in zip(members, found[0].tolist(), strict=True):
                if result.setdefault(number, end_ps) != end_ps:
                    raise NeedsEngineError
            return result

        return ends

    def _message_ns(self, task: SendTask, timing: Route | GroupShape | None) -> int:
        if not isinstance(timing, Route):
            raise SimulationError(f"send {task.id} ({task.name}) has no route")
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        return delay_ns(self._system, timing, task.size_bytes)

    def _collective(self, task: CollectiveTask, timing: Route | GroupShape | None) -> Span:
        kind = collective_kind(task)
        try:
            if isinstance(timing, GroupShape):
                return self._collectives.group_ns(kind, task.size_bytes, timing)
            return self._collectives.everyone_ns(kind, task.size_bytes, task.involved_dimensions)
        except SimulationError as error:
            raise SimulationError(
                error.message, location=task_text(task), hint=error.hint
            ) from error
