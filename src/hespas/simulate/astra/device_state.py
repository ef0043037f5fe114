"""The state of one class of devices while it runs."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from heapq import heappop, heappush

from hespas.schedule.roles import ALWAYS, own_tasks
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    Task,
)
from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.deadlock import Participant
from hespas.simulate.timeline import ClassTimeline, class_timeline, host_streams


class Slot(Enum):
    """What a device does only one thing at a time in."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    HOST = "host"
    TO_HOST = "to the host"
    FROM_HOST = "from the host"


EVERYONE = -1
"""The number of the group of all devices."""
NEVER = -1


class DeviceState:
    """What a class of devices has to do, and what it has done. Times are in ps.

    ``groups`` has, by task, the number of the class of groups in which it communicates.
    A device has one slot for computation, one for collectives, sends and memory, one for its CPU,
    and one for each direction of the link to its host; receives need none. What waits for a
    slot is taken by ascending task id.
    """

    __slots__ = (
        "_busy",
        "_graph",
        "_slots",
        "_waiting",
        "_waiting_receives",
        "alarms",
        "children",
        "devices",
        "end_ps",
        "groups",
        "issue_ps",
        "missing",
        "number",
        "tasks",
    )

    def __init__(self, number: int, devices: DeviceClass) -> None:
        self.number = number
        self.devices = devices.devices
        self._graph = devices.graph
        self.tasks: list[Task] = []
        self.groups: list[int] = []
        self.missing: list[int] = []
        self.children: list[list[int]] = []
        self._load(devices)
        self._slots = [_slot(task) for task in self.tasks]
        self.issue_ps = [NEVER] * len(self.tasks)
        self.end_ps = [NEVER] * len(self.tasks)
        self.alarms: dict[int, list[tuple[int, int]]] = {}
        self._busy: set[Slot] = set()
        self._waiting: dict[Slot, list[tuple[int, int]]] = {slot: [] for slot in Slot}
        self._waiting_receives: list[tuple[int, int]] = []
        for index, missing in enumerate(self.missing):
            if not missing:
                self._make_ready(index)

    def _load(self, devices: DeviceClass) -> None:
        roles = devices.roles
        ids = [task.id for task in devices.graph.tasks]
        role_of = dict(zip(ids, roles.role_of_task, strict=True))
        index_of: dict[int, int] = {}
        for task, _, depends_on in own_tasks(devices.graph, roles, roles.key(self.devices[0])):
            role = role_of[task.id]
            group = None if role == ALWAYS else devices.groups[role]
            index = index_of[task.id] = len(self.tasks)
            self.tasks.append(task)
            self.groups.append(EVERYONE if group is None else group)
            self.missing.append(len(depends_on))
            self.children.append([])
            for dependency in depends_on:
                self.children[index_of[dependency]].append(index)

    def _make_ready(self, index: int) -> None:
        entry = (self.tasks[index].id, index)
        slot = self._slots[index]
        if slot is None:
            self._waiting_receives.append(entry)
        else:
            heappush(self._waiting[slot], entry)

    def take_ready(self) -> list[tuple[int, int]]:
        """Return what can start now, as (id, index) by ascending id, and take the slots for it."""
        taken: list[tuple[int, int]] = []
        for slot, waiting in self._waiting.items():
            while waiting and slot not in self._busy:
                entry = heappop(waiting)
                taken.append(entry)
                if not isinstance(self.tasks[entry[1]], EmptyTask):
                    self._busy.add(slot)
        if self._waiting_receives:
            taken += self._waiting_receives
            self._waiting_receives.clear()
        taken.sort()
        return taken

    def end(self, index: int, now_ps: int) -> None:
        """Note that a task ends: free its slot, and make ready what waited only for it."""
        self.end_ps[index] = now_ps
        slot = self._slots[index]
        if slot is not None and not isinstance(self.tasks[index], EmptyTask):
            self._busy.remove(slot)
        for child in self.children[index]:
            self.missing[child] -= 1
            if not self.missing[child]:
                self._make_ready(child)

    def unfinished(self) -> Participant:
        """Return what may not have ended: here, all tasks."""
        return self

    def slot_of(self, index: int) -> Slot | None:
        """Return the slot that a task takes; None for a receive."""
        return self._slots[index]

    def is_free(self, slot: Slot) -> bool:
        """Return whether nothing takes the slot."""
        return slot not in self._busy

    def waiting(self, slot: Slot) -> set[int]:
        """Return the ids of the tasks that are ready but for the slot."""
        return {task_id for task_id, _ in self._waiting[slot]}

    def children_of(self, index: int) -> set[int]:
        """Return the ids of the tasks that wait for a task."""
        return {self.tasks[child].id for child in self.children[index]}

    def released_by(self, index: int) -> dict[Slot, set[int]]:
        """Return the ids, by slot, of the tasks that wait only for a task."""
        released: dict[Slot, set[int]] = {}
        for child in self.children[index]:
            slot = self.slot_of(child)
            if self.missing[child] == 1 and slot is not None:
                released.setdefault(slot, set()).add(self.tasks[child].id)
        return released

    def timeline(self) -> ClassTimeline:
        """Return what the devices did, once they have ended."""
        timeline = class_timeline(self.devices, self._graph, self.tasks, self.issue_ps, self.end_ps)
        return replace(timeline, streams=host_streams(self.tasks))


def _slot(task: Task) -> Slot | None:
    match task:
        case ComputeTask():
            return Slot.HOST if task.is_on_host else Slot.COMPUTE
        case MemoryTask(duration_ps=int()):
            return Slot.TO_HOST if task.is_store else Slot.FROM_HOST
        case EmptyTask(is_compute=True):
            return Slot.COMPUTE
        case CollectiveTask(takes_slot=False):
            return None
        case ReceiveTask():
            return None
        case _:
            return Slot.COMMUNICATION
