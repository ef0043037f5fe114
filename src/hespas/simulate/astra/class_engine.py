"""Run the classes of a job: one device of each, with collectives as long as closed forms say.

Source of the order of events: ASTRA-sim's workload layer and event queue. Events are ordered by
time, then by when they were made. What a device itself sets for one time happens together, when
the first of it would. Whenever something ends, the device starts what it can.

On a device that stands for others, two events of one instant may come in another order than on
those; and a collective's last message comes in an order among other events that only its
messages tell. That changes nothing unless another task then gets a slot, which is found out here
by going through both orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    devices_text,
)
from hespas.simulate.astra.closed_forms import NeedsEngineError, Span
from hespas.simulate.astra.device_state import NEVER, Machine, Slot
from hespas.simulate.meeting import Meetings, Message
from hespas.units import PS_PER_NS


@dataclass(slots=True)
class _Ended:
    """A task that ended at this instant, and by slot, what it released and let start.

    ``set_ps`` is when its end was settled.
    """

    event: object
    index: int
    is_collective: bool
    set_ps: int
    released: dict[Slot, set[int]]
    started: dict[Slot, int] = field(default_factory=dict[Slot, int])


class Ties:
    """What has ended on each machine at the current instant, and in which event."""

    def __init__(self) -> None:
        self._ended: dict[int, tuple[int, list[_Ended]]] = {}

    def end(self, machine: Machine, index: int, event: object, now_ps: int, set_ps: int) -> None:
        """Note that a task is about to end, which was settled at ``set_ps``.

        Raises `NeedsEngineError` if another task would get a slot, had it ended before what
        ended at this instant in another event; or if so much ends at once that this isn't clear.
        """
        then_ps, ended = self._ended.get(machine.number, (now_ps, []))
        if then_ps != now_ps:
            ended = []
        is_collective = isinstance(machine.tasks[index], CollectiveTask)
        new = _Ended(event, index, is_collective, set_ps, machine.released_by(index))
        has_other = any(_is_order_open(machine, old, new, now_ps) for old in ended)
        if has_other and (len(ended) > 1 or _order_matters(machine, ended[0], new)):
            raise NeedsEngineError
        self._ended[machine.number] = (now_ps, [*ended, new])

    def start(self, machine: Machine, taken: Iterable[tuple[int, int]]) -> None:
        """Note what starts after the task that ended last."""
        _, ended = self._ended.get(machine.number, (0, []))
        if not ended:
            return  # the start of the step: nothing has ended yet
        for task_id, index in taken:
            slot = machine.slot_of(index)
            if slot is not None:
                ended[-1].started[slot] = task_id


def _is_order_open(machine: Machine, old: _Ended, new: _Ended, now_ps: int) -> bool:
    """Return whether ``old`` may have ended after ``new``."""
    if not (old.is_collective or new.is_collective):
        return old.event != new.event
    if new.index in machine.children[old.index]:
        return False
    is_set_now = any(one.is_collective and one.set_ps == now_ps for one in (old, new))
    return is_set_now or old.set_ps == new.set_ps or old.event != new.event


def _order_matters(machine: Machine, old: _Ended, new: _Ended) -> bool:
    return any(_other_task_starts(slot, machine, old, new) for slot in Slot)


def _other_task_starts(slot: Slot, machine: Machine, old: _Ended, new: _Ended) -> bool:
    """Compare who gets a slot: as it happens, and had ``new`` ended first.

    ``new`` is about to end; ``old`` has, and what then got the slot has started.
    """
    old_frees, new_frees = (machine.slot_of(ended.index) is slot for ended in (old, new))
    started = old.started.get(slot)
    waiting = machine.waiting(slot)
    by_old, by_new = old.released.get(slot, set[int]()), new.released.get(slot, set[int]())
    by_both = by_new & machine.children_of(old.index)
    was_free = not old_frees and (started is not None or machine.is_free(slot))
    before = waiting - by_old
    if started is not None and started not in by_old:
        before.add(started)

    first = started
    if first is None and (new_frees or machine.is_free(slot)):
        first = min(waiting | by_new, default=None)
    other = None
    if was_free or new_frees:
        other = min(before | (by_new - by_both), default=None)
    if other is None:
        other = min(before | by_new | by_old, default=None)
    return first != other and (was_free or old_frees or new_frees)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long communication takes: a collective at a place, a message through a place.

    ``endpoint_ns`` is what a collective's members wait before each message. ``ends_ps`` gives when
    classes end a collective at a place, by their numbers, given when each of them starts; without
    it they must start together. Where ``joins_all`` says no, some members don't wait for others.
    """

    collective: Callable[[CollectiveTask, int], Span]
    message_ns: Callable[[SendTask, int], int]
    endpoint_ns: Callable[[int], int]
    joins_all: Callable[[CollectiveTask, int], bool]
    ends_ps: Callable[[CollectiveTask, int, Mapping[int, int]], Mapping[int, int]] | None = None


def run(machines: Sequence[Machine], meetings: Meetings, durations: Durations) -> None:
    """Fill in when each task of each machine starts and ends.

    Raises `SimulationError` if members of a collective start different ones or somebody waits
    for ever, and `NeedsEngineError` if they don't start it together or the order of events
    at one instant matters and isn't clear.
    """
    _Engine(machines, meetings, durations).run()
    meetings.check_complete()
    for machine in machines:
        if NEVER in machine.end_ps:
            task = machine.tasks[machine.end_ps.index(NEVER)]
            who = devices_text(machine.devices)
            raise SimulationError(f"{who} never end task {task.id} ({task.name})")


class _Engine:
    def __init__(
        self, machines: Sequence[Machine], meetings: Meetings, durations: Durations
    ) -> None:
        self._machines = machines
        self._meetings = meetings
        self._durations = durations
        self._ties = Ties()
        self._now_ps = 0
        self._sequence = 0
        self._current = 0
        self._entered: dict[tuple[int, int], dict[int, tuple[Machine, int, int]]] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def run(self) -> None:
        for machine in self._machines:
            self._start_ready(machine)
        events = self._events
        while events:
            self._now_ps, self._current, act = heappop(events)
            act()

    def _at(self, time_ps: int, act: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._events, (time_ps, self._sequence, act))

    def _set_alarm(self, machine: Machine, index: int, time_ps: int) -> None:
        alarms = machine.alarms.get(time_ps)
        if alarms is None:
            machine.alarms[time_ps] = [(index, self._now_ps)]
            self._at(time_ps, lambda: self._ring(machine))
        else:
            alarms.append((index, self._now_ps))

    def _ring(self, machine: Machine) -> None:
        # What is set for now meanwhile joins the list that is being worked through.
        for index, set_ps in machine.alarms[self._now_ps]:
            self._end(machine, index, self._current, set_ps)
        del machine.alarms[self._now_ps]

    def _end(self, machine: Machine, index: int, event: object, set_ps: int) -> None:
        self._ties.end(machine, index, event, self._now_ps, set_ps)
        machine.end(index, self._now_ps)
        self._start_ready(machine)

    def _start_ready(self, machine: Machine) -> None:
        now_ps = self._now_ps
        taken = machine.take_ready()
        self._ties.start(machine, taken)
        for _, index in taken:
            machine.issue_ps[index] = now_ps
            task = machine.tasks[index]
            match task:
                case ComputeTask():
                    self._set_alarm(machine, index, now_ps + task.duration_ps)
                case CollectiveTask():
                    self._start_collective(machine, index, task)
                case SendTask():
                    self._start_send(machine, index, task)
                case ReceiveTask():
                    self._start_receive(machine, index, task)
                case MemoryTask() | EmptyTask():
                    raise NeedsEngineError
                case _:
                    assert_never(task)

    def _start_collective(self, machine: Machine, index: int, task: CollectiveTask) -> None:
        place = machine.places[index]
        count = self._meetings.enter(machine, task, place, self._now_ps)
        if self._durations.ends_ps is not None:
            self._enter_apart(machine, index, task, place, count)
            return
        self._meetings.check_together(place, count)
        self._refuse_instant(self._durations.endpoint_ns(place))
        span = self._durations.collective(task, place)
        end_ps = self._now_ps + span.total_ns * PS_PER_NS
        # The device sets its alarm when the last message has come, which decides about ties.
        self._at(
            end_ps - span.last_wait_ns * PS_PER_NS,
            lambda: self._set_alarm(machine, index, end_ps),
        )

    def _enter_apart(
        self, machine: Machine, index: int, task: CollectiveTask, place: int, count: int
    ) -> None:
        """Wait until all members have come: none of them ends before."""
        if not self._durations.joins_all(task, place):
            raise NeedsEngineError
        entered = self._entered.setdefault((place, count), {})
        entered[machine.number] = (machine, index, self._now_ps)
        self._refuse_instant(self._durations.endpoint_ns(place))
        if not self._meetings.are_all_there(place, count):
            return
        del self._entered[place, count]
        span = self._durations.collective(task, place)
        starts_ps = {number: start_ps for number, (_, _, start_ps) in entered.items()}
        ends_ps = {number: start + span.total_ns * PS_PER_NS for number, start in starts_ps.items()}
        if len(set(starts_ps.values())) > 1 and self._durations.ends_ps is not None:
            ends_ps = dict(self._durations.ends_ps(task, place, starts_ps))
        for number, (member, own, _) in entered.items():
            end_ps = ends_ps[number]
            self._at(
                max(end_ps - span.last_wait_ns * PS_PER_NS, self._now_ps),
                partial(self._set_alarm, member, own, end_ps),
            )

    def _start_send(self, machine: Machine, index: int, task: SendTask) -> None:
        place = machine.places[index]
        message = self._meetings.send(machine, index, task, place)
        delay_ps = self._durations.message_ns(task, place) * PS_PER_NS
        self._refuse_instant(delay_ps)
        self._at(self._now_ps + delay_ps, lambda: self._arrive(machine, index, message))

    def _refuse_instant(self, wait: int) -> None:
        if wait == 0 and self._now_ps == 0:
            raise NeedsEngineError  # which says what is wrong with it

    def _arrive(self, machine: Machine, index: int, message: Message) -> None:
        receiver = message.receiver
        message.has_arrived = True
        sent_ps = machine.issue_ps[index]
        self._end(machine, index, self._current, sent_ps)
        if receiver is not None:
            # On a device of a class that sends to itself, the two messages are two events.
            is_same = receiver[0] is machine
            event = (self._current, "received") if is_same else self._current
            self._end(*receiver, event, sent_ps)

    def _start_receive(self, machine: Machine, index: int, task: ReceiveTask) -> None:
        message = self._meetings.receive(machine, index, task, machine.places[index])
        if message.has_arrived:
            now_ps = self._now_ps
            self._at(now_ps, lambda: self._end(machine, index, self._current, now_ps))
