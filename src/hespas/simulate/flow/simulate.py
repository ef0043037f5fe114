"""Simulate a job with hespas' own network model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS, PS_PER_S, to_gb_per_s, to_ns
from hespas.collectives.schedule import WITH_ROOT
from hespas.errors import SimulationError, option
from hespas.hardware.cluster import Cluster
from hespas.hardware.interconnect import Interconnect, without_collisions
from hespas.hardware.machine_links import Graph
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System, interconnect_of
from hespas.simulate.devices import (
    EVERYONE,
    FIRST_READY,
    NO_GROUP,
    Device,
    End,
    Match,
    StreamKey,
    TaskRun,
    work_of,
)
from hespas.simulate.engine import Engine
from hespas.simulate.flow.algorithms import Pricer, collective_of
from hespas.simulate.flow.groups import Signature, signature_of
from hespas.simulate.flow.planning import Planner
from hespas.simulate.flow.symmetry import Classes, find_classes
from hespas.simulate.flow.topology import make_topology
from hespas.simulate.flow.transfers import PIECES, Transfer, Transfers, make_transfer
from hespas.simulate.kernel import Kernel, Mailbox, Mailboxes
from hespas.simulate.models import check_size, option_of_astra_sim, with_durations
from hespas.simulate.options import SPECIFIED
from hespas.simulate.timeline import FROM_HOST, TO_HOST, ClassTimeline, Timeline
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    Job,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    as_job,
    devices_text,
    find_roles,
    is_host_launch,
)

_MOST_NAMED = 16


def stream_of(task: Task, group: int) -> StreamKey | None:
    """Return a task's stream, None for receives and instant tasks.

    A device computes one thing at a time; so do its CPU, its memory, and each direction of the link
    to its host. Collectives of one group, and messages to one device, keep the order of the program
    among each other, and overlap with those of other groups and devices.
    """
    match task:
        case ComputeTask():
            return ("CPU" if task.is_on_host else "compute", NO_GROUP)
        case CollectiveTask():
            return ("collectives", group)
        case SendTask():
            return ("sends", group)
        case MemoryTask(duration_ps=None):
            return ("memory", NO_GROUP)
        case MemoryTask():
            return (TO_HOST if task.is_store else FROM_HOST, NO_GROUP)
        case ReceiveTask() | EmptyTask():
            return None


def _recorded_stream_of(task: Task, group: int) -> StreamKey | None:
    """Return a task's stream, where a host launches kernels on several streams of a device.

    Of kernels in different streams, a device starts the one that has been ready for longest.
    """
    key = stream_of(task, group)
    return ("compute", FIRST_READY) if key == ("compute", NO_GROUP) else key


@dataclass(slots=True, eq=False)
class _Run:
    """A job's classes, run to their ends.

    ``remote`` is the memory outside the devices, of which each has its own. Raises
    `SimulationError` if members of a group start different collectives, and for a deadlock.
    """

    classes: Classes
    devices: list[Device]
    compute: Multiprocessors

    @classmethod
    def of(cls, classes: Classes, remote: RemoteMemory | None) -> _Run:
        everyone = EVERYONE if classes.world is None else classes.world
        devices = [
            Device(
                number,
                item.devices,
                work_of(item, everyone, keeps_order=False),
                _recorded_stream_of if any(map(is_host_launch, item.graph.tasks)) else stream_of,
            )
            for number, item in enumerate(classes.devices)
        ]
        kernel = Kernel()
        compute = Multiprocessors(kernel)
        network = _FlowNetwork(kernel, classes, remote, compute)
        engine = Engine(
            kernel, devices, network, settle=network.transfers.settle, compute=compute.start
        )
        engine.run()
        engine.check_complete()
        return cls(classes, devices, compute)

    @property
    def finish_ps(self) -> int:
        """When the last task ends."""
        return max((device.finish_ps for device in self.devices), default=0)

    def timelines(self) -> Iterator[ClassTimeline]:
        """Yield the timelines of device classes."""
        for device, item in zip(self.devices, self.classes.devices, strict=True):
            timeline = device.timeline(item.graph)
            slowed_ps = self.compute.slowed_ps.get(device.number, 0)
            yield replace(
                timeline,
                compute_ps=timeline.compute_ps - slowed_ps,
                slowed_ps=slowed_ps,
                streams=_streams(device, self.classes),
                waits_ps=device.waits_ps,
            )


def _streams(device: Device, classes: Classes) -> dict[int, str]:
    names = {key: _stream_name(key, classes) for key in device.streams}
    return {
        run.task.id: names[run.stream.key]
        for run in device.runs.values()
        if run.stream is not None and not isinstance(run.task, ComputeTask)
    }


def _stream_name(key: StreamKey, classes: Classes) -> str:
    purpose, group = key
    if group < 0:
        return purpose
    members = classes.groups[group].devices
    if purpose == "sends":
        return f"sends to {devices_text(members[-1:])}"
    if len(members) > _MOST_NAMED:
        return f"collectives of {len(members)} devices with device {members[0]}"
    return f"collectives of {devices_text(members)}"


class _FlowNetwork:
    """Runs collectives of all their members, and messages, as transfers."""

    def __init__(
        self,
        kernel: Kernel,
        classes: Classes,
        remote: RemoteMemory | None,
        compute: Multiprocessors,
    ) -> None:
        self._kernel = kernel
        self._compute = compute
        self._classes = classes
        self._remote = remote
        self.transfers = Transfers(kernel, classes.capacities)
        self._transfer_of: dict[tuple[int, Signature], Transfer] = {}
        self._mailboxes: Mailboxes[TaskRun] = Mailboxes()

    def members(self, group: int) -> Collection[int]:
        if group == self._classes.world:
            return range(len(self._classes.devices))
        return self._classes.groups[group].members

    def unmatched(self) -> Iterable[TaskRun]:
        # Where messages wait for their receivers, an endpoint may wait in two mailboxes.
        return dict.fromkeys(self._mailboxes.waiting())

    def join(self, run: TaskRun, match: Match, end: End, *, is_complete: bool) -> None:
        task = run.task
        if not is_complete or not isinstance(task, CollectiveTask):
            return
        members = match.endpoints.values()
        share = self._classes.groups[run.group].plans[signature_of(task)].multiprocessor_share
        for member in members:
            member.device.begin(member, self._kernel.now_ps)
            self._compute.occupy(member.device.number, share)

        def end_all() -> None:
            for member in members:
                self._compute.occupy(member.device.number, -share)
                end(member)

        self.transfers.start(self._transfer(run.group, signature_of(task)), end_all)

    def _transfer(self, group: int, signature: Signature) -> Transfer:
        key = (group, signature)
        if key not in self._transfer_of:
            group_class = self._classes.groups[group]
            plan = group_class.plans[signature]
            self._transfer_of[key] = make_transfer(
                plan, group_class.uses, has_rivals=plan in group_class.rivals
            )
        return self._transfer_of[key]

    def _mailbox(
        self, run: TaskRun, task: SendTask | ReceiveTask, *, is_ready: bool = False
    ) -> Mailbox[TaskRun]:
        """Return the mailbox of a message or its ready notices."""
        source, target = self._classes.groups[run.group].devices
        tag = ("ready", task.tag) if is_ready else task.tag
        return self._mailboxes.mailbox(tag, source, target, task.size_bytes)

    def _waits_for_receiver(self, run: TaskRun, task: SendTask | ReceiveTask) -> bool:
        return self._classes.groups[run.group].plans[signature_of(task)].waits_for_receiver

    def send(self, run: TaskRun, task: SendTask, end: End) -> None:
        waits = self._waits_for_receiver(run, task)
        if not waits or self._mailbox(run, task, is_ready=True).receive(run) is not None:
            self._carry(run, task, end)

    def receive(self, run: TaskRun, task: ReceiveTask, end: End) -> None:
        if self._waits_for_receiver(run, task):
            sender = self._mailbox(run, task, is_ready=True).deliver(run)
            if sender is not None:
                self._carry(sender, task, end)
        if self._mailbox(run, task).receive(run) is not None:
            end(run)

    def _carry(self, sender: TaskRun, task: SendTask | ReceiveTask, end: End) -> None:
        mailbox, begin_ps = self._mailbox(sender, task), self._kernel.now_ps
        sender.device.begin(sender, begin_ps)

        def arrive() -> None:
            end(sender)
            receiver = mailbox.deliver(sender)
            if receiver is not None:
                receiver.device.begin(receiver, begin_ps)
                end(receiver)

        self.transfers.start(self._transfer(sender.group, signature_of(task)), arrive)

    def access(self, run: TaskRun, task: MemoryTask, end: End) -> None:
        self._kernel.after(_memory_duration_ps(self._remote, task), end, run)


def _memory_duration_ps(remote: RemoteMemory | None, task: MemoryTask) -> int:
    """Return the access time: latency plus size over bandwidth.

    Raises `SimulationError` for no memory and for shared memory.
    """
    location = f"task {task.id} ({task.name})"
    if remote is None or remote.kind is RemoteMemoryKind.NO_MEMORY_EXPANSION:
        message = "the system has no memory outside the devices"
        hint = "give another memory-type in remote_memory.json"
        raise SimulationError(message, location=location, hint=hint)
    is_own = remote.kind is RemoteMemoryKind.PER_NPU_MEMORY_EXPANSION
    if not is_own or remote.latency_s is None or remote.bandwidth_bytes_per_s is None:
        message = f"{remote.kind.value} has no model in hespas' own network model"
        raise SimulationError(message, location=location, hint=_OTHER_MODEL)
    bytes_per_ns = to_gb_per_s(remote.bandwidth_bytes_per_s)
    time_ns = to_ns(remote.latency_s) + task.size_bytes / bytes_per_ns
    return int(time_ns * PS_PER_NS)


ASSUMPTION = (
    "network: every group of devices has a stream of its own, on which its collectives keep the "
    "program's order; concurrent transfers share links max-min fairly, and a collective moves as "
    f"fast as its slowest message, in at most {PIECES} pieces of equal steps where it shares links "
    "(hespas' own model)"
)
_OTHER_MODEL = f"use {option('model')} astra-sim"


def simulate_flow(
    work: Job | TaskGraph,
    system: System | Interconnect,
    *,
    algorithm: str = SPECIFIED,
    cluster: Cluster | None = None,
    is_folded: bool = True,
) -> Timeline:
    """Return a job's timeline on links shared max-min fairly.

    ``algorithm`` is for all collectives that it can run: a name, ``auto`` for the fastest on an
    idle network, or ``specified`` for what the system specifies. The links of a ``cluster`` count;
    for its devices see `hespas.simulate.models.on_cluster`. Devices that behave alike are simulated
    once, unless not ``is_folded``; the result is the same. Raises `DeviceCountError` if the job and
    the network differ in size, and `SimulationError`, which says why, for whatever is outside this
    model and for deadlocks.
    """
    planned = planned_flow(work, system, algorithm=algorithm, cluster=cluster, is_folded=is_folded)
    return planned.timeline(work)


@frozen
class PlannedFlow:
    """The classes and algorithms of a job, which may have other durations."""

    classes: Classes
    system: System | None
    assumptions: tuple[str, ...]

    def timeline(self, work: Job | TaskGraph) -> Timeline:
        """Return the timeline of the job."""
        classes = tuple(self._run(work).timelines())
        return Timeline(classes=classes, model="hespas", assumptions=self.assumptions)

    def step_time_s(self, work: Job | TaskGraph) -> float:
        """Return the step time of the job's timeline alone."""
        return self._run(work).finish_ps / PS_PER_S

    def _run(self, work: Job | TaskGraph) -> _Run:
        job = with_durations(as_job(work), self.system)
        _check_job(job)
        devices = [
            replace(item, graph=job.graphs[job.graph_of_device[item.devices[0]]])
            for item in self.classes.devices
        ]
        remote = None if self.system is None else self.system.remote_memory
        return _Run.of(replace(self.classes, devices=tuple(devices)), remote)


def planned_flow(
    work: Job | TaskGraph,
    system: System | Interconnect,
    *,
    algorithm: str = SPECIFIED,
    cluster: Cluster | None = None,
    is_folded: bool = True,
) -> PlannedFlow:
    """Return the classes and algorithms of ``work`` with any durations.

    Arguments and errors are those of `simulate_flow`.
    """
    described = system if isinstance(system, System) else None
    interconnect = interconnect_of(system) if isinstance(system, System) else system
    job = with_durations(as_job(work), described)
    check_size(job.device_count, interconnect)
    _check_job(job)
    if described is not None:
        _check_options(described)
    is_irregular = cluster is not None and bool(cluster.links)
    topology = make_topology(interconnect, cluster)
    plain = without_collisions(interconnect)
    reference = None
    if is_irregular or plain is not interconnect:
        reference = Pricer(plain, make_topology(plain))
    planner = Planner(Pricer(interconnect, topology, reference), algorithm)
    roles = [find_roles(graph) for graph in job.graphs]
    classes = find_classes(
        job, roles, topology, planner, is_irregular=is_irregular, is_folded=is_folded
    )
    assumptions = tuple(_assumptions(planner, interconnect))
    return PlannedFlow(classes=classes, system=described, assumptions=assumptions)


def check_network(system: System, cluster: Cluster | None) -> None:
    """Raise `SimulationError` for options and links outside the model."""
    _check_options(system)
    if cluster is not None and cluster.links:
        make_topology(interconnect_of(system), cluster)


def _assumptions(planner: Planner, interconnect: Interconnect) -> Iterator[str]:
    yield ASSUMPTION
    for kind, algorithms in sorted(planner.used.items()):
        if kind == "send_recv":
            continue
        if collective_of(kind) in WITH_ROOT:
            yield f"the first member of a group is the root of its {kind}"
        yield f"{kind} runs as {', '.join(sorted(algorithms))}"
    yield from planner.notes
    if any(dimension.is_hashed for dimension in interconnect.dimensions):
        yield "a hash of both ends chooses the spine of a message, so that messages collide"
    if isinstance(interconnect.fabric, Graph):
        yield "a message takes a route of fewest links, always the same for the same two ends"


def _check_options(system: System) -> None:
    name = option_of_astra_sim(system)
    if name is not None:
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


_MOST_OCCUPIED = 0.5
"""Beyond this share, concurrent collectives wait for each other's multiprocessors."""


@dataclass(slots=True, eq=False)
class _Running:
    """A running computation; ``remaining_ps`` at full speed counts from ``since_ps``."""

    run: TaskRun
    end: Callable[[TaskRun], None]
    duration_ps: int
    remaining_ps: float
    since_ps: int
    slowdown: float
    version: int = 0


class Multiprocessors:
    """Each device class's computation, and the share collectives take.

    A collective of a GPU library is a kernel: each of its channels occupies a multiprocessor while
    it runs. Computation beside it takes longer, by the share of it that arithmetic bounds.
    ``slowed_ps`` is, by device class, what computation took longer than alone.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._occupied: dict[int, float] = {}
        self._running: dict[int, _Running] = {}
        self.slowed_ps: dict[int, int] = {}

    def start(self, run: TaskRun, task: ComputeTask, end: Callable[[TaskRun], None]) -> None:
        """Start a computation; ``end`` is called when it has ended."""
        device = run.device.number
        running = self._running[device] = _Running(
            run=run,
            end=end,
            duration_ps=task.duration_ps,
            remaining_ps=task.duration_ps,
            since_ps=self._kernel.now_ps,
            slowdown=self._slowdown(device, task),
        )
        self._schedule(running)

    def occupy(self, device: int, share: float) -> None:
        """Occupy (below 0: free) a share of a device's multiprocessors."""
        if not share:
            return
        self._occupied[device] = self._occupied.get(device, 0.0) + share
        if self._occupied[device] < abs(share) * 1e-6:
            del self._occupied[device]
        running = self._running.get(device)
        if running is None or not isinstance(running.run.task, ComputeTask):
            return
        now_ps = self._kernel.now_ps
        done_ps = (now_ps - running.since_ps) / running.slowdown
        running.remaining_ps = max(0.0, running.remaining_ps - done_ps)
        running.since_ps = now_ps
        running.slowdown = self._slowdown(device, running.run.task)
        running.version += 1
        self._schedule(running)

    def _slowdown(self, device: int, task: ComputeTask) -> float:
        """Return how many times longer a computation takes meanwhile."""
        occupied = min(_MOST_OCCUPIED, self._occupied.get(device, 0.0))
        return 1.0 + task.arithmetic_share * (1.0 / (1.0 - occupied) - 1.0)

    def _schedule(self, running: _Running) -> None:
        remaining_ps = ceil(running.remaining_ps * running.slowdown)
        self._kernel.after(remaining_ps, self._ended, (running, running.version))

    def _ended(self, scheduled: tuple[_Running, int]) -> None:
        running, version = scheduled
        if version != running.version:
            return
        run = running.run
        number = run.device.number
        del self._running[number]
        slowed_ps = self._kernel.now_ps - run.issue_ps - running.duration_ps
        self.slowed_ps[number] = self.slowed_ps.get(number, 0) + slowed_ps
        running.end(run)
