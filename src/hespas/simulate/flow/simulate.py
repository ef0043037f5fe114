"""Simulate a job with hespas' own network model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hespas.errors import DeviceCountError, SimulationError, option
from hespas.hardware.cluster import Cluster
from hespas.hardware.interconnect import Interconnect
from hespas.hardware.machine_links import Graph
from hespas.hardware.system import System, interconnect_of
from hespas.program.collectives import COMMON_KINDS
from hespas.simulate.astra.plan import PER_NODE, custom_option
from hespas.simulate.flow.algorithms import Pricer
from hespas.simulate.flow.network import run_flow
from hespas.simulate.flow.planning import Planner
from hespas.simulate.flow.symmetry import Classes, find_classes
from hespas.simulate.flow.topology import make_topology
from hespas.simulate.flow.transfers import PIECES
from hespas.simulate.jobs import with_durations
from hespas.simulate.models import SPECIFIED
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    Job,
    SendTask,
    TaskGraph,
    as_job,
    find_roles,
)

ASSUMPTION = (
    "network: every group of devices has a stream of its own, on which its collectives keep the "
    "program's order; concurrent transfers share links max-min fairly, and a collective moves as "
    f"fast as its slowest message, in at most {PIECES} pieces of equal steps where it shares links "
    "(hespas' own model)"
)
_OTHER_MODEL = f"use {option('model')} astra-sim"
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")


def simulate_flow(
    work: Job | TaskGraph,
    system: System | Interconnect,
    *,
    algorithm: str = SPECIFIED,
    cluster: Cluster | None = None,
    is_folded: bool = True,
) -> Timeline:
    """Return when each device does what, where transfers share links max-min fairly.

    ``algorithm`` is for all collectives that it can run: a name, ``auto`` for the fastest on an
    idle network, or ``specified`` for what the system specifies. Of a ``cluster`` the links count;
    for its devices see `hespas.simulate.jobs.on_cluster`. Devices that behave alike are
    simulated once, unless not ``is_folded``; the result is the same. Raises `DeviceCountError` if
    the job and the network differ in size, and `SimulationError`, which says why, for whatever is
    outside this model and for deadlocks.
    """
    simulated = planned_flow(
        work, system, algorithm=algorithm, cluster=cluster, is_folded=is_folded
    )
    return simulated(work)


def planned_flow(
    work: Job | TaskGraph,
    system: System | Interconnect,
    *,
    algorithm: str = SPECIFIED,
    cluster: Cluster | None = None,
    is_folded: bool = True,
) -> Callable[[Job | TaskGraph], Timeline]:
    """Return what simulates ``work``, and jobs that differ from it in durations alone.

    Which devices are alike, and how each collective runs, is found once. Raises as `simulate_flow`
    does, and so does what is returned.
    """
    interconnect = interconnect_of(system) if isinstance(system, System) else system
    job = with_durations(as_job(work), system if isinstance(system, System) else None)
    if job.device_count != interconnect.device_count:
        message = f"the job is for {job.device_count} devices, {interconnect.name} has"
        raise DeviceCountError(f"{message} {interconnect.device_count}")
    _check_job(job)
    if isinstance(system, System):
        _check_options(system)
    is_irregular = cluster is not None and bool(cluster.links)
    topology = make_topology(interconnect, cluster)
    plain = Pricer(interconnect, make_topology(interconnect)) if is_irregular else None
    planner = Planner(Pricer(interconnect, topology, plain), algorithm)
    roles = [find_roles(graph) for graph in job.graphs]
    classes = find_classes(
        job, roles, topology, planner, is_irregular=is_irregular, is_folded=is_folded
    )
    remote = system.remote_memory if isinstance(system, System) else None
    assumptions = tuple(_assumptions(planner, interconnect))

    def simulated(work: Job | TaskGraph) -> Timeline:
        job = with_durations(as_job(work), system if isinstance(system, System) else None)
        _check_job(job)
        return Timeline(
            classes=run_flow(_of_job(classes, job), remote),
            model="hespas",
            assumptions=assumptions,
        )

    return simulated


def _of_job(classes: Classes, job: Job) -> Classes:
    """Return the classes of devices with the tasks of a job of the same structure."""
    devices = [
        replace(each, graph=job.graphs[job.graph_of_device[each.devices[0]]])
        for each in classes.devices
    ]
    return replace(classes, devices=tuple(devices))


def check_network(system: System, cluster: Cluster | None) -> None:
    """Raise `SimulationError` for options of a system, and links that differ, outside the model."""
    _check_options(system)
    if cluster is not None and cluster.links:
        make_topology(interconnect_of(system), cluster)


def _assumptions(planner: Planner, interconnect: Interconnect) -> Iterator[str]:
    yield ASSUMPTION
    for kind, algorithms in sorted(planner.used.items()):
        if kind in _WITH_ROOT:
            yield f"the first member of a group is the root of its {kind}"
        if kind != "send_recv":
            yield f"{kind} runs as {', '.join(sorted(algorithms))}"
    yield from planner.notes
    if isinstance(interconnect.fabric, Graph):
        yield "a message takes a route of fewest links, always the same for the same two ends"


def _check_options(system: System) -> None:
    """Raise `SimulationError` for options of system.json that only ASTRA-sim has."""
    custom = (PER_NODE, *map(custom_option, COMMON_KINDS))
    for name in ("replay-only", "model-shared-bus", *custom):
        if system.options.get(name):
            message = f"{name} has no model in hespas' own network model"
            raise SimulationError(message, location=system.name, hint=_OTHER_MODEL)


def _check_job(job: Job) -> None:
    for graph in job.graphs:
        for task in graph.tasks:
            location = f"{graph.name}: task {task.id} ({task.name})"
            match task:
                case ComputeTask(duration_ps=amount) if amount < 0:
                    raise SimulationError(f"the duration is {amount} ps", location=location)
                case CollectiveTask() if not all(task.involved_dimensions or ()):
                    message = "involved_dim has no model in hespas' own network model"
                    raise SimulationError(message, location=location, hint=_OTHER_MODEL)
                case CollectiveTask(size_bytes=amount) | SendTask(size_bytes=amount) if amount < 0:
                    raise SimulationError(f"the size is {amount} bytes", location=location)
                case _:
                    continue
