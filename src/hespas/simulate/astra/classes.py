"""Run device classes with collectives of closed-form durations.

Source of the order of events: ASTRA-sim's workload layer and event queue. Events are ordered by
time, then by when they were scheduled. A device's own events of one instant happen together, at the
place of the first. Whenever a task ends, the device starts all ready tasks.

On the representative of a class, two events of one instant may come in another order than on the
other devices; and a collective's last message has a place among other events that only its messages
decide. That changes nothing unless another task then gets a stream: `_Ties` detects this by
comparing both orders.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.simulate.astra.durations import ClosedForms
from hespas.simulate.astra.folding import GroupClass
from hespas.simulate.astra.relays import GroupShape, Span
from hespas.simulate.communicators import Channel
from hespas.simulate.devices import (
    EVERYONE,
    NEVER,
    NO_GROUP,
    Device,
    End,
    Match,
    Stream,
    StreamKey,
    TaskRun,
)
from hespas.simulate.engine import Engine
from hespas.simulate.kernel import TAG_LIMIT, Kernel, Mailbox, Mailboxes
from hespas.simulate.timeline import FROM_HOST, TO_HOST
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
)

_COMPUTE, _COMMUNICATION = ("compute", NO_GROUP), ("communication", NO_GROUP)
_HOST = ("host", NO_GROUP)
_TO_HOST, _FROM_HOST = (TO_HOST, NO_GROUP), (FROM_HOST, NO_GROUP)


def stream_of(task: Task, _group: int) -> StreamKey | None:
    """Return the stream of a task; receives need none."""
    match task:
        case ComputeTask():
            return _HOST if task.is_on_host else _COMPUTE
        case MemoryTask(duration_ps=int()):
            return _TO_HOST if task.is_store else _FROM_HOST
        case EmptyTask(is_compute=True):
            return _COMPUTE
        case CollectiveTask(takes_slot=False) | ReceiveTask():
            return None
        case _:
            return _COMMUNICATION


class NoClosedFormError(Exception):
    """An event has no closed form, or an unknown order."""


def run_classes(
    forms: ClosedForms,
    devices: Sequence[Device],
    groups: Sequence[GroupClass],
    *,
    is_staggered: bool,
) -> bool:
    """Run device classes; return False for unknown ends.

    The ends are unknown if members of a collective don't start it together and no closed form gives
    their ends, and if the order of events at one instant matters and isn't known. Unless
    ``is_staggered``, members must start together: a device that others don't wait for may then
    appear to start tasks that it never would, so errors count as unknown, too. With
    ``is_staggered`` raises `SimulationError` if members start different collectives or a device
    waits forever.
    """
    kernel = Kernel()
    network = _ClosedFormNetwork(forms, kernel, devices, groups, is_staggered=is_staggered)
    engine = Engine(kernel, devices, network, ties=_Ties(kernel))
    try:
        engine.run()
    except NoClosedFormError:
        return False
    except SimulationError:
        if is_staggered:
            raise
        return False
    if not is_staggered:
        return engine.is_complete
    engine.check_complete()
    return True


class _ClosedFormNetwork:
    """ASTRA-sim's network without congestion: one event per communication."""

    def __init__(
        self,
        forms: ClosedForms,
        kernel: Kernel,
        devices: Sequence[Device],
        groups: Sequence[GroupClass],
        *,
        is_staggered: bool,
    ) -> None:
        self._forms = forms
        self._kernel = kernel
        self._groups = groups
        self._is_staggered = is_staggered
        self._everyone = range(len(devices))
        self._class_of = {member: device.number for device in devices for member in device.devices}
        self._timings = {EVERYONE: None} | {
            number: forms.timing(item.group) for number, item in enumerate(groups)
        }
        self._mailboxes: Mailboxes[TaskRun] = Mailboxes()

    def members(self, group: int) -> Collection[int]:
        return self._everyone if group == EVERYONE else self._groups[group].members

    def unmatched(self) -> Iterator[TaskRun]:
        return self._mailboxes.waiting()

    def join(self, run: TaskRun, match: Match, end: End, *, is_complete: bool) -> None:
        task, now_ps = run.task, self._kernel.now_ps
        if not isinstance(task, CollectiveTask):
            raise TypeError(task)
        timing = self._timings[run.group]
        if self._is_staggered:
            has_form = self._forms.covers_group(task, timing)
        else:
            has_form = match.start_ps == now_ps
        # A collective without duration at time 0 is an error, which the event simulation explains.
        if not has_form or (now_ps == 0 and self._forms.wait_ns(timing) == 0):
            raise NoClosedFormError
        if self._is_staggered and not is_complete:
            return  # no member ends before all have joined
        shape = timing if isinstance(timing, GroupShape) else None
        span = self._forms.span(task, shape)
        if span is None:
            raise NoClosedFormError
        if self._is_staggered:
            self._end_staggered(match, task, shape, span, end)
        else:
            self._end_collective(run, now_ps + span.total_ns * PS_PER_NS, span, end)

    def _end_staggered(
        self, match: Match, task: CollectiveTask, shape: GroupShape | None, span: Span, end: End
    ) -> None:
        starts_ps = {number: run.issue_ps for number, run in match.endpoints.items()}
        ends_ps = {number: start + span.total_ns * PS_PER_NS for number, start in starts_ps.items()}
        if len(set(starts_ps.values())) > 1:
            members: Iterable[int] = range(len(self._class_of))
            if match.group != EVERYONE:
                group = self._groups[match.group].group
                members = members if isinstance(group, Channel) else group
            classes = [self._class_of[device] for device in members]
            unequal_ps = self._forms.ends_of_classes(task, shape, classes, starts_ps)
            if unequal_ps is None:
                raise NoClosedFormError
            ends_ps = dict(unequal_ps)
        for number, run in match.endpoints.items():
            self._end_collective(run, ends_ps[number], span, end)

    def _end_collective(self, run: TaskRun, end_ps: int, span: Span, end: End) -> None:
        def receive_last(_: object) -> None:
            # The device schedules the end when the last message has arrived, which decides ties.
            run.settled_ps = self._kernel.now_ps
            run.device.clock.after(end_ps - self._kernel.now_ps, end, run)

        last_ps = max(end_ps - span.last_wait_ns * PS_PER_NS, self._kernel.now_ps)
        self._kernel.at(last_ps, receive_last)

    def _mailbox(self, run: TaskRun, task: SendTask | ReceiveTask) -> Mailbox[TaskRun]:
        channel = self._groups[run.group].group
        if not isinstance(channel, Channel):
            raise TypeError(channel)
        tag = (run.group, task.tag % TAG_LIMIT)
        return self._mailboxes.mailbox(tag, channel.source, channel.target, task.size_bytes)

    def send(self, run: TaskRun, task: SendTask, end: End) -> None:
        delay_ps = self._forms.message_ns(task, self._timings[run.group]) * PS_PER_NS
        if delay_ps == 0 and self._kernel.now_ps == 0:
            raise NoClosedFormError  # an error, which the event simulation explains
        mailbox = self._mailbox(run, task)

        def arrive(_: object) -> None:
            receiver = mailbox.deliver(run)
            end(run)
            if receiver is not None:
                receiver.settled_ps = run.issue_ps
                end(receiver)

        self._kernel.after(delay_ps, arrive)

    def receive(self, run: TaskRun, task: ReceiveTask, end: End) -> None:
        if self._mailbox(run, task).receive(run) is not None:
            run.settled_ps = self._kernel.now_ps
            self._kernel.at(self._kernel.now_ps, end, run)

    def access(self, run: TaskRun, task: MemoryTask, end: End) -> None:
        del run, end
        raise TypeError(task)  # only the event simulation has memory


_Event: TypeAlias = tuple[int, bool]
"""A kernel action; a device class that sends to itself may end two tasks in one."""


@dataclass(slots=True)
class _Ended:
    """A task that ended now, with released and started tasks."""

    run: TaskRun
    event: _Event
    settled_ps: int
    released: dict[Stream, set[int]]
    started: dict[Stream, int] = field(default_factory=dict[Stream, int])

    @property
    def is_collective(self) -> bool:
        return isinstance(self.run.task, CollectiveTask)


class _Ties:
    """The tasks of each class that ended now, by event."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ended: dict[int, tuple[int, list[_Ended]]] = {}

    def end(self, run: TaskRun) -> None:
        """Register an ending task; `NoClosedFormError` if its order is unclear.

        The order is unclear if another task would get a stream, had this task ended before those
        that ended at this instant in another event; or if too many tasks end at once to decide.
        """
        number, now_ps = run.device.number, self._kernel.now_ps
        then_ps, ended = self._ended.get(number, (now_ps, []))
        if then_ps != now_ps:
            ended = []
        new = _Ended(
            run=run,
            event=(self._kernel.event, isinstance(run.task, ReceiveTask)),
            settled_ps=run.issue_ps if run.settled_ps == NEVER else run.settled_ps,
            released=_released_by(run),
        )
        if any(_is_order_open(old, new, now_ps) for old in ended) and (
            len(ended) > 1
            or any(
                _other_task_starts(stream, ended[0], new) for stream in run.device.streams.values()
            )
        ):
            raise NoClosedFormError
        self._ended[number] = (now_ps, [*ended, new])

    def start(self, runs: Sequence[TaskRun]) -> None:
        """Register the tasks that start after the last end."""
        for run in runs:
            _, ended = self._ended.get(run.device.number, (0, []))
            # At the start of the step no task has ended yet.
            if ended and run.stream is not None:
                ended[-1].started[run.stream] = run.task.id


def _released_by(run: TaskRun) -> dict[Stream, set[int]]:
    """Return the tasks waiting only for this one, by stream."""
    released: dict[Stream, set[int]] = {}
    for child in run.children:
        if child.missing == 1 and child.stream is not None:
            released.setdefault(child.stream, set()).add(child.task.id)
    return released


def _is_order_open(old: _Ended, new: _Ended, now_ps: int) -> bool:
    """Return whether ``old`` may have ended after ``new``."""
    if not (old.is_collective or new.is_collective):
        return old.event != new.event
    if new.run in old.run.children:
        return False
    is_set_now = any(ended.is_collective and ended.settled_ps == now_ps for ended in (old, new))
    return is_set_now or old.settled_ps == new.settled_ps or old.event != new.event


def _other_task_starts(stream: Stream, old: _Ended, new: _Ended) -> bool:
    """Return whether the other order starts another task."""
    old_frees, new_frees = (ended.run.stream is stream for ended in (old, new))
    started = old.started.get(stream)
    waiting = {task_id for task_id, _, _ in stream.ready}
    by_old, by_new = old.released.get(stream, set[int]()), new.released.get(stream, set[int]())
    by_both = by_new & {child.task.id for child in old.run.children}
    was_free = not old_frees and (started is not None or not stream.is_busy)
    before = waiting - by_old
    if started is not None and started not in by_old:
        before.add(started)

    first = started
    if first is None and (new_frees or not stream.is_busy):
        first = min(waiting | by_new, default=None)
    first_in_other_order = None
    if was_free or new_frees:
        first_in_other_order = min(before | (by_new - by_both), default=None)
    if first_in_other_order is None:
        first_in_other_order = min(before | by_new | by_old, default=None)
    return first != first_in_other_order and (was_free or old_frees or new_frees)
