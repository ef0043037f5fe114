"""Waits of a step's tasks, and arrows to them.

Devices wait for others that come late to a collective, and for the task that a kernel depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hespas.base.frozen import frozen
from hespas.report.timeline.write import Slice
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    Task,
    inherit,
    short_devices_text,
)

_NONE: tuple[int, ...] = ()


def _wait(start_ps: int, end_ps: int, reason: str) -> Slice:
    return Slice(name=f"waits for {reason}", start_ps=start_ps, end_ps=end_ps, category="wait")


def own_dependencies(device_class: ClassTimeline) -> Mapping[int, tuple[int, ...]]:
    """Return the dependencies of each task of a class.

    Tasks without the class pass on theirs.
    """
    own: dict[int, tuple[int, ...]] = {}
    skipped: dict[int, tuple[int, ...]] = {}
    for task in device_class.graph.tasks:
        tasks = own if task.id in device_class.nodes else skipped
        tasks[task.id] = inherit(task.depends_on, skipped)
    return own


def last_before(
    device_class: ClassTimeline, dependencies: tuple[int, ...], start_ps: int
) -> int | None:
    """Return the dependency that ended last before ``start_ps``, if any."""
    ends_ps = {task: device_class.nodes[task][1] for task in dependencies}
    ended = [task for task in dependencies if ends_ps[task] <= start_ps]
    return max(ended, key=lambda task: (ends_ps[task], -task), default=None)


def arrivals(partners: Partners, number: int) -> Mapping[int, Slice]:
    """Return a class's waits for late partners, by task."""
    classes = partners.timeline.classes
    late: dict[int, Slice] = {}
    for task_id, task in partners.tasks[number].items():
        start_ps, end_ps = classes[number].nodes[task_id]
        latest = max(
            _partner_starts(partners, number, task), key=lambda start: start[0], default=None
        )
        if latest is not None and latest[0] > start_ps:
            reason = short_devices_text(classes[latest[1]].devices)
            late[task_id] = _wait(start_ps, min(latest[0], end_ps), reason)
    return late


def _partner_starts(partners: Partners, number: int, task: Task) -> Iterator[tuple[int, int]]:
    classes = partners.timeline.classes
    match task:
        case CollectiveTask(recorded_ps=None):
            for other_class in partners.members(number, task):
                yield classes[other_class].nodes[task.id][0], other_class
        case ReceiveTask():
            send = partners.send_of(number, task)
            if send is not None:
                yield classes[send[0]].nodes[send[1]][0], send[0]
        case _:
            return


def waits_of(partners: Partners, number: int) -> Iterator[Slice]:
    """Yield the times without computation, named by their causes.

    The last is the wait for the end of the slowest devices.
    """
    timeline = partners.timeline
    device_class = timeline.classes[number]
    tasks = partners.tasks[number]
    needed = own_dependencies(device_class)
    computing = sorted(
        (device_class.nodes[task.id], task.id)
        for task in tasks.values()
        if isinstance(task, ComputeTask) and not task.is_on_host
    )
    covered_ps = 0
    for (start_ps, end_ps), task_id in computing:
        if start_ps > covered_ps:
            last = last_before(device_class, needed[task_id], start_ps)
            reason = "its turn" if last is None else tasks[last].name
            yield _wait(covered_ps, start_ps, reason)
        covered_ps = max(covered_ps, end_ps)
    if covered_ps < device_class.finish_ps:
        last = max(tasks, key=lambda task_id_of_class: device_class.nodes[task_id_of_class][1])
        yield _wait(covered_ps, device_class.finish_ps, tasks[last].name)
        covered_ps = device_class.finish_ps
    if covered_ps < timeline.finish_ps:
        slowest = short_devices_text(timeline.slowest.devices)
        yield _wait(covered_ps, timeline.finish_ps, f"the end of {slowest}")


TaskOfClass = tuple[int, int]
"""The number of a class, and the id of one of its tasks."""


@dataclass(frozen=True, kw_only=True)
class Partners:
    """The classes of a timeline, with lookups among them."""

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
        return {
            device: number for number, device_class in classes for device in device_class.devices
        }

    @cached_property
    def tasks(self) -> tuple[Mapping[int, Task], ...]:
        """The tasks of each class, by id."""
        return tuple([
            {task.id: task for task in device_class.graph.tasks if task.id in device_class.nodes}
            for device_class in self.timeline.classes
        ])  # fmt: skip

    @cached_property
    def sends(self) -> Mapping[tuple[int, int, int], tuple[SendTask, ...]]:
        """The sends of each class with one tag and size."""
        sends: dict[tuple[int, int, int], list[SendTask]] = {}
        for number, tasks in enumerate(self.tasks):
            for task in tasks.values():
                if isinstance(task, SendTask):
                    sends.setdefault((number, task.tag, task.size_bytes), []).append(task)
        return {key: tuple(tasks) for key, tasks in sends.items()}

    def members(self, number: int, task: CollectiveTask) -> tuple[int, ...]:
        """Return the other classes in a class's collective."""
        if len(self.timeline.classes) == 1:
            return ()
        table = -1 if task.group_table is None else task.group_table
        if (number, table) not in self.classes_of_group:
            members = self._devices(self.timeline.classes[number], table)
            classes = {self.class_of_device[device] for device in members} - {number}
            self.classes_of_group[number, table] = tuple(sorted(classes))
        return tuple([
            member_class
            for member_class in self.classes_of_group[number, table]
            if _is_same(task, self.tasks[member_class].get(task.id))
        ])  # fmt: skip

    def _devices(self, device_class: ClassTimeline, table: int) -> Iterable[int]:
        if table < 0:
            return self.class_of_device
        device = device_class.devices[0]
        groups = device_class.graph.group_tables[table]
        return next((group for group in groups if device in group), ())

    def send_of(self, number: int, task: ReceiveTask) -> TaskOfClass | None:
        """Return the send that a class receives, if unique."""
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


def _is_same(task: CollectiveTask, partner: Task | None) -> bool:
    return isinstance(partner, CollectiveTask) and partner.kind is task.kind


@frozen
class Flows:
    """The flow numbers of tasks, by class and task."""

    starts: Mapping[TaskOfClass, tuple[int, ...]]
    ends: Mapping[TaskOfClass, tuple[int, ...]]

    def of(self, number: int, task: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the flows from and to a class's task."""
        return self.starts.get((number, task), _NONE), self.ends.get((number, task), _NONE)


def flows_of(partners: Partners, shown: Iterable[int]) -> Flows:
    """Return the flows among the shown classes.

    A communication has one from the task that it waited for last, and one to the first that waits
    for it; a message has one to its receive or, if that was posted before, to the task that waits
    for the receive.
    """
    starts: dict[TaskOfClass, tuple[int, ...]] = {}
    ends: dict[TaskOfClass, tuple[int, ...]] = {}
    classes = partners.timeline.classes
    count = 0
    for source, target in dict.fromkeys(_pairs(partners, frozenset(shown))):
        source_start_ps = classes[source[0]].nodes[source[1]][0]
        if source_start_ps >= classes[target[0]].nodes[target[1]][0]:
            continue
        count += 1
        starts[source] = (*starts.get(source, _NONE), count)
        ends[target] = (*ends.get(target, _NONE), count)
    return Flows(starts=starts, ends=ends)


def _pairs(partners: Partners, shown: frozenset[int]) -> Iterator[tuple[TaskOfClass, TaskOfClass]]:
    for number in sorted(shown):
        tasks = partners.tasks[number]
        device_class = partners.timeline.classes[number]
        needed = own_dependencies(device_class)
        waiting = _first_waiting(device_class.nodes, needed)
        for task_id, task in tasks.items():
            if not isinstance(task, CollectiveTask | SendTask | ReceiveTask):
                continue
            earlier_task = last_before(
                device_class, needed[task_id], device_class.nodes[task_id][0]
            )
            if earlier_task is not None:
                yield (number, earlier_task), (number, task_id)
            if task_id in waiting:
                yield (number, task_id), (number, waiting[task_id])
            send = partners.send_of(number, task) if isinstance(task, ReceiveTask) else None
            if send is not None and send[0] in shown:
                sent_ps = partners.timeline.classes[send[0]].nodes[send[1]][0]
                is_posted = device_class.nodes[task_id][0] <= sent_ps
                reader = waiting.get(task_id, task_id) if is_posted else task_id
                yield send, (number, reader)


def _first_waiting(
    nodes: Mapping[int, tuple[int, int]], needed: Mapping[int, tuple[int, ...]]
) -> dict[int, int]:
    """Return the dependent of each task that starts first."""
    first: dict[int, int] = {}
    for task, needed_tasks in needed.items():
        for needed_task in needed_tasks:
            earliest = first.get(needed_task)
            if earliest is None or nodes[task] < nodes[earliest]:
                first[needed_task] = task
    return first
