"""Find the groups of devices that a job's tasks communicate in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
