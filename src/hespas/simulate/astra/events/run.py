"""Run every device of a job, message by message."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Collection, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TypeAlias, assert_never

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.device_state import EVERYONE, NEVER, DeviceState
from hespas.simulate.astra.events.custom import CustomCollectives, CustomRun
from hespas.simulate.astra.events.network import (
    Memory,
    RendezvousTransport,
    Transport,
    check_not_at_start,
    make_links,
)
from hespas.simulate.astra.events.streams import DeviceContext, Queues, Streams
from hespas.simulate.astra.folding import Channel, Folded
from hespas.simulate.astra.plan import (
    ContentionModel,
    Plan,
    Planner,
    collective_kind,
    reduce_ns,
    task_text,
)
from hespas.simulate.kernel import ActorQueue, Kernel, check_memory
from hespas.simulate.matching import TAG_LIMIT, Collectives, check_complete, mismatch
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)

_CUSTOM_QUEUE = 0
_BYTES_PER_MESSAGE = 450
_Endpoint: TypeAlias = tuple[DeviceState, int]


def run_events(
    folded: Folded,
    system: System,
    *,
    network: ContentionModel,
    queues_per_dimension: int,
    rendezvous: bool,
) -> Timeline:
    """Return what devices, each a class of its own in ``folded``, do.

    Raises `SimulationError` if members of a collective start different ones, or somebody waits
    for ever.
    """
    states = [DeviceState(number, one) for number, one in enumerate(folded.devices)]
    kernel = Kernel()
    links = make_links(network, system, kernel)
    cluster = Cluster(
        kernel=kernel,
        transport=(RendezvousTransport if rendezvous else Transport)(kernel, links),
        memory=Memory(system.remote_memory),
        collectives=Collectives(),
        starter=CollectiveStarter(folded, system, queues_per_dimension),
        width=ceil(system.active_chunks_per_dimension / queues_per_dimension),
    )
    check_memory(_most_messages(states, cluster.starter), bytes_each=_BYTES_PER_MESSAGE)
    for device in [Device(state, cluster) for state in states]:
        device.start_ready()
    with _no_garbage_collection():
        kernel.run()
    pending = cluster.collectives.pending()
    check_complete(states, pending, list(_unmatched(states)), cluster.starter.classes_in)
    return Timeline(classes=tuple([state.timeline() for state in states]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What all devices share; ``width`` is how many chunks a queue runs at once."""

    kernel: Kernel
    transport: Transport
    memory: Memory
    collectives: Collectives[_Endpoint]
    starter: CollectiveStarter
    width: int


class Device:
    """One device: it starts what it can whenever something of it ends."""

    __slots__ = ("actor", "cluster", "queues", "state", "trees")

    def __init__(self, state: DeviceState, cluster: Cluster) -> None:
        self.state = state
        self.cluster = cluster
        self.actor = ActorQueue(cluster.kernel)
        self.queues = Queues(cluster.width)
        self.trees: dict[tuple[int, int], int] = {}

    @property
    def number(self) -> int:
        """The device's number."""
        return self.state.devices[0]

    def start_ready(self) -> None:
        """Start what can start now."""
        state, now_ps = self.state, self.cluster.kernel.now_ps
        for _, index in state.take_ready():
            state.issue_ps[index] = now_ps
            self._start(index)

    def end(self, index: int) -> None:
        """Note that a task ends, and start what can then start."""
        self.state.end(index, self.cluster.kernel.now_ps)
        self.start_ready()

    def _start(self, index: int) -> None:
        task = self.state.tasks[index]
        match task:
            case ComputeTask():
                self.actor.after(task.duration_ps, self.end, index)
            case CollectiveTask():
                self._start_collective(index, task)
            case SendTask():
                self._start_send(index, task)
            case ReceiveTask():
                self._start_receive(index, task)
            case MemoryTask(duration_ps=int(duration_ps)):
                self.actor.after(duration_ps, self.end, index)
            case MemoryTask():
                memory = self.cluster.memory
                memory.request(self.number, self.actor, task.size_bytes, self.end, index)
            case EmptyTask():
                # Nothing is started: what waits for it waits for the next end of a task.
                self.state.end(index, self.cluster.kernel.now_ps)
            case _:
                assert_never(task)

    def _start_collective(self, index: int, task: CollectiveTask) -> None:
        if task.recorded_ps is not None:
            self.actor.after(task.recorded_ps, self.end, index)
            return
        collectives, starter = self.cluster.collectives, self.cluster.starter
        group, now_ps = self.state.groups[index], self.cluster.kernel.now_ps
        signature = (task.kind, task.size_bytes)
        match = collectives.join(
            group, self.state.number, (self.state, index), signature=signature, now_ps=now_ps
        )
        if match.signature != signature:
            raise SimulationError(mismatch(match, (self.state, index), now_ps))
        if len(match.endpoints) == len(starter.classes_in(group)):
            collectives.complete(match)
        starter.start(self, index, task, match.number)

    def _start_send(self, index: int, task: SendTask) -> None:
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        transport, target = self.cluster.transport, dict(task.pairs)[self.number]
        tag = task.tag % TAG_LIMIT
        mailbox = transport.mailbox(tag, self.number, target, task.size_bytes)
        transport.send(mailbox, self.end, index)

    def _start_receive(self, index: int, task: ReceiveTask) -> None:
        transport, source = self.cluster.transport, _source(task, self.number)
        mailbox = transport.mailbox(task.tag % TAG_LIMIT, source, self.number, task.size_bytes)
        transport.receive(mailbox, self.end, index)


class CollectiveStarter:
    """Starts the parts of devices in collectives."""

    def __init__(self, folded: Folded, system: System, queues_per_dimension: int) -> None:
        self._folded = folded
        self._system = system
        self._everyone = system.device_count
        self._planner = Planner(system, queues_per_dimension)
        self._custom = CustomCollectives(system)
        self._left: dict[Hashable, int] = {}

    def classes_in(self, group: int) -> Collection[int]:
        """Return the numbers of the device classes in a group."""
        if group == EVERYONE:
            return range(len(self._folded.devices))
        return self._folded.groups[group].members

    def peers(self, task: CollectiveTask, group: int) -> int:
        """Return how many others a member sends to at most in one phase; 0 where it is an error."""
        try:
            plan = self._plan(task, self._members(group))
        except SimulationError:
            return 0  # reported when it starts
        sizes = [
            ring.size - 1 if ring.implementation.algorithm == "direct" else 1 for ring in plan.rings
        ]
        return plan.chunks * max(sizes, default=0)

    def start(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        """Start the ``count``-th collective of a device in its group.

        Raises `SimulationError` for one that has no model.
        """
        try:
            self._start(device, index, task, count)
        except SimulationError as error:
            error.location = error.location or task_text(task)
            raise

    def _start(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        number = device.state.groups[index]
        members = self._members(number)
        prefix = self._custom.prefix(task.id, collective_kind(task))
        if prefix is not None:
            self._start_custom(device, index, prefix, task)
            return
        plan = self._plan(task, members)
        transport = device.cluster.transport
        check_not_at_start(device.cluster.kernel.now_ps, plan.endpoint_ps, "an endpoint's delay")
        context = DeviceContext(
            device=device.number,
            actor=device.actor,
            transport=transport,
            queues=device.queues,
            trees=device.trees,
            reduce_ps=self._reduce_ps,
        )
        tag = ("collective", number, count)
        end = partial(device.end, index)

        def done() -> None:
            end()
            left = self._left[tag] = self._left[tag] - 1
            if not left:
                del self._left[tag]
                for chunk in range(plan.chunks):
                    transport.forget((tag, chunk))

        self._left.setdefault(tag, self._everyone if members is None else len(members))
        Streams(plan, members, context, tag, done).start()

    def _start_custom(self, device: Device, index: int, prefix: str, task: CollectiveTask) -> None:
        members = self._members(device.state.groups[index]) or range(self._everyone)
        nodes = self._custom.nodes(
            prefix,
            device.number,
            members,
            kind=collective_kind(task),
            size_bytes=task.size_bytes,
        )
        end = partial(device.end, index)

        def done() -> None:
            end()
            device.queues.leave(_CUSTOM_QUEUE)

        run = CustomRun(
            nodes,
            members=members,
            device=device.number,
            actor=device.actor,
            transport=device.cluster.transport,
            done=done,
        )
        device.queues.enter(_CUSTOM_QUEUE, run.start)
        device.queues.kick(_CUSTOM_QUEUE)

    def _plan(self, task: CollectiveTask, members: tuple[int, ...] | None) -> Plan:
        kind = collective_kind(task)
        if members is None:
            return self._planner.everyone(kind, task.size_bytes, task.involved_dimensions)
        return self._planner.group(kind, task.size_bytes, len(members))

    def _members(self, number: int) -> tuple[int, ...] | None:
        """Return the members of a group; None for everyone."""
        group = None if number == EVERYONE else self._folded.groups[number].group
        if group is None or isinstance(group, Channel) or len(group) == self._everyone:
            return None
        return group

    def _reduce_ps(self, size_bytes: int) -> int:
        return reduce_ns(self._system, size_bytes) * PS_PER_NS


def _source(task: ReceiveTask, device: int) -> int:
    return next(source for source, target in task.pairs if target == device)


def _most_messages(states: Sequence[DeviceState], starter: CollectiveStarter) -> int:
    """Return about how many messages are kept track of at a time: of one collective a device."""
    peers: dict[tuple[CollectiveKind, int, int], int] = {}
    total = 0
    for state in states:
        most = 0
        for task, group in zip(state.tasks, state.groups, strict=True):
            if isinstance(task, CollectiveTask) and task.recorded_ps is None:
                key = (task.kind, task.size_bytes, group)
                if key not in peers:
                    peers[key] = starter.peers(task, group)
                most = max(most, peers[key])
        total += most
    return total


def _unmatched(states: Sequence[DeviceState]) -> Iterator[_Endpoint]:
    """Yield the sends without a receive, and the receives without a send, that have started."""
    ends: dict[tuple[int, int, int, int], tuple[list[_Endpoint], list[_Endpoint]]] = defaultdict(
        lambda: ([], [])
    )
    for state in states:
        (device, *_) = state.devices
        for index, task in enumerate(state.tasks):
            if not isinstance(task, SendTask | ReceiveTask) or state.issue_ps[index] == NEVER:
                continue
            is_send = isinstance(task, SendTask)
            source = device if is_send else _source(task, device)
            target = dict(task.pairs)[device] if is_send else device
            key = (task.tag % TAG_LIMIT, source, target, task.size_bytes)
            ends[key][0 if is_send else 1].append((state, index))
    for sends, receives in ends.values():
        for some, others in ((sends, receives), (receives, sends)):
            some.sort(key=lambda end: end[0].issue_ps[end[1]])
            yield from some[len(others) :]


@contextmanager
def _no_garbage_collection() -> Generator[None]:
    """Suspend garbage collection, which would go through millions of mailboxes repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
