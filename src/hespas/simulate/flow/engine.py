"""Run the classes of a job: tasks on streams, and transfers on shared links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import assert_never

from hespas.errors import SimulationError
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)
from hespas.simulate.flow.classes import Classes, PlaceClass
from hespas.simulate.flow.course import Course, make_course
from hespas.simulate.flow.deadlock import Meeting, deadlock, mismatch
from hespas.simulate.flow.device import Device
from hespas.simulate.flow.memory import MemoryTimes
from hespas.simulate.flow.places import Use, use_of
from hespas.simulate.flow.runs import Runs


@dataclass(slots=True)
class _Message:
    """A message, from the first moment that either end knows of it."""

    sender: tuple[Device, int] | None = None
    receiver: tuple[Device, int] | None = None
    has_left: bool = False
    has_arrived: bool = False


@dataclass(slots=True)
class _Queue:
    """The messages of equal ends, tag and size: the k-th receive takes the k-th of them."""

    messages: list[_Message] = field(default_factory=list[_Message])
    sends: int = 0
    receives: int = 0

    def take(self, count: int) -> _Message:
        if count == len(self.messages):
            self.messages.append(_Message())
        return self.messages[count]


class Engine:
    """One simulation. `run` fills in when each task of each device class starts and ends."""

    def __init__(self, classes: Classes, memory: MemoryTimes) -> None:
        self._places = classes.places
        self.devices = [
            Device(number, one, classes.world, lambda place: self._places[place].devices)
            for number, one in enumerate(classes.devices)
        ]
        self._world = classes.world
        self._memory = memory
        self._runs = Runs(classes.capacities)
        self._courses: dict[tuple[int, Use], Course] = {}
        self._now_ps = 0
        self._ends: list[tuple[int, int, int]] = []
        self._touched: dict[int, None] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._meetings: dict[tuple[int, int], Meeting] = {}
        self._queues: dict[tuple[int, int, int], _Queue] = {}

    def run(self) -> None:
        """Let time pass until nothing happens any more.

        Raises `SimulationError` if members of a group start different collectives, and if somebody
        waits for ever.
        """
        for device in self.devices:
            self._start_ready(device)
        while True:
            while self._touched:
                self._start_touched()
            self._runs.settle(self._now_ps)
            next_ps = self._runs.next_event()
            if self._ends and (next_ps is None or self._ends[0][0] < next_ps):
                next_ps = self._ends[0][0]
            if next_ps is None:
                break
            self._now_ps = next_ps
            self._runs.advance(next_ps)
            while self._ends and self._ends[0][0] == next_ps:
                _, number, index = heappop(self._ends)
                self._end(self.devices[number], index)
        unmatched = [
            message.sender or message.receiver
            for queue in self._queues.values()
            for message in queue.messages
            if message.sender is None or message.receiver is None
        ]
        deadlock(self.devices, list(self._meetings.values()), unmatched, self._members)

    def _members(self, place: int) -> frozenset[int]:
        if place == self._world:
            return frozenset(range(len(self.devices)))
        return self._places[place].members

    def _start_touched(self) -> None:
        touched = sorted(self._touched)
        self._touched.clear()
        for number in touched:
            self._start_ready(self.devices[number])

    def _end(self, device: Device, index: int) -> None:
        device.end(index, self._now_ps)
        self._touched[device.number] = None

    def _end_at(self, device: Device, index: int, time_ps: int) -> None:
        heappush(self._ends, (time_ps, device.number, index))

    def _start_ready(self, device: Device) -> None:
        for index in device.take_ready():
            device.issue_ps[index] = self._now_ps
            task = device.tasks[index]
            match task:
                case ComputeTask():
                    self._end_at(device, index, self._now_ps + task.duration_ps)
                case CollectiveTask():
                    self._enter(device, index, task)
                case SendTask():
                    self._send(device, index, task)
                case ReceiveTask():
                    self._receive(device, index, task)
                case MemoryTask():
                    duration_ps = self._memory.duration_ps(task)
                    self._end_at(device, index, self._now_ps + duration_ps)
                case EmptyTask():
                    self._end(device, index)
                case _:
                    assert_never(task)

    def _enter(self, device: Device, index: int, task: CollectiveTask) -> None:
        place = device.places[index]
        count = self._counts.get((place, device.number), 0)
        self._counts[place, device.number] = count + 1
        key = (place, count)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting(place, task, device, self._now_ps)
        elif use_of(meeting.task) != use_of(task):
            raise SimulationError(mismatch(meeting, device, task, self._now_ps))
        meeting.come[device.number] = index
        if len(meeting.come) == len(self._members(place)):
            del self._meetings[key]
            self._runs.start(self._course(place, use_of(task)), partial(self._done, meeting))

    def _done(self, meeting: Meeting) -> None:
        for number, index in meeting.come.items():
            self._end(self.devices[number], index)

    def _course(self, place: int, use: Use) -> Course:
        key = (place, use)
        if key not in self._courses:
            one: PlaceClass = self._places[place]
            plan = one.plans[use]
            self._courses[key] = make_course(plan, one.uses, has_rivals=plan in one.rivals)
        return self._courses[key]

    def _queue(self, place: int, task: SendTask | ReceiveTask) -> _Queue:
        return self._queues.setdefault((place, task.tag, task.size_bytes), _Queue())

    def _send(self, device: Device, index: int, task: SendTask) -> None:
        place = device.places[index]
        queue = self._queue(place, task)
        message = queue.take(queue.sends)
        queue.sends += 1
        message.sender = (device, index)
        self._let_go(message, place, use_of(task))

    def _receive(self, device: Device, index: int, task: ReceiveTask) -> None:
        place = device.places[index]
        queue = self._queue(place, task)
        message = queue.take(queue.receives)
        queue.receives += 1
        message.receiver = (device, index)
        if message.has_arrived:
            self._end(device, index)
        else:
            self._let_go(message, place, use_of(task))

    def _let_go(self, message: _Message, place: int, use: Use) -> None:
        """Start a message once its sender has, and if need be its receiver."""
        waits = self._places[place].plans[use].waits_for_receiver
        if message.has_left or message.sender is None or (waits and message.receiver is None):
            return
        message.has_left = True
        self._runs.start(self._course(place, use), partial(self._arrive, message))

    def _arrive(self, message: _Message) -> None:
        message.has_arrived = True
        ends: Sequence[tuple[Device, int] | None] = (message.sender, message.receiver)
        for end in ends:
            if end is not None:
                self._end(*end)
