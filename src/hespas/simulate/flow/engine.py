"""Run the classes of a job: tasks on streams, and transfers on shared links."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TypeAlias, assert_never

from hespas.errors import SimulationError
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)
from hespas.simulate.deadlock import check_complete, mismatch
from hespas.simulate.flow.classes import Classes, PlaceClass
from hespas.simulate.flow.course import Course, make_course
from hespas.simulate.flow.device import Device
from hespas.simulate.flow.memory import MemoryTimes
from hespas.simulate.flow.places import Use, use_of
from hespas.simulate.flow.runs import Runs
from hespas.simulate.kernel import Kernel
from hespas.simulate.matching import CollectiveMatch, Collectives, Mailbox, Mailboxes

_Endpoint: TypeAlias = tuple[Device, int]
"""A class of devices, and the index of its task."""


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
        self._kernel = Kernel()
        self._runs = Runs(self._kernel, classes.capacities)
        self._courses: dict[tuple[int, Use], Course] = {}
        self._touched: set[int] = set()
        self._collectives: Collectives[_Endpoint] = Collectives()
        self._mailboxes: Mailboxes[_Endpoint] = Mailboxes()

    def run(self) -> None:
        """Let time pass until nothing happens any more.

        Raises `SimulationError` if members of a group start different collectives, and if somebody
        waits for ever.
        """
        self._touched.update(range(len(self.devices)))
        self._kernel.run(self._settle)
        # Where messages wait for their receivers, an endpoint may wait in two mailboxes.
        messages = list(dict.fromkeys(self._mailboxes.waiting()))
        check_complete(self.devices, self._collectives.pending(), messages, self._members)

    def _settle(self) -> None:
        """Start what can start after all that ended at this instant, and share the links anew."""
        while self._touched:
            touched = sorted(self._touched)
            self._touched.clear()
            for number in touched:
                self._start_ready(self.devices[number])
        self._runs.settle()

    def _members(self, place: int) -> Collection[int]:
        return range(len(self.devices)) if place == self._world else self._places[place].members

    def _end(self, endpoint: _Endpoint) -> None:
        device, index = endpoint
        device.end(index, self._kernel.now_ps)
        self._touched.add(device.number)

    def _start_ready(self, device: Device) -> None:
        for index in device.take_ready():
            device.issue_ps[index] = self._kernel.now_ps
            task = device.tasks[index]
            endpoint = (device, index)
            match task:
                case ComputeTask():
                    self._kernel.after(task.duration_ps, self._end, endpoint)
                case CollectiveTask():
                    self._join(endpoint, device.places[index], task)
                case SendTask():
                    self._send(endpoint, device.places[index], task)
                case ReceiveTask():
                    self._receive(endpoint, device.places[index], task)
                case MemoryTask():
                    self._kernel.after(self._memory.duration_ps(task), self._end, endpoint)
                case EmptyTask():
                    self._end(endpoint)
                case _:
                    assert_never(task)

    def _join(self, endpoint: _Endpoint, place: int, task: CollectiveTask) -> None:
        """Start a collective once all its members have come."""
        now_ps = self._kernel.now_ps
        use = use_of(task)
        match = self._collectives.join(
            place, endpoint[0].number, endpoint, signature=use, now_ps=now_ps
        )
        if match.signature != use:
            raise SimulationError(mismatch(match, endpoint, now_ps))
        if len(match.endpoints) == len(self._members(place)):
            self._collectives.complete(match)
            self._runs.start(self._course(place, use), partial(self._end_collective, match))

    def _end_collective(self, match: CollectiveMatch[_Endpoint]) -> None:
        for endpoint in match.endpoints.values():
            self._end(endpoint)

    def _course(self, place: int, use: Use) -> Course:
        key = (place, use)
        if key not in self._courses:
            one: PlaceClass = self._places[place]
            plan = one.plans[use]
            self._courses[key] = make_course(plan, one.uses, has_rivals=plan in one.rivals)
        return self._courses[key]

    def _mailbox(
        self, place: int, task: SendTask | ReceiveTask, *, is_ready: bool = False
    ) -> Mailbox[_Endpoint]:
        """Return the mailbox of a message; or that of the notices that a receiver is ready."""
        source, target = self._places[place].devices
        tag = ("ready", task.tag) if is_ready else task.tag
        return self._mailboxes.mailbox(tag, source, target, task.size_bytes)

    def _waits_for_receiver(self, place: int, task: SendTask | ReceiveTask) -> bool:
        return self._places[place].plans[use_of(task)].waits_for_receiver

    def _send(self, sender: _Endpoint, place: int, task: SendTask) -> None:
        waits = self._waits_for_receiver(place, task)
        if waits and self._mailbox(place, task, is_ready=True).receive(sender) is None:
            return
        self._carry(sender, place, task)

    def _receive(self, receiver: _Endpoint, place: int, task: ReceiveTask) -> None:
        if self._waits_for_receiver(place, task):
            sender = self._mailbox(place, task, is_ready=True).deliver(receiver)
            if sender is not None:
                self._carry(sender, place, task)
        if self._mailbox(place, task).receive(receiver) is not None:
            self._end(receiver)

    def _carry(self, sender: _Endpoint, place: int, task: SendTask | ReceiveTask) -> None:
        """Start a message on its way."""
        mailbox = self._mailbox(place, task)
        self._runs.start(self._course(place, use_of(task)), partial(self._arrive, mailbox, sender))

    def _arrive(self, mailbox: Mailbox[_Endpoint], sender: _Endpoint) -> None:
        self._end(sender)
        receiver = mailbox.deliver(sender)
        if receiver is not None:
            self._end(receiver)
