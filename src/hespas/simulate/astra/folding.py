"""Divide devices into symmetry classes.

One device of each class is simulated. Two devices are in one class only if they follow the same
graph and communicate, in equal roles, with devices of equal classes, in groups of equal timing.
Classes begin as coarse as possible and are refined until they are stable: this is colour refinement
of the bipartite graph of devices and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hespas.base.frozen import frozen
from hespas.errors import SimulationError
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    GroupTable,
    Job,
    ReceiveTask,
    Roles,
    SendTask,
    Task,
    TaskGraph,
    find_roles,
)

Members = tuple[int, ...]
"""The members of a collective, in the order of the group's list."""
NONE = -1
"""The group of a device that takes no part."""


@dataclass(frozen=True, slots=True)
class Channel:
    """The channel for messages from one device to another."""

    source: int
    target: int


Group = Members | Channel


def check_group(group: Group) -> None:
    """Raise `SimulationError` for groups of one and self-sends."""
    if isinstance(group, Channel):
        if group.source == group.target:
            raise SimulationError(f"device {group.source} sends to itself")
    elif len(group) < 2:
        message = f"the group {list(group)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")


@frozen
class DeviceClass:
    """Devices that behave alike; the first one represents all.

    ``groups`` gives, per role of the graph, the number of their class of groups, or `NONE`.
    """

    devices: tuple[int, ...]
    graph: TaskGraph
    roles: Roles
    groups: tuple[int, ...]


@frozen
class GroupClass:
    """Equal groups: one of them, and its members' device classes."""

    group: Group
    members: frozenset[int]


@frozen
class Folded:
    """A job's device and group classes by first device."""

    devices: tuple[DeviceClass, ...]
    groups: tuple[GroupClass, ...]


def tasks_of_roles(graph: TaskGraph, roles: Roles) -> list[Task]:
    """Return the first task of each role."""
    first: dict[int, Task] = {}
    for task, role in zip(graph.tasks, roles.role_of_task, strict=True):
        if role != ALWAYS:
            first.setdefault(role, task)
    return [first[role] for role in range(len(first))]


def find_groups(job: Job, roles: Sequence[Roles]) -> tuple[list[Group], list[list[list[int]]]]:
    """Return a job's groups, and their numbers by graph, role and device."""
    numbers: dict[Group, int] = {}
    group_of: list[list[list[int]]] = []
    for index, graph in enumerate(job.graphs):
        follows = [graph_number == index for graph_number in job.graph_of_device]
        all_follow = all(follows)
        groups_of_role: list[list[int]] = []
        for task in tasks_of_roles(graph, roles[index]):
            groups = [NONE] * job.device_count
            for group, devices in _groups_of_task(graph, task):
                if all_follow:
                    number = numbers.setdefault(group, len(numbers))
                    for device in devices:
                        groups[device] = number
                elif isinstance(group, tuple) or follows[devices[0]]:
                    number = numbers.setdefault(group, len(numbers))
                    for device in devices:
                        if follows[device]:
                            groups[device] = number
            groups_of_role.append(groups)
        group_of.append(groups_of_role)
    return list(numbers), group_of


def communicators(graph: TaskGraph, task: Task) -> GroupTable:
    """Return the groups or pairs of devices that a task is among."""
    match task:
        case CollectiveTask(group_table=int(table)):
            return graph.group_tables[table]
        case SendTask() | ReceiveTask():
            return task.pairs
        case _:
            return ()


def _groups_of_task(graph: TaskGraph, task: Task) -> Iterator[tuple[Group, Members]]:
    groups = communicators(graph, task)
    match task:
        case SendTask():
            yield from ((Channel(*pair), pair[:1]) for pair in task.pairs)
        case ReceiveTask():
            yield from ((Channel(*pair), pair[1:]) for pair in task.pairs)
        case _:
            yield from zip(groups, groups, strict=True)


def fold(
    job: Job,
    timing: Callable[[Group], Hashable],
    *,
    is_unfolded: bool = False,
    in_order: bool = False,
) -> Folded:
    """Divide a job's devices into classes.

    ``timing`` returns a key that decides the duration of communication in a group. With
    ``is_unfolded`` every device is its own class; ``in_order`` distinguishes groups by the order of
    their members, too.
    """
    return _Fold(job, timing, in_order=in_order).run(is_unfolded=is_unfolded)


class _Fold:
    def __init__(self, job: Job, timing: Callable[[Group], Hashable], *, in_order: bool) -> None:
        self._job = job
        self._in_order = in_order
        self._roles = [find_roles(graph) for graph in job.graphs]
        self._groups, group_of = find_groups(job, self._roles)
        by_device = [
            list(zip(*groups_of_roles, strict=True)) or [()] * job.device_count
            for groups_of_roles in group_of
        ]
        self._groups_of: list[tuple[int, ...]] = [
            by_device[graph][device] for device, graph in enumerate(job.graph_of_device)
        ]
        self._timing = _numbered(timing(group) for group in self._groups)
        self._parts = self._find_parts()

    def _find_parts(self) -> list[dict[int, tuple[int, ...]]]:
        """Return each group's devices with their roles."""
        parts: list[dict[int, tuple[int, ...]]] = [{} for _ in self._groups]
        most_roles = max(map(len, self._groups_of), default=0)
        # Most devices have one role in a group, and share one tuple.
        single = [(role,) for role in range(most_roles)]
        for device, groups in enumerate(self._groups_of):
            for role, group in enumerate(groups):
                if group != NONE:
                    roles_of_device = parts[group]
                    roles_of_device[device] = (
                        (*roles_of_device[device], role)
                        if device in roles_of_device
                        else single[role]
                    )
        return parts

    def run(self, *, is_unfolded: bool) -> Folded:
        graphs = self._job.graph_of_device
        if is_unfolded:
            return self._result(list(range(len(graphs))), list(range(len(self._groups))))
        presence = [tuple([group == NONE for group in groups]) for groups in self._groups_of]
        classes = _numbered(zip(graphs, presence, strict=True))
        while True:
            # The last entry is for no group.
            group_classes = [*self._classify_groups(classes), NONE]
            finer = _numbered(
                (number, *[group_classes[group] for group in groups])
                for number, groups in zip(classes, self._groups_of, strict=True)
            )
            if max(finer, default=0) == max(classes, default=0):
                return self._result(finer, self._classify_groups(finer))
            classes = finer

    def _classify_groups(self, classes: Sequence[int]) -> list[int]:
        return _numbered(
            (
                timing,
                frozenset((classes[device], roles) for device, roles in parts.items()),
                tuple([classes[device] for device in group])
                if self._in_order and isinstance(group, tuple)
                else (),
            )
            for timing, parts, group in zip(self._timing, self._parts, self._groups, strict=True)
        )

    def _result(self, classes: list[int], group_classes: list[int]) -> Folded:
        devices_of_class: list[list[int]] = [[] for _ in set(classes)]
        for device, number in enumerate(classes):
            devices_of_class[number].append(device)
        first_group = {number: i for i, number in reversed(list(enumerate(group_classes)))}
        group_classes = [*group_classes, NONE]
        devices = [
            DeviceClass(
                devices=tuple(own),
                graph=self._job.graphs[self._job.graph_of_device[own[0]]],
                roles=self._roles[self._job.graph_of_device[own[0]]],
                groups=tuple([group_classes[group] for group in self._groups_of[own[0]]]),
            )
            for own in devices_of_class
        ]
        groups: list[GroupClass] = []
        for number in range(len(first_group)):
            group = self._groups[first_group[number]]
            members = group if isinstance(group, tuple) else (group.source, group.target)
            member_classes = frozenset(classes[device] for device in members)
            groups.append(GroupClass(group=group, members=member_classes))
        return Folded(devices=tuple(devices), groups=tuple(groups))


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return equal numbers for equal values, by first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
