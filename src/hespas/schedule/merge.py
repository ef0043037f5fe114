"""Make one graph of traces that differ only in groups and peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hespas.schedule.tasks import (
    CollectiveTask,
    GroupTable,
    Job,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)

Group = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What some devices do, with groups and peers taken out of the tasks.

    ``groups`` has the group id of each collective that isn't among all devices, in order;
    ``peers`` the other end of each send and receive.
    """

    tasks: tuple[Task, ...]
    groups: tuple[int, ...]
    peers: tuple[int, ...]
    devices: tuple[int, ...]


def merge(
    name: str, traces: Iterable[Trace], groups: Mapping[int, Group], device_count: int
) -> Job:
    """Return the job of the traces, with a graph for each distinct sequence of tasks."""
    alike: dict[tuple[Task, ...], list[Trace]] = {}
    for trace in traces:
        alike.setdefault(trace.tasks, []).append(trace)
    parts = [part for same in alike.values() for part in _mergeable(same, groups)]
    graph_of_device = [0] * device_count
    for index, part in enumerate(parts):
        for trace in part:
            for device in trace.devices:
                graph_of_device[device] = index
    return Job(
        graphs=tuple(_graph(f"{name} {i}", part, groups, device_count)
                     for i, part in enumerate(parts)),
        graph_of_device=tuple(graph_of_device),
    )  # fmt: skip


def _vectors(traces: Sequence[Trace]) -> Iterator[tuple[int, ...]]:
    """Yield, for each collective in turn, its group id in every trace."""
    return zip(*(trace.groups for trace in traces), strict=True)


def _mergeable(traces: list[Trace], groups: Mapping[int, Group]) -> list[list[Trace]]:
    """Split traces whose groups overlap: a table gives a device one group only."""
    for vector in set(_vectors(traces)):
        members = [device for group in set(vector) for device in groups[group]]
        if len(set(members)) != len(members):
            return [[trace] for trace in traces]
    return [traces]


def _graph(
    name: str, traces: list[Trace], groups: Mapping[int, Group], device_count: int
) -> TaskGraph:
    table_of: dict[tuple[int, ...], int] = {}
    for vector in _vectors(traces):
        table_of.setdefault(vector, len(table_of))
    tables = iter([table_of[vector] for vector in _vectors(traces)])
    pairs = _pairs(traces)
    return TaskGraph(
        name=name,
        device_count=device_count,
        tasks=tuple([_filled(task, tables, pairs) for task in traces[0].tasks]),
        group_tables=tuple([_group_table(vector, groups) for vector in table_of]),
    )


def _group_table(vector: tuple[int, ...], groups: Mapping[int, Group]) -> GroupTable:
    return tuple([groups[group] for group in dict.fromkeys(vector)])


def _pairs(traces: Sequence[Trace]) -> Iterator[Pairs]:
    """Yield (device, peer) of all devices for each transfer in turn; equal ones are shared."""
    known: dict[tuple[int, ...], Pairs] = {}
    for vector in zip(*(trace.peers for trace in traces), strict=True):
        if vector not in known:
            both = zip(traces, vector, strict=True)
            found = [(device, peer) for trace, peer in both for device in trace.devices]
            known[vector] = tuple(sorted(found))
        yield known[vector]


def _filled(task: Task, tables: Iterator[int], pairs: Iterator[Pairs]) -> Task:
    match task:
        case CollectiveTask(group_table=int()):
            return replace(task, group_table=next(tables))
        case SendTask():
            return replace(task, pairs=next(pairs))
        case ReceiveTask():
            ends = next(pairs)
            return replace(task, pairs=tuple([(source, target) for target, source in ends]))
        case _:
            return task
