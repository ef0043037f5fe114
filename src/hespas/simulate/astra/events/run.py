"""Run every device of a job, message by message."""

from __future__ import annotations

import gc
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Protocol, assert_never

from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    devices_text,
)
from hespas.simulate.astra.closed_forms import Algorithm
from hespas.simulate.astra.device_state import EVERYONE, NEVER, Machine
from hespas.simulate.astra.events.custom import CustomCollectives, CustomRun
from hespas.simulate.astra.events.memory import Memory
from hespas.simulate.astra.events.network import (
    Post,
    RendezvousPost,
    check_not_at_start,
    make_carrier,
)
from hespas.simulate.astra.events.streams import Member, Queues, Streams
from hespas.simulate.astra.folding import Channel, Folded, Place
from hespas.simulate.astra.plan import Plan, Planner, collective_kind, task_text
from hespas.simulate.kernel import ActorQueue, Kernel
from hespas.simulate.meeting import TAG_LIMIT, Meetings
from hespas.simulate.memory_guard import check_memory
from hespas.simulate.network import Network, reduce_ns
from hespas.simulate.timeline import Timeline
from hespas.units import PS_PER_NS


class Collectives(Protocol):
    """Starts a device's part in a collective, and has ``index`` ended when that is done."""

    def __call__(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        """Start the ``count``-th collective of the device at its place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all devices share; ``width`` is how many chunks a queue runs at once."""

    clock: Kernel
    post: Post
    memory: Memory
    meetings: Meetings
    start_collective: Collectives
    width: int


class Device:
    """One device, its state in ``machine``."""

    __slots__ = ("alarms", "machine", "queues", "trees", "world")

    def __init__(self, machine: Machine, world: World) -> None:
        self.machine = machine
        self.world = world
        self.alarms = ActorQueue(world.clock)
        self.queues = Queues(world.width)
        self.trees: dict[tuple[int, int], int] = {}

    @property
    def number(self) -> int:
        """The device's number."""
        return self.machine.devices[0]

    def start_ready(self) -> None:
        """Start what can start now."""
        machine, now_ps = self.machine, self.world.clock.now_ps
        for _, index in machine.take_ready():
            machine.issue_ps[index] = now_ps
            self._start(index)

    def end(self, index: int) -> None:
        """Note that a task ends, and start what can then start."""
        self.machine.end(index, self.world.clock.now_ps)
        self.start_ready()

    def _start(self, index: int) -> None:
        task = self.machine.tasks[index]
        match task:
            case ComputeTask():
                self.alarms.after(task.duration_ps, self.end, index)
            case CollectiveTask():
                self._start_collective(index, task)
            case SendTask():
                self._start_send(index, task)
            case ReceiveTask():
                self._start_receive(index, task)
            case MemoryTask():
                memory = self.world.memory
                memory.request(self.number, self.alarms, task.size_bytes, self.end, index)
            case EmptyTask():
                # Nothing is started: what waits for it waits for the next end of a task.
                self.machine.end(index, self.world.clock.now_ps)
            case _:
                assert_never(task)

    def _start_collective(self, index: int, task: CollectiveTask) -> None:
        if task.recorded_ps is not None:
            self.alarms.after(task.recorded_ps, self.end, index)
            return
        place = self.machine.places[index]
        count = self.world.meetings.enter(self.machine, task, place, self.world.clock.now_ps)
        self.world.start_collective(self, index, task, count)

    def _start_send(self, index: int, task: SendTask) -> None:
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        self.world.meetings.send(self.machine, index, task, self.machine.places[index])
        pairs = dict(task.pairs)
        box = self.world.post.box(
            task.tag % TAG_LIMIT, self.number, pairs[self.number], task.size_bytes
        )
        self.world.post.send(box, self.end, index)

    def _start_receive(self, index: int, task: ReceiveTask) -> None:
        self.world.meetings.receive(self.machine, index, task, self.machine.places[index])
        source = next(source for source, target in task.pairs if target == self.number)
        box = self.world.post.box(task.tag % TAG_LIMIT, source, self.number, task.size_bytes)
        self.world.post.receive(box, self.end, index)

    def ender(self, index: int) -> partial[None]:
        """Return what ends a task."""
        return partial(self.end, index)


_CUSTOM_QUEUE = 0
_BYTES_PER_MESSAGE = 450


def run_events(
    folded: Folded,
    system: System,
    *,
    network: Network,
    queues_per_dimension: int,
    rendezvous: bool,
) -> Timeline:
    """Return what devices, each a class of its own in ``folded``, do.

    Raises `SimulationError` if members of a collective start different ones, or somebody waits
    for ever.
    """
    machines = [Machine(number, one) for number, one in enumerate(folded.devices)]
    meetings = Meetings(machines, [one.members for one in folded.places])
    clock = Kernel()
    carrier = make_carrier(network, system, clock)
    starter = _Starter([one.place for one in folded.places], system, queues_per_dimension)
    world = World(
        clock=clock,
        post=RendezvousPost(clock, carrier) if rendezvous else Post(clock, carrier),
        memory=Memory(system.remote_memory),
        meetings=meetings,
        start_collective=starter,
        width=ceil(system.active_chunks_per_dimension / queues_per_dimension),
    )
    check_memory(_most_messages(machines, starter), bytes_each=_BYTES_PER_MESSAGE)
    for device in [Device(machine, world) for machine in machines]:
        device.start_ready()
    with _no_garbage_collection():
        clock.run()
    meetings.check_complete()
    for machine in machines:
        _check_ended(machine)
    return Timeline(classes=tuple([machine.timeline() for machine in machines]))


def _most_messages(machines: Sequence[Machine], starter: _Starter) -> int:
    """Return about how many messages are kept track of at a time: of one collective a device."""
    known: dict[tuple[CommunicationKind, int, int], int] = {}
    total = 0
    for machine in machines:
        most = 0
        for task, place in zip(machine.tasks, machine.places, strict=True):
            if isinstance(task, CollectiveTask) and task.recorded_ps is None:
                key = (task.kind, task.size_bytes, place)
                if key not in known:
                    known[key] = starter.peers(task, place)
                most = max(most, known[key])
        total += most
    return total


@contextmanager
def _no_garbage_collection() -> Generator[None]:
    """Spare the collector, which would go through millions of boxes again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Starter:
    """Starts the parts of devices in collectives."""

    def __init__(self, places: list[Place], system: System, queues: int) -> None:
        self._places = places
        self._system = system
        self._everyone = system.device_count
        self._planner = Planner(system, queues)
        self._custom = CustomCollectives(system)
        self._left: dict[Hashable, int] = {}

    def peers(self, task: CollectiveTask, place: int) -> int:
        """Return how many others a member sends to, at most, in one phase; 0 where nobody knows."""
        try:
            plan = self._plan(task, place)
        except SimulationError:
            return 0  # told when it starts
        sizes = [
            ring.size - 1 if ring.implementation.algorithm is Algorithm.DIRECT else 1
            for ring in plan.rings
        ]
        return plan.chunks * max(sizes, default=0)

    def _plan(self, task: CollectiveTask, place: int) -> Plan:
        kind, group = collective_kind(task), self._group(place)
        if group is None:
            return self._planner.everyone(kind, task.size_bytes, task.involved_dimensions)
        return self._planner.group(kind, task.size_bytes, group)

    def __call__(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        try:
            self._start(device, index, task, count)
        except SimulationError as error:
            if error.location:
                raise
            raise SimulationError(
                error.message, location=task_text(task), hint=error.hint
            ) from error

    def _start(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        kind = collective_kind(task)
        group = self._group(device.machine.places[index])
        prefix = self._custom.prefix(task.id, kind)
        if prefix is not None:
            self._start_custom(device, index, prefix, task)
            return
        plan = self._plan(task, device.machine.places[index])
        check_not_at_start(device.world.clock.now_ps, plan.endpoint_ps, "an endpoint's delay")
        member = Member(
            device=device.number,
            alarms=device.alarms,
            post=device.world.post,
            queues=device.queues,
            trees=device.trees,
            reduce_ps=self._reduce_ps,
        )
        tag = ("collective", device.machine.places[index], count)
        end = device.ender(index)
        post = device.world.post

        def done() -> None:
            end()
            left = self._left[tag] = self._left[tag] - 1
            if not left:
                del self._left[tag]
                for chunk in range(plan.chunks):
                    post.forget((tag, chunk))

        self._left.setdefault(tag, self._everyone if group is None else len(group))
        Streams(plan, member, tag, done).start()

    def _start_custom(self, device: Device, index: int, prefix: str, task: CollectiveTask) -> None:
        group = self._group(device.machine.places[index])
        members = range(self._everyone) if group is None else group
        nodes = self._custom.nodes(
            prefix,
            device.number,
            members,
            kind=collective_kind(task),
            size_bytes=task.size_bytes,
        )
        end = device.ender(index)

        def done() -> None:
            end()
            device.queues.leave(_CUSTOM_QUEUE)

        run = CustomRun(
            nodes,
            members=members,
            device=device.number,
            alarms=device.alarms,
            post=device.world.post,
            done=done,
        )
        device.queues.enter(_CUSTOM_QUEUE, run.start)
        device.queues.kick(_CUSTOM_QUEUE)

    def _group(self, place: int) -> tuple[int, ...] | None:
        """Return the members at a place; None for everyone."""
        group = None if place == EVERYONE else self._places[place]
        if group is None or isinstance(group, Channel) or len(group) == self._everyone:
            return None
        return group

    def _reduce_ps(self, size_bytes: int) -> int:
        return reduce_ns(self._system, size_bytes) * PS_PER_NS


def _check_ended(machine: Machine) -> None:
    if NEVER in machine.end_ps:
        task = machine.tasks[machine.end_ps.index(NEVER)]
        who = devices_text(machine.devices)
        raise SimulationError(f"{who} never end task {task.id} ({task.name})")
