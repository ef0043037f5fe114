"""Divide devices into symmetry classes, so that one device of each class is simulated.

Two devices are of one class only if they follow the same graph and communicate, in the same roles,
with devices of the same classes, in groups of equal timing. Classes begin as coarse as possible and
are refined until they are stable: this is number refinement of the bipartite graph of devices and
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    GroupTable,
    Job,
    Roles,
    SendTask,
    Task,
    TaskGraph,
    find_roles,
)

Members = tuple[int, ...]
"""The members of a collective, in the order of the group's list."""


@dataclass(frozen=True, slots=True)
class Channel:
    """What carries messages from one device to another."""

    source: int
    target: int


Group = Members | Channel
_GroupFinder = Callable[[int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that behave alike; the first one stands for all.

    ``groups`` gives, per role of the graph, the number of the class of groups in which the
    devices communicate (None where they take no part).
    """

    devices: tuple[int, ...]
    graph: TaskGraph
    roles: Roles
    groups: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClass:
    """Groups that are alike: one of them, and the numbers of the device classes in it."""

    group: Group
    members: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A job's devices and groups in classes; classes are in the order of their first device."""

    devices: tuple[DeviceClass, ...]
    groups: tuple[GroupClass, ...]


def fold(
    job: Job,
    timing: Callable[[Group], Hashable],
    *,
    each_alone: bool = False,
    in_order: bool = False,
) -> Folded:
    """Return the classes of a job's devices.

    ``timing`` gives what decides how long communication in a group takes. ``each_alone`` makes
    every device a class of its own; ``in_order`` distinguishes groups by the order of their
    members, too. Raises `TraceError` if a graph contradicts itself.
    """
    return _Fold(job, timing, in_order=in_order).run(each_alone=each_alone)


class _Fold:
    def __init__(self, job: Job, timing: Callable[[Group], Hashable], *, in_order: bool) -> None:
        self._job = job
        self._in_order = in_order
        self._roles = [find_roles(graph) for graph in job.graphs]
        self._number_of: dict[Group, int] = {}
        self._number_in_table: dict[int, dict[int, int]] = {}
        finders = [
            self._group_finders(graph, roles)
            for graph, roles in zip(job.graphs, self._roles, strict=True)
        ]
        self._groups_of = [
            tuple([find(device) for find in finders[index]])
            for device, index in enumerate(job.graph_of_device)
        ]
        self._groups = list(self._number_of)
        self._timing = _numbered(timing(group) for group in self._groups)
        self._parts = self._find_parts()

    def _group_finders(self, graph: TaskGraph, roles: Roles) -> list[_GroupFinder]:
        first_task: dict[int, Task] = {}
        for task, role in zip(graph.tasks, roles.role_of_task, strict=True):
            if role != ALWAYS:
                first_task.setdefault(role, task)
        return [
            self._group_finder(graph, first_task[role], partners)
            for role, partners in enumerate(roles.partners)
        ]

    def _group_finder(
        self, graph: TaskGraph, task: Task, partners: Mapping[int, int]
    ) -> _GroupFinder:
        """Return what gives the number of the group where a device meets its partners, if any."""
        match task:
            case CollectiveTask(group_table=int(table)):
                return self._table_finder(graph.group_tables[table], partners)
            case SendTask():
                return lambda device: (
                    self._number(Channel(device, partners[device])) if device in partners else None
                )
            case _:
                return lambda device: (
                    self._number(Channel(partners[device], device)) if device in partners else None
                )

    def _table_finder(self, groups: GroupTable, index_of: Mapping[int, int]) -> _GroupFinder:
        # Hashing a group takes time in its size, hashing a number doesn't.
        known = self._number_in_table.setdefault(id(groups), {})

        def find(device: int) -> int | None:
            index = index_of.get(device)
            if index is None:
                return None
            number = known.get(index)
            if number is None:
                number = known[index] = self._number(groups[index])
            return number

        return find

    def _number(self, group: Group) -> int:
        return self._number_of.setdefault(group, len(self._number_of))

    def _find_parts(self) -> list[dict[int, tuple[int, ...]]]:
        """Return, per group, the devices that meet there and the roles in which they do."""
        parts: list[dict[int, tuple[int, ...]]] = [{} for _ in self._groups]
        most = max(map(len, self._groups_of), default=0)
        # Most devices have one role in a group, and share what says so.
        single = [(role,) for role in range(most)]
        for device, groups in enumerate(self._groups_of):
            for role, group in enumerate(groups):
                if group is not None:
                    own = parts[group]
                    own[device] = (*own[device], role) if device in own else single[role]
        return parts

    def run(self, *, each_alone: bool) -> Folded:
        graphs = self._job.graph_of_device
        if each_alone:
            return self._result(list(range(len(graphs))), list(range(len(self._groups))))
        classes = _numbered(zip(graphs, self._presence(), strict=True))
        while True:
            group_classes = self._classify_groups(classes)
            finer = _numbered(
                (number, *[None if group is None else group_classes[group] for group in groups])
                for number, groups in zip(classes, self._groups_of, strict=True)
            )
            if max(finer, default=0) == max(classes, default=0):
                return self._result(finer, self._classify_groups(finer))
            classes = finer

    def _presence(self) -> Iterable[tuple[bool, ...]]:
        return (tuple([group is None for group in groups]) for groups in self._groups_of)

    def _classify_groups(self, classes: Sequence[int]) -> list[int]:
        return _numbered(
            (
                timing,
                frozenset((classes[device], roles) for device, roles in parts.items()),
                self._order(group, classes),
            )
            for timing, parts, group in zip(self._timing, self._parts, self._groups, strict=True)
        )

    def _order(self, group: Group, classes: Sequence[int]) -> Members:
        if isinstance(group, Channel) or not self._in_order:
            return ()
        return tuple([classes[device] for device in group])

    def _result(self, classes: list[int], group_classes: list[int]) -> Folded:
        alike: list[list[int]] = [[] for _ in set(classes)]
        for device, number in enumerate(classes):
            alike[number].append(device)
        first_group = {number: i for i, number in reversed(list(enumerate(group_classes)))}
        return Folded(
            devices=tuple([self._device_class(devices, group_classes) for devices in alike]),
            groups=tuple([
                self._group_class(self._groups[first_group[number]], classes)
                for number in range(len(first_group))
            ]),
        )  # fmt: skip

    def _device_class(self, devices: list[int], group_classes: list[int]) -> DeviceClass:
        index = self._job.graph_of_device[devices[0]]
        groups = self._groups_of[devices[0]]
        return DeviceClass(
            devices=tuple(devices),
            graph=self._job.graphs[index],
            roles=self._roles[index],
            groups=tuple([None if group is None else group_classes[group] for group in groups]),
        )

    def _group_class(self, group: Group, classes: list[int]) -> GroupClass:
        ends = (group.source, group.target) if isinstance(group, Channel) else group
        return GroupClass(group=group, members=frozenset(classes[device] for device in ends))


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return a number for each value, equal for equal ones, from 0 by first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
