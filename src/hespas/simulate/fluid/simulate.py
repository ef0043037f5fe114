"""Simulate a job with hespas' own network model."""

from __future__ import annotations

from hespas.errors import DeviceCountError, SimulationError
from hespas.hardware.interconnect import Interconnect, interconnect_of
from hespas.hardware.system import System
from hespas.simulate.fluid.classes import find_classes
from hespas.simulate.fluid.engine import Engine
from hespas.simulate.fluid.memory import MemoryTimes
from hespas.simulate.fluid.plans import Planner
from hespas.simulate.fluid.pricing import Pricer
from hespas.simulate.fluid.told import TOLD
from hespas.simulate.fluid.wirings import make_wiring
from hespas.simulate.timeline import Timeline
from hespas.trace.roles import find_roles
from hespas.trace.tasks import CollectiveTask, Job, TaskGraph, as_job


def simulate_fluid(
    work: Job | TaskGraph,
    system: System | Interconnect,
    *,
    algorithm: str = TOLD,
    is_folded: bool = True,
) -> Timeline:
    """Return when each device does what, where transfers share links max-min fairly.

    ``algorithm`` is that of all collectives: a name, ``auto`` for the cheapest on an idle
    network, or ``told``. Devices that behave alike are simulated once, unless not ``is_folded``;
    the result is the same. Raises `DeviceCountError` if the job and the network differ in size,
    and `SimulationError`, which says why, for whatever is outside this model and for deadlocks.
    """
    job = as_job(work)
    interconnect = interconnect_of(system) if isinstance(system, System) else system
    if job.device_count != interconnect.device_count:
        message = f"the job is for {job.device_count} devices, {interconnect.name} has"
        raise DeviceCountError(f"{message} {interconnect.device_count}")
    _refuse(job)
    wiring = make_wiring(interconnect)
    planner = Planner(Pricer(interconnect, wiring), algorithm)
    roles = [find_roles(graph) for graph in job.graphs]
    classes = find_classes(job, roles, wiring, planner, is_irregular=False, is_folded=is_folded)
    remote = system.remote_memory if isinstance(system, System) else None
    engine = Engine(classes, MemoryTimes(remote))
    engine.run()
    return Timeline(classes=tuple([device.timeline() for device in engine.devices]))


def _refuse(job: Job) -> None:
    for graph in job.graphs:
        for task in graph.tasks:
            if isinstance(task, CollectiveTask) and not all(task.involved_dimensions or ()):
                place = f"{graph.name}: task {task.id} ({task.name})"
                message = "involved_dim has no model in hespas' own network model"
                raise SimulationError(message, place=place, mend="use --model astra-sim")
