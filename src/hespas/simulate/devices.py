"""Classes of devices while they run: their tasks and streams.

One device of each class runs, whether a class has one device or a million: dividing devices into
classes is a reduction of the job before the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from hespas.base.frozen import frozen
from hespas.simulate.kernel import Clock, CollectiveMatch, Kernel
from hespas.simulate.timeline import ClassTimeline, class_timeline
from hespas.tasks.graph import (
    ALWAYS,
    ComputeTask,
    EmptyTask,
    Roles,
    Task,
    TaskGraph,
    own_tasks,
)

NEVER = -1
EVERYONE = -1
"""The number of the group of all devices, if a network gives it no other."""
StreamKey: TypeAlias = tuple[str, int]
"""A stream's purpose, and the group whose tasks keep the program's order; else `NO_GROUP`."""
NO_GROUP = -1
FIRST_READY = -2
"""In place of a group: the stream runs tasks in the order in which they become ready."""
StreamOf: TypeAlias = Callable[[Task, int], StreamKey | None]
"""Returns the stream of a task in a group; None for a task without one."""
Work: TypeAlias = tuple[Task, int, tuple[int, ...]]
"""A task of a class of devices, the number of its group, and its dependencies."""


@frozen
class DeviceClass:
    """Devices that behave alike; the first one represents all.

    ``groups`` gives, per role of the graph, the number of their class of groups, or `NONE`.
    """

    devices: tuple[int, ...]
    graph: TaskGraph
    roles: Roles
    groups: tuple[int, ...]


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
