"""Who has come to which collective, and which message is for which receive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hespas.errors import SimulationError
from hespas.schedule.tasks import CollectiveTask, ReceiveTask, SendTask, devices_text
from hespas.simulate.astra.closed_forms import NeedsEngineError
from hespas.simulate.astra.device_state import EVERYONE, NEVER, Machine
from hespas.units import PS_PER_NS

TAG_LIMIT = 500_000_000
"""What the tags of ASTRA-sim's sends and receives are taken modulo."""


@dataclass(slots=True)
class _Collective:
    """One collective at one place: who came first, when, and who has come so far."""

    task: CollectiveTask
    first: Machine
    start_ps: int
    come: set[int]
    is_together: bool = True


@dataclass(slots=True)
class Message:
    """A message, from the first moment that either end knows of it."""

    sender: tuple[Machine, int] | None = None
    receiver: tuple[Machine, int] | None = None
    has_arrived: bool = False


@dataclass(slots=True)
class _Queue:
    """The messages of equal ends, tag and size: the k-th receive takes the k-th of them."""

    messages: list[Message] = field(default_factory=list[Message])
    sends: int = 0
    receives: int = 0

    def take(self, count: int) -> Message:
        if count == len(self.messages):
            self.messages.append(Message())
        return self.messages[count]


class Meetings:
    """The collectives and messages under way. ``members`` has the classes that meet at a place."""

    def __init__(self, machines: Sequence[Machine], members: Sequence[Collection[int]]) -> None:
        self._machines = machines
        self._members = members
        self._counts: dict[tuple[int, int], int] = {}
        self._collectives: dict[tuple[int, int], _Collective] = {}
        self._queues: dict[tuple[int, int, int], _Queue] = {}

    def enter(self, machine: Machine, task: CollectiveTask, place: int, now_ps: int) -> int:
        """Note that a class starts its next collective at a place; return how many it had there.

        Raises `SimulationError` unless all members start the same collective.
        """
        count = self._counts.get((place, machine.number), 0)
        self._counts[place, machine.number] = count + 1
        known = self._collectives.get((place, count))
        if known is None:
            self._collectives[place, count] = _Collective(task, machine, now_ps, {machine.number})
            return count
        known.come.add(machine.number)
        if (known.task.kind, known.task.size_bytes) != (task.kind, task.size_bytes):
            raise SimulationError(_other_collective(known, machine, task))
        known.is_together = known.is_together and known.start_ps == now_ps
        return count

    def check_together(self, place: int, count: int) -> None:
        """Raise `NeedsEngineError` if members have started a collective at different times."""
        if not self._collectives[place, count].is_together:
            raise NeedsEngineError

    def are_all_there(self, place: int, count: int) -> bool:
        """Return whether all members have started a collective."""
        members = self._machines if place == EVERYONE else self._members[place]
        return len(self._collectives[place, count].come) == len(members)

    def send(self, machine: Machine, index: int, task: SendTask, place: int) -> Message:
        """Return the message that a send makes."""
        queue = self._queue(task, place)
        message = queue.take(queue.sends)
        queue.sends += 1
        message.sender = (machine, index)
        return message

    def receive(self, machine: Machine, index: int, task: ReceiveTask, place: int) -> Message:
        """Return the message that a receive awaits."""
        queue = self._queue(task, place)
        message = queue.take(queue.receives)
        queue.receives += 1
        message.receiver = (machine, index)
        return message

    def _queue(self, task: SendTask | ReceiveTask, place: int) -> _Queue:
        key = (place, task.tag % TAG_LIMIT, task.size_bytes)
        return self._queues.setdefault(key, _Queue())

    def check_complete(self) -> None:
        """Raise `SimulationError` if somebody waits for what never comes."""
        for (place, _), collective in self._collectives.items():
            members = range(len(self._machines)) if place == EVERYONE else self._members[place]
            absent = [number for number in members if number not in collective.come]
            if absent:
                raise SimulationError(self._never_come(collective, absent))
        for queue in self._queues.values():
            for message in queue.messages:
                if message.sender is None or message.receiver is None:
                    raise SimulationError(_unmatched(message))

    def _never_come(self, collective: _Collective, absent: Sequence[int]) -> str:
        missing = devices_text(d for number in absent for d in self._machines[number].devices)
        who = _who(collective.first, collective.task)
        reasons = [text for number in absent if (text := _waiting(self._machines[number]))]
        reason = f"; instead {reasons[0]}" if reasons else ""
        return f"{who} at {_ns(collective.start_ps)}, but {missing} never did{reason}"


def _waiting(machine: Machine) -> str | None:
    """Return what a class has started last and not ended; None if there is nothing."""
    under_way = [
        (start_ps, task)
        for task, start_ps, end_ps in zip(
            machine.tasks, machine.issue_ps, machine.end_ps, strict=True
        )
        if start_ps != NEVER and end_ps == NEVER
    ]
    if not under_way:
        return None
    start_ps, task = max(under_way, key=lambda pair: (pair[0], pair[1].id))
    who = devices_text(machine.devices)
    return f"{who} waited from {_ns(start_ps)} on for task {task.id} ({task.name}) to end"


def _ns(time_ps: int) -> str:
    return f"{time_ps / PS_PER_NS:g} ns"


def _who(machine: Machine, task: CollectiveTask) -> str:
    what = f"{task.kind.name} {task.id} ({task.name}) of {task.size_bytes} bytes"
    return f"{devices_text(machine.devices)} started {what}"


def _other_collective(known: _Collective, machine: Machine, task: CollectiveTask) -> str:
    return f"{_who(known.first, known.task)}, and with it {_who(machine, task)}"


def _unmatched(message: Message) -> str:
    known = message.sender or message.receiver
    if known is None:
        return "a message has neither end"
    machine, index = known
    task = machine.tasks[index]
    what, other = ("send", "receive") if message.sender else ("receive", "send")
    return (
        f"no {other} of the same ends, tag and size matches "
        f"{what} {task.id} ({task.name}) of {devices_text(machine.devices)}"
    )
