"""Sums of gradients in the programs of a pipeline's parts, which a step makes once.

A pass leaves the gradients of its own tokens. The partitioner lets it sum them over all devices
with equal weights; those sums are taken out again, before kernels are made of the program, or,
where a compiler made them, of its tasks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hespas.models.part import EXPERT, SHARED, Part, PartProgram
from hespas.program.collectives import CollectiveKind
from hespas.program.devices import device_group_table
from hespas.program.groups import groups_along
from hespas.program.program import Op, Program
from hespas.program.rewrite import with_bodies, without_identities
from hespas.tasks.graph import CollectiveTask, GroupTable, ReceiveTask, SendTask, Task, TaskGraph

Groups = frozenset[frozenset[int]]


def without_sums(program: Program, part: Part) -> Program:
    """Return the program of one device of a part without the sums that a step makes once."""
    dropped = _dropped(part)
    if not dropped:
        return program

    def is_sum(op: Op) -> bool:
        return op.kind == "all_reduce" and _groups(device_group_table(op, program)) in dropped

    return with_bodies(program, lambda body: without_identities(body, is_sum))


def tasks_without_sums(tasks: TaskGraph, part: Part) -> TaskGraph:
    """Return the tasks of a part's program without the sums that a step makes once."""
    dropped = _dropped(part)
    if not dropped:
        return tasks
    rewired: dict[int, tuple[int, ...]] = {}
    kept: list[Task] = []

    def followed(needs: tuple[int, ...]) -> tuple[int, ...]:
        found = (each for need in needs for each in rewired.get(need, (need,)))
        return tuple(sorted(set(found)))

    for task in tasks.tasks:
        match task:
            case CollectiveTask(kind=CollectiveKind.ALL_REDUCE) if (
                groups_of_task(task, tasks) in dropped
            ):
                rewired[task.id] = followed(task.depends_on)
            case CollectiveTask() | SendTask() | ReceiveTask():
                order = followed(task.order_only)
                kept.append(replace(task, depends_on=followed(task.depends_on), order_only=order))
            case _:
                kept.append(replace(task, depends_on=followed(task.depends_on)))
    return replace(tasks, tasks=tuple(kept))


def groups_of_task(task: CollectiveTask, tasks: TaskGraph) -> Groups:
    """Return the groups of devices of a collective."""
    if task.group_table is None:
        return frozenset({frozenset(range(tasks.device_count))})
    return _groups(tasks.group_tables[task.group_table])


def _dropped(part: Part) -> set[Groups]:
    """Return the groups over which a step sums once what the program of a part leaves."""
    if part.program is PartProgram.UPDATE:
        return set()
    present = [axis for axis in (*SHARED, EXPERT) if part.mesh.size(axis) > 1]
    return {
        _groups(groups_along(part.mesh.axes, axes))
        for count in range(1, len(present) + 1)
        for axes in combinations(present, count)
    }


def _groups(table: GroupTable) -> Groups:
    return frozenset(map(frozenset, table))
