"""Tasks and graphs of a few lines, for systems of 1 B/ns, 100 ns a hop and 1 ns an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    GroupTable,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)

MakeSystem = Callable[..., System]
Pairs = tuple[tuple[int, int], ...]
RING4 = 7 * 1 + 6 * (100 + 100)
"""An all-reduce of 400 bytes in a fully connected ring of four, in ns."""


def compute(number: int, *after: int, ns: float = 10) -> ComputeTask:
    return ComputeTask(id=number, name="c", depends_on=after, duration_ps=round(ns * 1000))


def all_reduce(
    number: int, *after: int, size: int = 400, table: int | None = None
) -> CollectiveTask:
    kind = CollectiveKind.ALL_REDUCE
    return CollectiveTask(
        id=number, name="ar", depends_on=after, kind=kind, size_bytes=size, group_table=table
    )


def all_gather_of_nothing() -> CollectiveTask:
    return replace(all_reduce(1, size=0), kind=CollectiveKind.ALL_GATHER)


def send(number: int, *after: int, pairs: Pairs, size: int = 50, tag: int = 0) -> SendTask:
    return SendTask(id=number, name="s", depends_on=after, pairs=pairs, size_bytes=size, tag=tag)


def receive(number: int, *after: int, pairs: Pairs, size: int = 50, tag: int = 0) -> ReceiveTask:
    return ReceiveTask(id=number, name="r", depends_on=after, pairs=pairs, size_bytes=size, tag=tag)


def graph(devices: int, tasks: Sequence[Task], *tables: GroupTable) -> TaskGraph:
    return TaskGraph(name="g", device_count=devices, tasks=tuple(tasks), group_tables=tables)


def nodes_ns(timeline: Timeline, device: int) -> dict[int, tuple[float, float]]:
    nodes = timeline.of_device(device).nodes
    return {task: (start / 1000, end / 1000) for task, (start, end) in nodes.items()}
