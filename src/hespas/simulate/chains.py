"""Kernels in a row as one task, which makes the simulation of compiled programs faster.

A scheduled program gives thousands of kernels of which each waits only for the one before it.
Such a row takes the sum of its kernels, whatever else happens, and is simulated as one task;
the timeline then has its kernels again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.graph import ComputeTask, Task, TaskGraph
from hespas.tasks.intervals import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Chained:
    """A graph whose rows of computations are one task each, and the graph before that.

    ``members`` gives the computations of a row by the id of its task, which is that of the last.
    """

    graph: TaskGraph
    original: TaskGraph
    members: Mapping[int, tuple[ComputeTask, ...]]


def chained(graph: TaskGraph) -> Chained:
    """Return a graph in which rows of computations are joined.

    In a row, each computation waits only for the one before it, and nothing else waits for that.
    The computations must be in a total order, as those of scheduled programs are.
    """
    dependents = Counter(before for task in graph.tasks for before in task.depends_on)
    rows: dict[int, list[ComputeTask]] = {}
    tasks: list[Task] = []
    for task in graph.tasks:
        if not isinstance(task, ComputeTask):
            tasks.append(task)
            continue
        row = _row_before(task, rows, dependents)
        row.append(task)
        rows[task.id] = row
    ends = {id(row): row[-1].id for row in rows.values()}
    members = {row[-1].id: tuple(row) for number, row in rows.items() if ends[id(row)] == number}
    joined = [*tasks, *(_joined(row) for row in members.values())]
    joined.sort(key=lambda task: task.id)
    return Chained(graph=replace(graph, tasks=tuple(joined)), original=graph, members=members)


def _row_before(
    task: ComputeTask, rows: Mapping[int, list[ComputeTask]], dependents: Mapping[int, int]
) -> list[ComputeTask]:
    """Return the row that a computation continues; a new one if it begins one."""
    if len(task.depends_on) != 1:
        return []
    (before,) = task.depends_on
    row = rows.get(before)
    alone = dependents[before] == 1
    return row if row is not None and alone and row[-1].is_on_host == task.is_on_host else []


def _joined(row: tuple[ComputeTask, ...]) -> ComputeTask:
    if len(row) == 1:
        return row[0]
    return replace(
        row[-1],
        depends_on=row[0].depends_on,
        duration_ps=sum(task.duration_ps for task in row),
    )


def opened(timeline: Timeline, chains: Chained) -> Timeline:
    """Return the timeline of the original graph from that of the joined one."""
    classes = tuple([_opened(one, chains) for one in timeline.classes])
    return replace(timeline, classes=classes)


def _opened(one: ClassTimeline, chains: Chained) -> ClassTimeline:
    nodes: dict[int, Interval] = {}
    for number, (start, end) in one.nodes.items():
        at = start
        for task in chains.members.get(number, ())[:-1]:
            nodes[task.id] = (at, at + task.duration_ps)
            at += task.duration_ps
        nodes[number] = (at, end)
    return replace(one, graph=chains.original, nodes=nodes)
