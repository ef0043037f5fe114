"""Run the classes of a job: one device of each, with collectives as long as closed forms say.

Source of the order of events: ASTRA-sim's workload layer and event queue. Events are ordered by
time, then by when they were scheduled. What a device itself schedules for one time happens
together, when the first of it would. Whenever something ends, the device starts what it can.

On a device that stands for others, two events of one instant may come in another order than on
those; and a collective's last message comes in an order among other events that only its
messages decide. That changes nothing unless another task then gets a slot, which `_Ties` finds
out by going through both orders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.simulate.astra.device_state import EVERYONE
from hespas.simulate.astra.durations import Span
from hespas.simulate.astra.folding import Channel, GroupClass
from hespas.simulate.astra.running import Running, Slot, children_of, released_by
from hespas.simulate.kernel import Kernel
from hespas.simulate.matching import (
    TAG_LIMIT,
    CollectiveMatch,
    Collectives,
    Mailbox,
    Mailboxes,
    check_complete,
    mismatch,
)
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)

_Endpoint: TypeAlias = tuple[Running, int]
"""A class of devices, and the index of its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long communication takes, by the task and the number of its group.

    ``endpoint_ns`` is what a collective's members wait before each message. ``ends_ps`` gives when
    classes end a collective, by their numbers, given when each of them starts; without it they
    must start together. ``joins_all`` is False where some members don't wait for others. None
    stands for what has no closed form.
    """

    collective: Callable[[CollectiveTask, int], Span | None]
    message_ns: Callable[[SendTask, int], int]
    endpoint_ns: Callable[[int], int]
    joins_all: Callable[[CollectiveTask, int], bool]
    ends_ps: Callable[[CollectiveTask, int, Mapping[int, int]], Mapping[int, int] | None] | None = (
        None
    )


def run_classes(
    states: Sequence[Running], groups: Sequence[GroupClass], durations: Durations
) -> bool:
    """Fill in when each task of each class starts and ends; return False where that is unknown.

    It is where members of a collective don't start it together and no closed form says when they
    end, and where the order of events at one instant matters and isn't clear. Raises
    `SimulationError` if members start different collectives or a device waits for ever, except
    where ``durations`` demand that members start together: there, a device that others don't wait
    for may seem to start what it never would, and the result is unknown, too.
    """
    return _ClassEngine(states, groups, durations).run()


class _ClassEngine:
    def __init__(
        self, states: Sequence[Running], groups: Sequence[GroupClass], durations: Durations
    ) -> None:
        self._states = states
        self._groups = groups
        self._durations = durations
        self._ties = _Ties()
        self._kernel = Kernel()
        self._collectives: Collectives[_Endpoint] = Collectives()
        self._mailboxes: Mailboxes[_Endpoint] = Mailboxes()
        self._event = 0
        self._is_unknown = False

    def run(self) -> bool:
        for state in self._states:
            self._start_ready(state)
        if not self._is_unknown:
            self._kernel.run()
        if self._is_unknown:
            return False
        pending, unmatched = self._collectives.pending(), list(self._mailboxes.waiting())
        if self._durations.ends_ps is None:
            has_ended = all(state.has_ended for state in self._states)
            return has_ended and not pending and not unmatched
        participants = [state.unfinished() for state in self._states]
        check_complete(participants, pending, unmatched, self._members)
        return True

    def _give_up(self) -> None:
        """Stop the run, whose result is unknown."""
        self._is_unknown = True
        self._kernel.stop()

    def _members(self, group: int) -> Collection[int]:
        return range(len(self._states)) if group == EVERYONE else self._groups[group].members

    def _set_alarm(self, state: Running, index: int, time_ps: int) -> None:
        """Have a task end at a time, together with all that the device itself ends then."""
        alarms = state.alarms.get(time_ps)
        if alarms is None:
            state.alarms[time_ps] = [(index, self._kernel.now_ps)]
            self._kernel.at(time_ps, self._ring, state)
        else:
            alarms.append((index, self._kernel.now_ps))

    def _ring(self, state: Running) -> None:
        self._event += 1
        # What is set for now meanwhile joins the list that is being worked through.
        for index, set_ps in state.alarms[self._kernel.now_ps]:
            self._end(state, index, self._event, set_ps)
        del state.alarms[self._kernel.now_ps]

    def _end(self, state: Running, index: int, event: object, set_ps: int) -> None:
        if self._is_unknown:
            return
        if not self._ties.end(state, index, event, self._kernel.now_ps, set_ps):
            self._give_up()
            return
        state.end(index, self._kernel.now_ps)
        self._start_ready(state)

    def _start_ready(self, state: Running) -> None:
        now_ps = self._kernel.now_ps
        taken = state.take_ready()
        self._ties.start(state, taken)
        for _, index in taken:
            if self._is_unknown:
                return
            state.issue_ps[index] = now_ps
            task = state.tasks[index]
            match task:
                case (
                    ComputeTask(duration_ps=duration_ps) | MemoryTask(duration_ps=int(duration_ps))
                ):
                    self._set_alarm(state, index, now_ps + duration_ps)
                case CollectiveTask():
                    self._start_collective(state, index, task)
                case SendTask():
                    self._start_send(state, index, task)
                case ReceiveTask():
                    self._start_receive(state, index, task)
                case _:
                    raise ValueError(task)  # for the event engine only

    def _start_collective(self, state: Running, index: int, task: CollectiveTask) -> None:
        group, now_ps = state.groups[index], self._kernel.now_ps
        signature = (task.kind, task.size_bytes)
        match = self._collectives.join(
            group, state.number, (state, index), signature=signature, now_ps=now_ps
        )
        has_all = len(match.endpoints) == len(self._members(group))
        if has_all:
            self._collectives.complete(match)
        is_together = self._durations.ends_ps is None
        if match.signature != signature and not is_together:
            raise SimulationError(mismatch(match, (state, index), now_ps))
        is_bad = match.signature != signature or match.start_ps != now_ps
        is_bad = is_bad if is_together else not self._durations.joins_all(task, group)
        # A collective that takes no time at the very start is an error, which events explain.
        if is_bad or (now_ps == 0 and self._durations.endpoint_ns(group) == 0):
            self._give_up()
        elif is_together:
            span = self._durations.collective(task, group)
            if span is None:
                self._give_up()
            else:
                self._end_collective(state, index, now_ps + span.total_ns * PS_PER_NS, span)
        elif has_all:
            self._start_staggered(match, task)

    def _start_staggered(self, match: CollectiveMatch[_Endpoint], task: CollectiveTask) -> None:
        """Have a collective end whose members have all come: none of them ends before."""
        span = self._durations.collective(task, match.group)
        if span is None:
            self._give_up()
            return
        starts_ps = {
            number: state.issue_ps[index] for number, (state, index) in match.endpoints.items()
        }
        ends_ps: Mapping[int, int] | None
        ends_ps = {number: start + span.total_ns * PS_PER_NS for number, start in starts_ps.items()}
        if len(set(starts_ps.values())) > 1 and self._durations.ends_ps is not None:
            ends_ps = self._durations.ends_ps(task, match.group, starts_ps)
        if ends_ps is None:
            self._give_up()
            return
        for number, (state, index) in match.endpoints.items():
            self._end_collective(state, index, ends_ps[number], span)

    def _end_collective(self, state: Running, index: int, end_ps: int, span: Span) -> None:
        # The device sets its alarm when the last message has come, which decides about ties.
        last_ps = max(end_ps - span.last_wait_ns * PS_PER_NS, self._kernel.now_ps)
        self._kernel.at(last_ps, partial(self._receive_last, state, index), end_ps)

    def _receive_last(self, state: Running, index: int, end_ps: int) -> None:
        self._event += 1
        self._set_alarm(state, index, end_ps)

    def _mailbox(
        self, state: Running, index: int, task: SendTask | ReceiveTask
    ) -> Mailbox[_Endpoint]:
        group = state.groups[index]
        channel = self._groups[group].group
        if not isinstance(channel, Channel):
            raise TypeError(channel)
        tag = (group, task.tag % TAG_LIMIT)
        return self._mailboxes.mailbox(tag, channel.source, channel.target, task.size_bytes)

    def _start_send(self, state: Running, index: int, task: SendTask) -> None:
        delay_ps = self._durations.message_ns(task, state.groups[index]) * PS_PER_NS
        if delay_ps == 0 and self._kernel.now_ps == 0:
            self._give_up()  # an error, which events explain
            return
        self._kernel.after(delay_ps, self._arrive, (state, index))

    def _arrive(self, sender: _Endpoint) -> None:
        self._event += 1
        state, index = sender
        task = state.tasks[index]
        if not isinstance(task, SendTask):
            raise TypeError(task)
        receiver = self._mailbox(state, index, task).deliver(sender)
        sent_ps = state.issue_ps[index]
        self._end(state, index, self._event, sent_ps)
        if receiver is not None:
            # On a device of a class that sends to itself, the two messages are two events.
            event = (self._event, "received") if receiver[0] is state else self._event
            self._end(*receiver, event, sent_ps)

    def _start_receive(self, state: Running, index: int, task: ReceiveTask) -> None:
        if self._mailbox(state, index, task).receive((state, index)) is not None:
            self._kernel.at(self._kernel.now_ps, self._take, (state, index))

    def _take(self, receiver: _Endpoint) -> None:
        """End a receive whose message had arrived before."""
        self._event += 1
        self._end(*receiver, self._event, self._kernel.now_ps)


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


class _Ties:
    """What has ended in each class at the current instant, and in which event."""

    def __init__(self) -> None:
        self._ended: dict[int, tuple[int, list[_Ended]]] = {}

    def end(self, state: Running, index: int, event: object, now_ps: int, set_ps: int) -> bool:
        """Note that a task is about to end, and return whether the order of ends is clear.

        ``set_ps`` is when its end was settled. The order is not clear if another task would get a
        slot, had this one ended before what ended at this instant in another event; or if so much
        ends at once that it can't be said.
        """
        then_ps, ended = self._ended.get(state.number, (now_ps, []))
        if then_ps != now_ps:
            ended = []
        is_collective = isinstance(state.tasks[index], CollectiveTask)
        new = _Ended(event, index, is_collective, set_ps, released_by(state, index))
        has_other = any(_is_order_open(state, old, new, now_ps) for old in ended)
        if has_other and (len(ended) > 1 or _order_matters(state, ended[0], new)):
            return False
        self._ended[state.number] = (now_ps, [*ended, new])
        return True

    def start(self, state: Running, taken: Iterable[tuple[int, int]]) -> None:
        """Note what starts after the task that ended last."""
        _, ended = self._ended.get(state.number, (0, []))
        if not ended:
            return  # the start of the step: nothing has ended yet
        for task_id, index in taken:
            slot = state.slot_of(index)
            if slot is not None:
                ended[-1].started[slot] = task_id


def _is_order_open(state: Running, old: _Ended, new: _Ended, now_ps: int) -> bool:
    """Return whether ``old`` may have ended after ``new``."""
    if not (old.is_collective or new.is_collective):
        return old.event != new.event
    if new.index in state.children[old.index]:
        return False
    is_set_now = any(one.is_collective and one.set_ps == now_ps for one in (old, new))
    return is_set_now or old.set_ps == new.set_ps or old.event != new.event


def _order_matters(state: Running, old: _Ended, new: _Ended) -> bool:
    return any(_other_task_starts(slot, state, old, new) for slot in Slot)


def _other_task_starts(slot: Slot, state: Running, old: _Ended, new: _Ended) -> bool:
    """Compare who gets a slot: as it happens, and had ``new`` ended first.

    ``new`` is about to end; ``old`` has, and what then got the slot has started.
    """
    old_frees, new_frees = (state.slot_of(ended.index) is slot for ended in (old, new))
    started = old.started.get(slot)
    waiting = state.slots.waiting(slot)
    by_old, by_new = old.released.get(slot, set[int]()), new.released.get(slot, set[int]())
    by_both = by_new & children_of(state, old.index)
    was_free = not old_frees and (started is not None or state.slots.is_free(slot))
    before = waiting - by_old
    if started is not None and started not in by_old:
        before.add(started)

    first = started
    if first is None and (new_frees or state.slots.is_free(slot)):
        first = min(waiting | by_new, default=None)
    other = None
    if was_free or new_frees:
        other = min(before | (by_new - by_both), default=None)
    if other is None:
        other = min(before | by_new | by_old, default=None)
    return first != other and (was_free or old_frees or new_frees)
