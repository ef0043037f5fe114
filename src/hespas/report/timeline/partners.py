"""Who takes part in a task: the classes of devices of a collective, the two ends of a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.graph import CollectiveTask, ReceiveTask, SendTask, Task

TaskOfClass = tuple[int, int]
"""The number of a class, and the id of one of its tasks."""


@dataclass(frozen=True, kw_only=True)
class Partners:
    """The classes of a timeline, and lookups among them; made once for all tasks."""

    timeline: Timeline
    partner_maps: dict[tuple[int, bool], Mapping[int, int]] = field(
        default_factory=dict[tuple[int, bool], Mapping[int, int]]
    )
    classes_of_group: dict[tuple[int, int], tuple[int, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[int, ...]]
    )

    @cached_property
    def class_of_device(self) -> Mapping[int, int]:
        """The class that each device is in."""
        classes = enumerate(self.timeline.classes)
        return {device: number for number, one in classes for device in one.devices}

    @cached_property
    def tasks(self) -> tuple[Mapping[int, Task], ...]:
        """For each class, the tasks in which it takes part, by id."""
        return tuple([
            {task.id: task for task in one.graph.tasks if task.id in one.nodes}
            for one in self.timeline.classes
        ])  # fmt: skip

    @cached_property
    def sends(self) -> Mapping[tuple[int, int, int], tuple[SendTask, ...]]:
        """The sends of each class with one tag and size."""
        found: dict[tuple[int, int, int], list[SendTask]] = {}
        for number, tasks in enumerate(self.tasks):
            for task in tasks.values():
                if isinstance(task, SendTask):
                    found.setdefault((number, task.tag, task.size_bytes), []).append(task)
        return {key: tuple(tasks) for key, tasks in found.items()}

    def others(self, number: int, task: CollectiveTask) -> tuple[int, ...]:
        """Return the other classes that take part in a class's collective."""
        if len(self.timeline.classes) == 1:
            return ()
        table = -1 if task.group_table is None else task.group_table
        if (number, table) not in self.classes_of_group:
            members = self._members(self.timeline.classes[number], table)
            classes = {self.class_of_device[device] for device in members} - {number}
            self.classes_of_group[number, table] = tuple(sorted(classes))
        return tuple([
            other
            for other in self.classes_of_group[number, table]
            if _is_same(task, self.tasks[other].get(task.id))
        ])  # fmt: skip

    def _members(self, one: ClassTimeline, table: int) -> Iterable[int]:
        if table < 0:
            return self.class_of_device
        device = one.devices[0]
        groups = one.graph.group_tables[table]
        return next((group for group in groups if device in group), ())

    def send_of(self, number: int, task: ReceiveTask) -> TaskOfClass | None:
        """Return the send whose message a class receives; None where it isn't the only one."""
        device = self.timeline.classes[number].devices[0]
        source = self._partner(task.pairs, device, is_target=True)
        if source is None:
            return None
        sender = self.class_of_device[source]
        sends = [
            send
            for send in self.sends.get((sender, task.tag, task.size_bytes), ())
            if self._partner(send.pairs, source, is_target=False) == device
        ]
        return (sender, sends[0].id) if len(sends) == 1 else None

    def _partner(
        self, pairs: tuple[tuple[int, int], ...], device: int, *, is_target: bool
    ) -> int | None:
        key = (id(pairs), is_target)
        if key not in self.partner_maps:
            of_device = {target: source for source, target in pairs} if is_target else dict(pairs)
            self.partner_maps[key] = of_device
        return self.partner_maps[key].get(device)


def _is_same(task: CollectiveTask, other: Task | None) -> bool:
    return isinstance(other, CollectiveTask) and other.kind is task.kind
