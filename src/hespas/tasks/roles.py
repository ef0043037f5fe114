"""Roles: which devices take part in which tasks of a graph, and the tasks of one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from hespas.errors import TraceError
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    needs,
)

ALWAYS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Which devices take part in which tasks of one graph, and how.

    ``role_of_task`` gives, per task, an index into ``partners``, or `ALWAYS`. A map of
    ``partners`` holds the devices that take part: a collective's map gives a device the index
    of its group, a send's the target, a receive's the source.
    """

    role_of_task: tuple[int, ...]
    partners: tuple[Mapping[int, int], ...]

    def key(self, device: int) -> tuple[int | None, ...]:
        """Return the device's part in each role: devices with equal keys have equal traces."""
        return tuple([partner.get(device) for partner in self.partners])


def find_roles(graph: TaskGraph) -> Roles:
    """Return the roles of a graph's devices.

    Raises `TraceError` on an id used twice, and on groups and pairs that name absent devices or
    give a device two parts in one task.
    """
    _check_ids(graph)
    partners: list[dict[int, int]] = []
    role_of_key: dict[object, int] = {}
    role_of_task: list[int] = []
    for task in graph.tasks:
        role_key = _role_key(task)
        if role_key is not None and role_key not in role_of_key:
            role_of_key[role_key] = len(partners)
            partners.append(_partners(graph, task))
        role_of_task.append(ALWAYS if role_key is None else role_of_key[role_key])
    return Roles(role_of_task=tuple(role_of_task), partners=tuple(partners))


def _check_ids(graph: TaskGraph) -> None:
    ids: set[int] = set()
    for task in graph.tasks:
        if task.id in ids:
            raise TraceError("the id is used twice", location=_location(graph, task))
        ids.add(task.id)


def _role_key(task: Task) -> object:
    match task:
        case ComputeTask() | CollectiveTask(group_table=None) | MemoryTask() | EmptyTask():
            return None
        case CollectiveTask():
            return task.group_table
        case SendTask() | ReceiveTask():
            return (type(task), task.pairs)
        case _:
            assert_never(task)


def _partners(graph: TaskGraph, task: Task) -> dict[int, int]:
    match task:
        case CollectiveTask(group_table=int(table)):
            if not 0 <= table < len(graph.group_tables):
                raise TraceError(f"no group table {table}", location=_location(graph, task))
            groups = graph.group_tables[table]
            partners = {device: i for i, group in enumerate(groups) for device in group}
            count = sum(map(len, groups))
        case SendTask():
            partners, count = dict(task.pairs), len(task.pairs)
        case ReceiveTask():
            partners = {target: source for source, target in task.pairs}
            count = len(task.pairs)
        case _:
            return {}
    _check_partners(graph, task, partners, count)
    return partners


def _check_partners(graph: TaskGraph, task: Task, partners: dict[int, int], count: int) -> None:
    absent = next((one for one in partners if not 0 <= one < graph.device_count), None)
    if absent is not None:
        message = f"device {absent} is not among the {graph.device_count} devices"
        raise TraceError(message, location=_location(graph, task))
    if len(partners) != count:
        raise TraceError("a device takes part twice", location=_location(graph, task))


def _location(graph: TaskGraph, task: Task) -> str:
    return f"{graph.name}: task {task.id} ({task.name})"


def own_tasks(
    graph: TaskGraph, roles: Roles, key: tuple[int | None, ...], *, keeps_order: bool = True
) -> Iterator[tuple[Task, int, tuple[int, ...]]]:
    """Yield the tasks of a device: each task, its partner (see `Roles`) and its dependencies.

    Tasks in which the device takes no part are left out; a task that depends on one of them depends
    on that one's dependencies instead. The partner of a task without a role is 0. Unless
    ``keeps_order``, communication may overtake communication: see `hespas.tasks.graph.needs`.
    Raises `TraceError` on a dependency that doesn't come earlier.
    """
    earlier: set[int] = set()
    inherited: dict[int, tuple[int, ...]] = {}
    for task, role in zip(graph.tasks, roles.role_of_task, strict=True):
        depends_on = task.depends_on if keeps_order else needs(task)
        if not earlier.issuperset(depends_on):
            raise TraceError(
                "depends on a task that is not before it", location=_location(graph, task)
            )
        if inherited and not inherited.keys().isdisjoint(depends_on):
            depends_on = _inherit(depends_on, inherited)
        partner = 0 if role == ALWAYS else key[role]
        earlier.add(task.id)
        if partner is None:
            inherited[task.id] = depends_on
        else:
            yield task, partner, depends_on


def _inherit(depends_on: tuple[int, ...], inherited: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(d for dep in depends_on for d in inherited.get(dep, (dep,))))
