"""Run the tasks of device classes; a network times communication.

One device of each class runs, whether a class has one device or a million: dividing devices into
classes is a reduction of the job before the run. The network is ASTRA-sim's by closed forms
(`hespas.simulate.astra.classes`) or message by message (`hespas.simulate.astra.events`), or has
links that transfers share (`hespas.simulate.flow.simulate`).
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import starmap, zip_longest
from typing import Protocol, TypeAlias, assert_never

from hespas.base.units import PS_PER_S, format_time
from hespas.errors import SimulationError
from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.kernel import ActorQueue, Clock, CollectiveMatch, Collectives, Kernel
from hespas.simulate.timeline import ClassTimeline, class_timeline
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    devices_text,
    own_tasks,
)

NEVER = -1
EVERYONE = -1
"""The number of the group of all devices, if a network gives it no other."""
_MOST_SHOWN = 4
StreamKey: TypeAlias = tuple[str, int]
"""A stream's purpose, and the group whose tasks keep the program's order; else `NO_GROUP`."""
NO_GROUP = -1
FIRST_READY = -2
"""In place of a group: the stream runs tasks in the order in which they become ready."""
StreamOf: TypeAlias = Callable[[Task, int], StreamKey | None]
"""Returns the stream of a task in a group; None for a task without one."""
Work: TypeAlias = tuple[Task, int, tuple[int, ...]]
"""A task of a class of devices, the number of its group, and its dependencies."""


class Stream:
    """Runs one task at a time.

    It is the ready task with the lowest id, or in a stream of a group the program's next, or the
    one that has been ready for longest.
    """

    __slots__ = ("in_order", "is_busy", "key", "ready")

    def __init__(self, key: StreamKey) -> None:
        self.key = key
        self.is_busy = False
        self.ready: list[tuple[int, int, TaskRun]] = []
        self.in_order: deque[TaskRun] | None = deque() if key[1] >= 0 else None

    def take(self) -> TaskRun | None:
        """Return a task that can start, and occupy the stream."""
        if self.is_busy:
            return None
        run = None
        if self.in_order is None:
            run = heappop(self.ready)[2] if self.ready else None
        elif self.in_order and not self.in_order[0].missing:
            run = self.in_order.popleft()
        self.is_busy = run is not None and not isinstance(run.task, EmptyTask)
        return run


@dataclass(slots=True, eq=False)
class TaskRun:
    """A device class's task with its dependencies and times.

    ``missing`` counts the tasks it still waits for. ``settled_ps`` is when its end became known, if
    that was not at its start.
    """

    device: Device
    task: Task
    group: int
    position: int
    stream: Stream | None = None
    missing: int = 0
    children: list[TaskRun] = field(default_factory=list["TaskRun"])
    issue_ps: int = NEVER
    end_ps: int = NEVER
    settled_ps: int = NEVER


def work_of(devices: DeviceClass, everyone: int, *, keeps_order: bool) -> Iterator[Work]:
    """Yield a device class's tasks; ``everyone`` is the global group."""
    graph, roles = devices.graph, devices.roles
    ids = [task.id for task in graph.tasks]
    role_of = dict(zip(ids, roles.role_of_task, strict=True))
    key = roles.key(devices.devices[0])
    for task, _, depends_on in own_tasks(graph, roles, key, keeps_order=keeps_order):
        role = role_of[task.id]
        yield task, everyone if role == ALWAYS else devices.groups[role], depends_on


class Device:
    """A class of devices while it runs.

    With ``reach``, tasks are read when they can start, at most ``reach`` behind the started ones,
    and forgotten when they end: only their sums remain. ``waits_ps`` is the time that communication
    waits for others before anything is sent.
    """

    def __init__(
        self,
        number: int,
        devices: tuple[int, ...],
        work: Iterable[Work],
        stream_of: StreamOf,
        *,
        reach: int | None = None,
    ) -> None:
        self.number = number
        self.devices = devices
        self.runs: dict[int, TaskRun] = {}
        self.streams: dict[StreamKey, Stream] = {}
        self.waits_ps: dict[int, int] = {}
        self.clock: Clock = Kernel()
        self._stream_of = stream_of
        self._work = iter(work)
        self._reach = reach
        self._read = 0
        self._free: list[TaskRun] = []
        self._woken: dict[Stream, None] = {}
        self._finish_ps = self._compute_ps = self._communication_ps = 0
        self._read_up_to_reach(-1)

    def _read_up_to_reach(self, position: int) -> None:
        """Read the tasks that may start after one at ``position``."""
        while self._reach is None or self._read <= position + self._reach:
            work = next(self._work, None)
            if work is None:
                return
            self._add(*work)

    def _add(self, task: Task, group: int, depends_on: tuple[int, ...]) -> None:
        run = self.runs[task.id] = TaskRun(self, task, group, self._read)
        self._read += 1
        for dependency in depends_on:
            # In a streamed trace, a missing task has ended.
            earlier_run = self.runs.get(dependency)
            if earlier_run is not None:
                earlier_run.children.append(run)
                run.missing += 1
        key = self._stream_of(task, group)
        if key is not None:
            run.stream = self.streams.get(key) or self.streams.setdefault(key, Stream(key))
            if run.stream.in_order is not None:
                run.stream.in_order.append(run)
        if not run.missing:
            self._make_ready(run, 0)

    def _make_ready(self, run: TaskRun, now_ps: int) -> None:
        stream = run.stream
        if stream is None:
            self._free.append(run)
            return
        self._woken[stream] = None
        if stream.in_order is None:
            order = now_ps if stream.key[1] == FIRST_READY else run.task.id
            heappush(stream.ready, (order, run.position, run))

    def take_ready(self) -> list[TaskRun]:
        """Return the tasks that can start, occupying their streams."""
        if not self._woken and not self._free:
            return []
        ready, self._free = self._free, []
        for stream in self._woken:
            while (run := stream.take()) is not None:
                ready.append(run)
        self._woken.clear()
        if len(ready) > 1:
            ready.sort(key=lambda run: (run.task.id, run.position))
        if self._reach is not None:
            for run in ready:
                self._read_up_to_reach(run.position)
        return ready

    def end(self, run: TaskRun, now_ps: int) -> None:
        """End a task: free its stream and ready its children."""
        run.end_ps = now_ps
        stream = run.stream
        if stream is not None and not isinstance(run.task, EmptyTask):
            stream.is_busy = False
            self._woken[stream] = None
        for child in run.children:
            child.missing -= 1
            if not child.missing:
                self._make_ready(child, now_ps)
        if self._reach is not None:
            self._forget(run)

    def _forget(self, run: TaskRun) -> None:
        del self.runs[run.task.id]
        self._finish_ps = run.end_ps
        # Of each kind one task runs at a time, so sums are the times during which any runs.
        if isinstance(run.task, ComputeTask):
            self._compute_ps += run.end_ps - run.issue_ps
        else:
            self._communication_ps += run.end_ps - run.issue_ps

    def begin(self, run: TaskRun, now_ps: int) -> None:
        """Record how long a communication task waited to send."""
        if now_ps > run.issue_ps:
            self.waits_ps[run.task.id] = now_ps - run.issue_ps

    @property
    def has_ended(self) -> bool:
        """Whether all tasks have ended."""
        return all(run.end_ps != NEVER for run in self.runs.values())

    @property
    def finish_ps(self) -> int:
        """When the last task ended."""
        return max((run.end_ps for run in self.runs.values()), default=0)

    def timeline(self, graph: TaskGraph) -> ClassTimeline:
        """Return the timeline of the devices after their end."""
        runs = self.runs.values()
        spans = [(run.issue_ps, run.end_ps) for run in runs]
        return class_timeline(self.devices, graph, [run.task for run in runs], spans)

    def sums(self, name: str) -> ClassTimeline:
        """Return the sums of devices whose tasks were streamed."""
        overlap_ps = self._compute_ps + self._communication_ps - self._finish_ps
        graph = TaskGraph(name=name, device_count=len(self.devices), tasks=(), group_tables=())
        return ClassTimeline(
            devices=self.devices,
            graph=graph,
            nodes={},
            finish_ps=self._finish_ps,
            compute_ps=self._compute_ps,
            communication_ps=self._communication_ps,
            overlap_ps=max(0, overlap_ps),
            exposed_ps={},
        )


Match: TypeAlias = CollectiveMatch[TaskRun]
End: TypeAlias = Callable[[TaskRun], None]
"""Is called when a task has ended."""


class Network(Protocol):
    """Decides when communication ends, and calls ``end`` then."""

    def members(self, group: int) -> Collection[int]:
        """Return the numbers of the device classes in a group."""
        ...

    def join(self, run: TaskRun, match: Match, end: End, *, is_complete: bool) -> None:
        """Register that devices start a collective.

        With ``is_complete`` all members have started it.
        """
        ...

    def send(self, run: TaskRun, task: SendTask, end: End) -> None:
        """Send a message."""
        ...

    def receive(self, run: TaskRun, task: ReceiveTask, end: End) -> None:
        """Wait for a message."""
        ...

    def access(self, run: TaskRun, task: MemoryTask, end: End) -> None:
        """Move data from or to memory outside the device."""
        ...

    def unmatched(self) -> Iterable[TaskRun]:
        """Return the sends and receives without a partner."""
        ...


Compute: TypeAlias = Callable[[TaskRun, ComputeTask, End], None]
"""Starts a computation, decides when it ends, and calls its last argument then."""


class Ties(Protocol):
    """Watches whether the order of simultaneous events is known."""

    def end(self, run: TaskRun) -> None:
        """Register that a task is about to end."""
        ...

    def start(self, runs: Sequence[TaskRun]) -> None:
        """Register the tasks that start after the last end."""
        ...


class Engine:
    """A simulation: `run` sets the tasks' starts and ends.

    As in ASTRA-sim, a device starts all ready tasks whenever one of its tasks ends, and its own
    events of one instant happen together. ``compute`` decides how long computation takes (None: as
    long as its tasks say). With ``settle``, all tasks that end at an instant do so
    before any task starts, and ``settle`` is called after that.
    """

    def __init__(
        self,
        kernel: Kernel,
        devices: Sequence[Device],
        network: Network,
        *,
        ties: Ties | None = None,
        settle: Callable[[], None] | None = None,
        compute: Compute | None = None,
    ) -> None:
        self.devices = devices
        self._kernel = kernel
        self._network = network
        self._ties = ties
        self._settle = settle
        self._compute = compute
        self._collectives: Collectives[TaskRun] = Collectives()
        self._changed: set[int] = set()
        for device in devices:
            device.clock = ActorQueue(kernel) if settle is None else kernel

    def run(self) -> None:
        """Advance time until no event is left.

        Raises `SimulationError` if members of a group start different collectives.
        """
        was_enabled = gc.isenabled()
        gc.disable()  # it would go through millions of mailboxes repeatedly
        try:
            if self._settle is not None:
                self._changed.update(range(len(self.devices)))
                self._kernel.run(self._start_changed)
            else:
                for device in self.devices:
                    self._start_ready(device)
                self._kernel.run()
        finally:
            if was_enabled:
                gc.enable()

    @property
    def is_complete(self) -> bool:
        """Whether all tasks, messages and collectives have completed."""
        has_waiting = self._collectives.pending() or any(True for _ in self._network.unmatched())
        return not has_waiting and all(device.has_ended for device in self.devices)

    def check_complete(self) -> None:
        """Raise `SimulationError` if some task never ends.

        The error says which devices wait since when for which collective or message, what their
        partners do instead, and the first task in which the orders of two devices differ.
        """
        devices, members = self.devices, self._network.members
        collectives = self._collectives.pending()
        waits = [_unmatched(run) for run in self._network.unmatched()]
        waits += [_incomplete(match, devices, members(match.group)) for match in collectives]
        stuck = [run for device in devices for run in device.runs.values() if run.end_ps == NEVER]
        if not waits and not stuck:
            return
        if not waits:
            first, task = _devices_of_run(stuck[0]), stuck[0].task
            waits = [f"{first} never end task {task.id} ({task.name})"]
        omitted = f"; and {len(waits) - _MOST_SHOWN} more wait" if len(waits) > _MOST_SHOWN else ""
        absent = [
            (match.first.device, devices[number])
            for match in collectives
            for number in sorted(members(match.group))
            if number not in match.endpoints
        ]
        difference = next(filter(None, starmap(_first_difference, absent)), None)
        where = f"; their orders differ first at {difference}" if difference else ""
        raise SimulationError("; ".join(waits[:_MOST_SHOWN]) + omitted + where)

    def _start_changed(self) -> None:
        while self._changed:
            changed = sorted(self._changed)
            self._changed.clear()
            for number in changed:
                self._start_ready(self.devices[number])
        if self._settle is not None:
            self._settle()

    def end(self, run: TaskRun) -> None:
        """End a task and start the tasks that it releases."""
        if self._ties is not None:
            self._ties.end(run)
        device = run.device
        device.end(run, self._kernel.now_ps)
        if self._settle is None:
            self._start_ready(device)
        else:
            self._changed.add(device.number)

    def _start_ready(self, device: Device) -> None:
        ready = device.take_ready()
        if self._ties is not None:
            self._ties.start(ready)
        for run in ready:
            run.issue_ps = self._kernel.now_ps
            self._start(run)

    def _start(self, run: TaskRun) -> None:
        match run.task:
            case ComputeTask(is_on_host=False) as task if self._compute is not None:
                self._compute(run, task, self.end)
            case (
                ComputeTask(duration_ps=int(duration_ps))
                | CollectiveTask(recorded_ps=int(duration_ps))
                | MemoryTask(duration_ps=int(duration_ps))
            ):
                run.device.clock.after(duration_ps, self.end, run)
            case CollectiveTask():
                self._join(run, run.task)
            case SendTask() as task:
                self._network.send(run, task, self.end)
            case ReceiveTask() as task:
                self._network.receive(run, task, self.end)
            case MemoryTask() as task:
                self._network.access(run, task, self.end)
            case EmptyTask() if self._settle is None:
                # Its children start only at the next end of another task.
                run.device.end(run, self._kernel.now_ps)
            case EmptyTask():
                self.end(run)
            case _:
                assert_never(run.task)

    def _join(self, run: TaskRun, task: CollectiveTask) -> None:
        now_ps, number = self._kernel.now_ps, run.device.number
        signature = (task.kind, task.size_bytes)
        match = self._collectives.join(run.group, number, run, signature=signature, now_ps=now_ps)
        if match.signature != signature:
            first = f"{_devices_of_run(match.first)} started {_task_text(match.first.task)}"
            own_start = f"{_devices_of_run(run)} at {_time(now_ps)} {_task_text(task)}"
            raise SimulationError(
                f"{first} at {_time(match.start_ps)}, and as its partners {own_start}"
            )
        is_complete = len(match.endpoints) == len(self._network.members(run.group))
        if is_complete:
            self._collectives.complete(match)
        self._network.join(run, match, self.end, is_complete=is_complete)


def _unmatched(run: TaskRun) -> str:
    kind, opposite = ("send", "receive") if isinstance(run.task, SendTask) else ("receive", "send")
    return (
        f"{_devices_of_run(run)} started {kind} {run.task.id} ({run.task.name}) "
        f"at {_time(run.issue_ps)}, but no {opposite} of the same ends, tag and size came"
    )


def _incomplete(match: Match, devices: Sequence[Device], members: Iterable[int]) -> str:
    absent = [devices[number] for number in sorted(members) if number not in match.endpoints]
    missing = devices_text(number for device in absent for number in device.devices)
    instead = [text for device in absent if (text := _current_task_text(device))]
    reason = f" (instead {instead[0]})" if instead else ""
    started = f"{_devices_of_run(match.first)} started {_task_text(match.first.task)}"
    return f"{started} at {_time(match.start_ps)}, but {missing} never did{reason}"


def _current_task_text(device: Device) -> str | None:
    runs = [run for run in device.runs.values() if run.issue_ps != NEVER and run.end_ps == NEVER]
    if not runs:
        return None
    last = max(runs, key=lambda run: (run.issue_ps, run.task.id))
    since = _time(last.issue_ps)
    return (
        f"{_devices_of_run(last)} wait from {since} on for task {last.task.id} ({last.task.name})"
    )


def _first_difference(first: Device, second: Device) -> str | None:
    """Return where two waiting devices first do different things."""
    collectives = [
        [run for run in device.runs.values() if isinstance(run.task, CollectiveTask)]
        for device in (first, second)
    ]
    shared = {run.group for run in collectives[0]} & {run.group for run in collectives[1]}
    orders = ([run for run in runs if run.group in shared] for runs in collectives)
    for run, counterpart in zip_longest(*orders):
        if _agreed_values(run) != _agreed_values(counterpart):
            return f"{_entry_text(first, run)} and {_entry_text(second, counterpart)}"
    return None


def _agreed_values(run: TaskRun | None) -> tuple[object, ...]:
    if run is None or not isinstance(run.task, CollectiveTask):
        return ()
    return run.group, run.task.kind, run.task.size_bytes


def _entry_text(device: Device, run: TaskRun | None) -> str:
    task = "nothing" if run is None else f"task {run.task.id} ({run.task.name})"
    return f"{devices_text(device.devices)}: {task}"


def _devices_of_run(run: TaskRun) -> str:
    return devices_text(run.device.devices)


def _task_text(task: Task) -> str:
    if isinstance(task, CollectiveTask | SendTask | ReceiveTask):
        kind = task.kind.name if isinstance(task, CollectiveTask) else "message"
        return f"{kind} {task.id} ({task.name}) of {task.size_bytes} bytes"
    return f"task {task.id} ({task.name})"


def _time(time_ps: int) -> str:
    return format_time(time_ps / PS_PER_S) if time_ps else "the start"
