"""A class of equal devices while it runs: its tasks on streams, and when each starts and ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.kernel import Clock, Kernel
from hespas.simulate.timeline import ClassTimeline, class_timeline
from hespas.tasks.graph import ALWAYS, ComputeTask, EmptyTask, Task, TaskGraph, own_tasks

NEVER = -1
EVERYONE = -1
"""The number of the group of all devices, where a network gives it none of its own."""
StreamKey: TypeAlias = tuple[str, int]
"""What a stream is for, and the group whose tasks keep the program's order; else `NO_GROUP`."""
NO_GROUP = -1
StreamOf: TypeAlias = Callable[[Task, int], StreamKey | None]
"""Gives the stream of a task in a group; None for a task that waits for no other."""
Work: TypeAlias = tuple[Task, int, tuple[int, ...]]
"""A task of a class of devices, the number of its group, and its dependencies."""


class Stream:
    """Runs one task at a time: the lowest id of those that are ready, or the program's next."""

    __slots__ = ("in_order", "is_busy", "key", "ready")

    def __init__(self, key: StreamKey) -> None:
        self.key = key
        self.is_busy = False
        self.ready: list[tuple[int, int, TaskRun]] = []
        self.in_order: deque[TaskRun] | None = deque() if key[1] != NO_GROUP else None

    def take(self) -> TaskRun | None:
        """Return the task that can start now, if any, and take the stream for it."""
        if self.is_busy:
            return None
        run = None
        if self.in_order is None:
            run = heappop(self.ready)[2] if self.ready else None
        elif self.in_order and not self.in_order[0].missing:
            run = self.in_order.popleft()
        self.is_busy = run is not None and not isinstance(run.task, EmptyTask)
        return run


class TaskRun:
    """A task of a class of devices: what it waits for, and when it starts and ends, in ps.

    ``missing`` counts the tasks it waits for, ``children`` wait for it. ``settled_ps`` is when its
    end was known, where that is not when it started.
    """

    __slots__ = (
        "children",
        "device",
        "end_ps",
        "group",
        "issue_ps",
        "missing",
        "position",
        "settled_ps",
        "stream",
        "task",
    )

    def __init__(self, device: Device, task: Task, group: int, position: int) -> None:
        self.device = device
        self.task = task
        self.group = group
        self.position = position
        self.stream: Stream | None = None
        self.missing = 0
        self.children: list[TaskRun] = []
        self.issue_ps = self.end_ps = self.settled_ps = NEVER


def work_of(devices: DeviceClass, everyone: int, *, keeps_order: bool) -> Iterator[Work]:
    """Yield the tasks of a class of devices, with ``everyone`` as the group of all devices."""
    graph, roles = devices.graph, devices.roles
    role_of = {
        task.id: role for task, role in zip(graph.tasks, roles.role_of_task, strict=True)
    }  # fmt: skip
    key = roles.key(devices.devices[0])
    for task, _, depends_on in own_tasks(graph, roles, key, keeps_order=keeps_order):
        role = role_of[task.id]
        yield task, everyone if role == ALWAYS else devices.groups[role], depends_on


class Device:
    """A class of devices while it runs.

    ``runs`` has its tasks by id. With ``reach``, tasks are read as they can start, no further than
    that behind those that have started, and forgotten when they have ended: then only their sums
    remain. ``waits_ps`` says how long communication waits for others before anything is sent.
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
        self._read_behind(-1)

    def _read_behind(self, position: int) -> None:
        """Read the tasks that may start now that the one at a position has."""
        while self._reach is None or self._read <= position + self._reach:
            work = next(self._work, None)
            if work is None:
                return
            self._add(*work)

    def _add(self, task: Task, group: int, depends_on: tuple[int, ...]) -> None:
        run = self.runs[task.id] = TaskRun(self, task, group, self._read)
        self._read += 1
        for dependency in depends_on:
            # What is absent of a trace that is read as it runs has ended.
            before = self.runs.get(dependency)
            if before is not None:
                before.children.append(run)
                run.missing += 1
        key = self._stream_of(task, group)
        if key is not None:
            run.stream = self.streams.get(key) or self.streams.setdefault(key, Stream(key))
            if run.stream.in_order is not None:
                run.stream.in_order.append(run)
        if not run.missing:
            self._make_ready(run)

    def _make_ready(self, run: TaskRun) -> None:
        stream = run.stream
        if stream is None:
            self._free.append(run)
            return
        self._woken[stream] = None
        if stream.in_order is None:
            heappush(stream.ready, (run.task.id, run.position, run))

    def take_ready(self) -> list[TaskRun]:
        """Return what can start now, by ascending id, and take the streams for it."""
        if not self._woken and not self._free:
            return []
        taken, self._free = self._free, []
        for stream in self._woken:
            while (run := stream.take()) is not None:
                taken.append(run)
        self._woken.clear()
        if len(taken) > 1:
            taken.sort(key=lambda run: (run.task.id, run.position))
        if self._reach is not None:
            for run in taken:
                self._read_behind(run.position)
        return taken

    def end(self, run: TaskRun, now_ps: int) -> None:
        """Note that a task ends: free its stream, and make ready what waited only for it."""
        run.end_ps = now_ps
        stream = run.stream
        if stream is not None and not isinstance(run.task, EmptyTask):
            stream.is_busy = False
            self._woken[stream] = None
        for child in run.children:
            child.missing -= 1
            if not child.missing:
                self._make_ready(child)
        if self._reach is not None:
            self._forget(run)

    def _forget(self, run: TaskRun) -> None:
        del self.runs[run.task.id]
        self._finish_ps = run.end_ps
        # Of both, one runs at a time, so that sums are the times during which any is under way.
        if isinstance(run.task, ComputeTask):
            self._compute_ps += run.end_ps - run.issue_ps
        else:
            self._communication_ps += run.end_ps - run.issue_ps

    def begin(self, run: TaskRun, now_ps: int) -> None:
        """Note that a communication task begins to send, after it has waited for others."""
        if now_ps > run.issue_ps:
            self.waits_ps[run.task.id] = now_ps - run.issue_ps

    @property
    def has_ended(self) -> bool:
        """Whether all tasks have ended."""
        return all(run.end_ps != NEVER for run in self.runs.values())

    def timeline(self, graph: TaskGraph) -> ClassTimeline:
        """Return what the devices did, once they have ended."""
        runs = self.runs.values()
        return class_timeline(
            self.devices,
            graph,
            [run.task for run in runs],
            [run.issue_ps for run in runs],
            [run.end_ps for run in runs],
        )

    def sums(self, name: str) -> ClassTimeline:
        """Return the sums of what devices did whose tasks were read as they ran."""
        overlap_ps = self._compute_ps + self._communication_ps - self._finish_ps
        return ClassTimeline(
            devices=self.devices,
            graph=TaskGraph(
                name=name, device_count=len(self.devices), tasks=(), group_tables=()
            ),
            nodes={},
            finish_ps=self._finish_ps,
            compute_ps=self._compute_ps,
            communication_ps=self._communication_ps,
            overlap_ps=max(0, overlap_ps),
            exposed_ps={},
        )  # fmt: skip
