"""The state of one class of devices while it runs."""

from __future__ import annotations

from dataclasses import replace

from hespas.simulate.astra.folding import DeviceClass
from hespas.simulate.astra.running import Slot, Slots
from hespas.simulate.matching import Participant
from hespas.simulate.timeline import ClassTimeline, class_timeline, host_streams
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    Task,
    own_tasks,
)

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
        "_graph",
        "_slot_of",
        "_waiting_receives",
        "alarms",
        "children",
        "devices",
        "end_ps",
        "groups",
        "issue_ps",
        "missing",
        "number",
        "slots",
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
        self._slot_of = [_slot(task) for task in self.tasks]
        self.issue_ps = [NEVER] * len(self.tasks)
        self.end_ps = [NEVER] * len(self.tasks)
        self.alarms: dict[int, list[tuple[int, int]]] = {}
        self.slots = Slots()
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
        slot = self._slot_of[index]
        if slot is None:
            self._waiting_receives.append(entry)
        else:
            self.slots.add(slot, entry)

    def take_ready(self) -> list[tuple[int, int]]:
        """Return what can start now, as (id, index) by ascending id, and take the slots for it."""
        taken = self.slots.take(self.tasks) + self._waiting_receives
        self._waiting_receives.clear()
        taken.sort()
        return taken

    def end(self, index: int, now_ps: int) -> None:
        """Note that a task ends: free its slot, and make ready what waited only for it."""
        self.end_ps[index] = now_ps
        slot = self._slot_of[index]
        if slot is not None and not isinstance(self.tasks[index], EmptyTask):
            self.slots.free(slot)
        for child in self.children[index]:
            self.missing[child] -= 1
            if not self.missing[child]:
                self._make_ready(child)

    @property
    def has_ended(self) -> bool:
        """Whether all tasks have ended."""
        return NEVER not in self.end_ps

    def unfinished(self) -> Participant:
        """Return what may not have ended: here, all tasks."""
        return self

    def slot_of(self, index: int) -> Slot | None:
        """Return the slot that a task takes; None for a receive."""
        return self._slot_of[index]

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
