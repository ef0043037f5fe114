"""A class of devices: its tasks on streams, and when each starts and ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TypeAlias, assert_never

from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.matching import NEVER
from hespas.simulate.timeline import FROM_HOST, TO_HOST, ClassTimeline, class_timeline
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    devices_text,
    own_tasks,
)

NO_GROUP = -1
_MOST_NAMED = 16
StreamKey: TypeAlias = tuple[str, int]
"""A stream: what it is for, and the group, or `NO_GROUP`."""


@dataclass(slots=True)
class _InOrder:
    """A stream that runs its tasks in the order of the program."""

    waiting: deque[int] = field(default_factory=deque[int])
    is_busy: bool = False

    def take(self, missing: list[int]) -> int | None:
        if self.is_busy or not self.waiting or missing[self.waiting[0]]:
            return None
        self.is_busy = True
        return self.waiting.popleft()


@dataclass(slots=True)
class _ByNumber:
    """A stream that runs what is ready, the lowest task id first."""

    ready: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    is_busy: bool = False

    def take(self) -> int | None:
        if self.is_busy or not self.ready:
            return None
        self.is_busy = True
        return heappop(self.ready)[1]


class Device:
    """A class of devices while it runs. Times are in ps.

    A device computes one thing at a time; so do its CPU, its memory, and each direction of the link
    to its host. Collectives of one group,
    and messages to one device, keep the order of the program among each other, and overlap with
    those of other groups and devices. Receives wait for nothing but what they depend on.
    ``members_of`` gives the devices of a group, for names.
    """

    def __init__(
        self,
        number: int,
        devices: DeviceClass,
        world: int | None,
        members_of: Callable[[int], tuple[int, ...]],
    ) -> None:
        self.number = number
        self._members_of = members_of
        self.devices = devices.devices
        self.graph = devices.graph
        self.tasks: list[Task] = []
        self.groups: list[int] = []
        self._missing: list[int] = []
        self._children: list[list[int]] = []
        self._load(devices, world)
        self.keys = [self._key(index) for index in range(len(self.tasks))]
        self.issue_ps = [NEVER] * len(self.tasks)
        self.end_ps = [NEVER] * len(self.tasks)
        self._waits_ps: dict[int, int] = {}
        self._in_order: dict[StreamKey, _InOrder] = {}
        self._by_number: dict[StreamKey, _ByNumber] = {}
        self._free: list[int] = []
        self._woken: dict[StreamKey, None] = {}
        for index, key in enumerate(self.keys):
            if key is not None and _is_in_order(key):
                self._in_order.setdefault(key, _InOrder()).waiting.append(index)
            elif key is not None:
                self._by_number.setdefault(key, _ByNumber())
            if not self._missing[index]:
                self._make_ready(index)

    def _load(self, devices: DeviceClass, world: int | None) -> None:
        roles = devices.roles
        role_of = {
            task.id: role
            for task, role in zip(devices.graph.tasks, roles.role_of_task, strict=True)
        }
        index_of: dict[int, int] = {}
        own = own_tasks(devices.graph, roles, roles.key(self.devices[0]), keeps_order=False)
        for task, _, depends_on in own:
            role = role_of[task.id]
            group = world if role == ALWAYS else devices.groups[role]
            index = index_of[task.id] = len(self.tasks)
            self.tasks.append(task)
            self.groups.append(NO_GROUP if group is None else group)
            self._missing.append(len(depends_on))
            self._children.append([])
            for dependency in depends_on:
                self._children[index_of[dependency]].append(index)

    def _key(self, index: int) -> StreamKey | None:
        """Return the stream of a task; None for a receive, and for what takes no time."""
        task = self.tasks[index]
        match task:
            case ComputeTask():
                return ("CPU" if task.is_on_host else "compute", NO_GROUP)
            case CollectiveTask():
                return ("collectives", self.groups[index])
            case SendTask():
                return ("sends", self.groups[index])
            case MemoryTask(duration_ps=None):
                return ("memory", NO_GROUP)
            case MemoryTask():
                return (TO_HOST if task.is_store else FROM_HOST, NO_GROUP)
            case ReceiveTask() | EmptyTask():
                return None
            case _:
                assert_never(task)

    def _make_ready(self, index: int) -> None:
        key = self.keys[index]
        if key is None:
            self._free.append(index)
            return
        self._woken[key] = None
        if not _is_in_order(key):
            heappush(self._by_number[key].ready, (self.tasks[index].id, index))

    def take_ready(self) -> list[int]:
        """Return what can start now, in the order of the program, and take the streams for it."""
        if not self._woken and not self._free:
            return []
        taken = self._free
        self._free = []
        for key in self._woken:
            queue = self._in_order.get(key)
            index = self._by_number[key].take() if queue is None else queue.take(self._missing)
            if index is not None:
                taken.append(index)
        self._woken.clear()
        return sorted(taken)

    def begin(self, index: int, now_ps: int) -> None:
        """Note that a communication task begins to send, after it has waited for others."""
        waited_ps = now_ps - self.issue_ps[index]
        if waited_ps > 0:
            self._waits_ps[self.tasks[index].id] = waited_ps

    def end(self, index: int, now_ps: int) -> None:
        """Note that a task ends: free its stream, and make ready what waited only for it."""
        self.end_ps[index] = now_ps
        key = self.keys[index]
        if key is not None:
            stream = self._in_order.get(key) or self._by_number[key]
            stream.is_busy = False
            self._woken[key] = None
        for child in self._children[index]:
            self._missing[child] -= 1
            if not self._missing[child]:
                self._make_ready(child)

    def timeline(self) -> ClassTimeline:
        """Return what the devices did, once they have ended."""
        timeline = class_timeline(self.devices, self.graph, self.tasks, self.issue_ps, self.end_ps)
        streams = {
            task.id: self._stream_name(key)
            for task, key in zip(self.tasks, self.keys, strict=True)
            if key is not None and key[0] not in ("compute", "CPU")
        }
        return replace(timeline, streams=streams, waits_ps=self._waits_ps)

    def _stream_name(self, key: StreamKey) -> str:
        what, group = key
        if group == NO_GROUP:
            return what
        members = self._members_of(group)
        if what == "sends":
            return f"sends to {devices_text(members[-1:])}"
        if len(members) > _MOST_NAMED:
            return f"collectives of {len(members)} devices with device {members[0]}"
        return f"collectives of {devices_text(members)}"


def _is_in_order(key: StreamKey) -> bool:
    """Return whether a stream keeps the order of the program, as those of groups do."""
    return key[1] != NO_GROUP
