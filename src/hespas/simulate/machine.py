"""The state of one class of devices while it runs."""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush

from hespas.simulate.fold import DeviceClass
from hespas.simulate.timeline import ClassTimeline, class_timeline
from hespas.trace.roles import ALWAYS, own_tasks
from hespas.trace.tasks import ComputeTask, ReceiveTask, Task


class Slot(Enum):
    """What a device does only one thing at a time in."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"


EVERYONE = -1
"""The number of the place where all devices meet."""
NEVER = -1


class Machine:
    """What a class of devices has to do, and what it has done. Times are in ps.

    A device has one slot for computation and one for collectives and sends; receives need
    none. What waits for a slot is taken by ascending task id.
    """

    __slots__ = (
        "_communicating",
        "_computing",
        "_graph",
        "_waiting_communication",
        "_waiting_compute",
        "_waiting_receives",
        "alarms",
        "children",
        "devices",
        "end_ps",
        "issue_ps",
        "missing",
        "number",
        "places",
        "tasks",
    )

    def __init__(self, number: int, devices: DeviceClass) -> None:
        self.number = number
        self.devices = devices.devices
        self._graph = devices.graph
        self.tasks: list[Task] = []
        self.places: list[int] = []
        self.missing: list[int] = []
        self.children: list[list[int]] = []
        self._load(devices)
        self.issue_ps = [NEVER] * len(self.tasks)
        self.end_ps = [NEVER] * len(self.tasks)
        self.alarms: dict[int, list[int]] = {}
        self._computing = self._communicating = False
        self._waiting_compute: list[tuple[int, int]] = []
        self._waiting_communication: list[tuple[int, int]] = []
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
            place = None if role == ALWAYS else devices.places[role]
            index = index_of[task.id] = len(self.tasks)
            self.tasks.append(task)
            self.places.append(EVERYONE if place is None else place)
            self.missing.append(len(depends_on))
            self.children.append([])
            for dependency in depends_on:
                self.children[index_of[dependency]].append(index)

    def _make_ready(self, index: int) -> None:
        task = self.tasks[index]
        match task:
            case ComputeTask():
                heappush(self._waiting_compute, (task.id, index))
            case ReceiveTask():
                self._waiting_receives.append((task.id, index))
            case _:
                heappush(self._waiting_communication, (task.id, index))

    def take_ready(self) -> list[tuple[int, int]]:
        """Return what can start now, as (id, index) by ascending id, and take the slots for it."""
        taken: list[tuple[int, int]] = []
        if self._waiting_compute and not self._computing:
            self._computing = True
            taken.append(heappop(self._waiting_compute))
        if self._waiting_communication and not self._communicating:
            self._communicating = True
            taken.append(heappop(self._waiting_communication))
        if self._waiting_receives:
            taken += self._waiting_receives
            self._waiting_receives.clear()
        taken.sort()
        return taken

    def end(self, index: int, now_ps: int) -> None:
        """Note that a task ends: free its slot, and make ready what waited only for it."""
        self.end_ps[index] = now_ps
        task = self.tasks[index]
        if isinstance(task, ComputeTask):
            self._computing = False
        elif not isinstance(task, ReceiveTask):
            self._communicating = False
        for child in self.children[index]:
            self.missing[child] -= 1
            if not self.missing[child]:
                self._make_ready(child)

    def slot_of(self, index: int) -> Slot | None:
        """Return the slot that a task takes; None for a receive."""
        match self.tasks[index]:
            case ComputeTask():
                return Slot.COMPUTE
            case ReceiveTask():
                return None
            case _:
                return Slot.COMMUNICATION

    def is_free(self, slot: Slot) -> bool:
        """Return whether nothing takes the slot."""
        return not (self._computing if slot is Slot.COMPUTE else self._communicating)

    def waiting(self, slot: Slot) -> set[int]:
        """Return the ids of the tasks that are ready but for the slot."""
        is_compute = slot is Slot.COMPUTE
        heap = self._waiting_compute if is_compute else self._waiting_communication
        return {task_id for task_id, _ in heap}

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
        return class_timeline(self.devices, self._graph, self.tasks, self.issue_ps, self.end_ps)
