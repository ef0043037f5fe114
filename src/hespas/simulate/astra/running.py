"""What the engine asks of a class of devices while it runs, and the slots in which it does things.

`device_state.DeviceState` has all tasks of a class from the start, `streamed.WindowState` those
that are under way.
"""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush
from typing import Protocol

from hespas.simulate.matching import Indexed, Participant
from hespas.tasks.graph import EmptyTask, Task


class Slot(Enum):
    """What a device does only one thing at a time in."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    HOST = "host"
    TO_HOST = "to the host"
    FROM_HOST = "from the host"


class Times(Indexed[int], Protocol):
    """A time of each task in ps, by its index."""

    def __setitem__(self, index: int, time_ps: int, /) -> None:
        """Note that of a task."""
        ...


class Slots:
    """The tasks that wait for a slot, as (id, index), and the slots that are taken."""

    __slots__ = ("_busy", "_waiting")

    def __init__(self) -> None:
        self._busy: set[Slot] = set()
        self._waiting: dict[Slot, list[tuple[int, int]]] = {slot: [] for slot in Slot}

    def add(self, slot: Slot, entry: tuple[int, int]) -> None:
        """Let a task wait for a slot."""
        heappush(self._waiting[slot], entry)

    def take(self, tasks: Indexed[Task]) -> list[tuple[int, int]]:
        """Return what gets a free slot, the least id of each; an empty task gives it back."""
        taken: list[tuple[int, int]] = []
        for slot, waiting in self._waiting.items():
            while waiting and slot not in self._busy:
                entry = heappop(waiting)
                taken.append(entry)
                if not isinstance(tasks[entry[1]], EmptyTask):
                    self._busy.add(slot)
        return taken

    def free(self, slot: Slot) -> None:
        """Note that what took a slot has ended."""
        self._busy.remove(slot)

    def is_free(self, slot: Slot) -> bool:
        """Return whether nothing takes the slot."""
        return slot not in self._busy

    def waiting(self, slot: Slot) -> set[int]:
        """Return the ids of the tasks that are ready but for the slot."""
        return {task_id for task_id, _ in self._waiting[slot]}


class Running(Protocol):
    """A class of devices while it runs; its tasks are known by their indices."""

    number: int
    devices: tuple[int, ...]
    slots: Slots
    alarms: dict[int, list[tuple[int, int]]]

    @property
    def tasks(self) -> Indexed[Task]:
        """The tasks."""
        ...

    @property
    def groups(self) -> Indexed[int]:
        """The number of the class of groups in which each task communicates."""
        ...

    @property
    def issue_ps(self) -> Times:
        """When each task started."""
        ...

    @property
    def missing(self) -> Indexed[int]:
        """How many tasks each one waits for."""
        ...

    @property
    def children(self) -> Indexed[list[int]]:
        """The tasks that wait for each one."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether all tasks have ended."""
        ...

    def take_ready(self) -> list[tuple[int, int]]:
        """Return what can start now, as (id, index) by ascending id, and take the slots for it."""
        ...

    def end(self, index: int, now_ps: int) -> None:
        """Note that a task ends: free its slot, and make ready what waited only for it."""
        ...

    def slot_of(self, index: int) -> Slot | None:
        """Return the slot that a task takes; None for one that needs none."""
        ...

    def unfinished(self) -> Participant:
        """Return what may not have ended."""
        ...


def children_of(state: Running, index: int) -> set[int]:
    """Return the ids of the tasks that wait for a task."""
    return {state.tasks[child].id for child in state.children[index]}


def released_by(state: Running, index: int) -> dict[Slot, set[int]]:
    """Return the ids, by slot, of the tasks that wait only for a task."""
    released: dict[Slot, set[int]] = {}
    for child in state.children[index]:
        slot = state.slot_of(child)
        if state.missing[child] == 1 and slot is not None:
            released.setdefault(slot, set()).add(state.tasks[child].id)
    return released
