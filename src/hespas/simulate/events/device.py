"""What one device does: it starts what it can whenever something of it ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol, assert_never

from hespas.errors import SimulationError
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)
from hespas.simulate.events.clock import Alarms, Clock
from hespas.simulate.events.memory import Memory
from hespas.simulate.events.post import Post
from hespas.simulate.events.queues import Queues
from hespas.simulate.machine import Machine
from hespas.simulate.meeting import TAG_LIMIT, Meetings


class Collectives(Protocol):
    """Starts a device's part in a collective, and has ``index`` ended when that is done."""

    def __call__(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        """Start the ``count``-th collective of the device at its place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all devices share; ``width`` is how many chunks a queue runs at once."""

    clock: Clock
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
        self.alarms = Alarms(world.clock)
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
