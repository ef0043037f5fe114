"""Write a timeline in Chrome's trace-event format, which ui.perfetto.dev opens.

Source: the Trace Event Format; "X" is a complete event, "M" a name. A process stands for a
class of devices that behave alike. Its tracks: computation; collectives and sends, one track for
each stream; receives, as many tracks as overlap; and exposed communication.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, assert_never

from hespas.schedule.intervals import Interval, exposed_parts
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    devices_text,
)

_PS_PER_US = 1_000_000
_COMPUTE, _COMMUNICATION, _EXPOSED, _FIRST_RECEIVE = 1, 2, 3, 4
_HOST = 1_000_000  # after any number of receives
_FIRST_STREAM = 2_000_000
_TRACKS = {
    _COMPUTE: "compute",
    _COMMUNICATION: "communication",
    _EXPOSED: "exposed communication",
}

Event = dict[str, object]


class ClassTimes(Protocol):
    """A class of devices that behave alike: when each task starts and ends, in ps by task id."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices."""
        ...

    @property
    def graph(self) -> TaskGraph:
        """The tasks."""
        ...

    @property
    def nodes(self) -> Mapping[int, Interval]:
        """The start and end of each task of the devices."""
        ...

    @property
    def streams(self) -> Mapping[int, str]:
        """The names of streams, for tasks outside the one stream of communication."""
        ...


class Times(Protocol):
    """A timeline of all devices, in classes."""

    @property
    def classes(self) -> Sequence[ClassTimes]:
        """The classes."""
        ...


def write_perfetto(timeline: Times, file: Path) -> None:
    """Write a timeline as `hespas.simulate.simulate` returns it; equal timelines give equal bytes.

    Times are in us with fractions. Events of one track are in order and don't overlap.
    """
    lines = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in perfetto_events(timeline)
    )
    file.write_text(f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n', "utf-8")


def perfetto_events(timeline: Times) -> Iterator[Event]:
    """Yield the events: the names of a process and its tracks, then the events on them."""
    for pid, one in enumerate(timeline.classes):
        tasks = [(task, one.nodes[task.id]) for task in one.graph.tasks if task.id in one.nodes]
        tasks.sort(key=lambda pair: (pair[1], pair[0].id))
        receives = _in_lanes([pair for pair in tasks if _is_receive(pair[0])])
        lanes = max(receives.values(), default=-1) + 1
        has_host = any(_is_on_host(task) for task, _ in tasks)
        used = sorted({one.streams[task.id] for task, _ in tasks if task.id in one.streams})
        streams = {name: _FIRST_STREAM + number for number, name in enumerate(used)}
        yield from _names(pid, one.devices, lanes, has_host=has_host, streams=streams)
        for task, interval in tasks:
            stream = streams.get(one.streams.get(task.id, ""))
            yield _event(pid, stream or _track(task, receives), task, interval)
        for task, interval in _exposed(tasks):
            yield _event(pid, _EXPOSED, task, interval) | {"cat": "exposed"}


def _is_on_host(task: Task) -> bool:
    return isinstance(task, ComputeTask) and task.is_on_host


def _is_receive(task: Task) -> bool:
    """Return whether several such tasks may overlap on a device: receives, and recorded ones."""
    return isinstance(task, ReceiveTask) or (
        isinstance(task, CollectiveTask) and not task.takes_slot
    )


def _names(
    pid: int,
    devices: Iterable[int],
    lanes: int,
    *,
    has_host: bool,
    streams: Mapping[str, int],
) -> Iterator[Event]:
    yield _metadata(pid, 0, "process_name", {"name": devices_text(devices)})
    yield _metadata(pid, 0, "process_sort_index", {"sort_index": pid})
    receives = {_FIRST_RECEIVE + lane: f"receive {lane + 1}" for lane in range(lanes)}
    host = {_HOST: "CPU"} if has_host else {}
    named = {tid: name for name, tid in streams.items()}
    shared = {tid: name for tid, name in _TRACKS.items() if not named or tid != _COMMUNICATION}
    for tid, name in (shared | receives | host | named).items():
        yield _metadata(pid, tid, "thread_name", {"name": name})
        yield _metadata(pid, tid, "thread_sort_index", {"sort_index": tid})


def _metadata(pid: int, tid: int, name: str, args: Mapping[str, object]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _event(pid: int, tid: int, task: Task, interval: Interval) -> Event:
    start_ps, end_ps = interval
    return {
        "name": task.name,
        "cat": "compute" if isinstance(task, ComputeTask) else "communication",
        "ph": "X",
        "ts": start_ps / _PS_PER_US,
        "dur": (end_ps - start_ps) / _PS_PER_US,
        "pid": pid,
        "tid": tid,
        "args": _arguments(task),
    }


def _arguments(task: Task) -> Mapping[str, object]:
    match task:
        case ComputeTask():
            return {"id": task.id, "label": task.label}
        case MemoryTask():
            return {"id": task.id, "size_bytes": task.size_bytes}
        case EmptyTask():
            return {"id": task.id}
        case CollectiveTask():
            return {"id": task.id, "kind": task.kind.name, "size_bytes": task.size_bytes}
        case SendTask() | ReceiveTask():
            return {"id": task.id, "tag": task.tag, "size_bytes": task.size_bytes}
        case _:
            assert_never(task)


def _track(task: Task, receives: Mapping[int, int]) -> int:
    if task.id in receives:
        return _FIRST_RECEIVE + receives[task.id]
    match task:
        case ComputeTask():
            return _HOST if task.is_on_host else _COMPUTE
        case CollectiveTask() | SendTask() | ReceiveTask() | MemoryTask() | EmptyTask():
            return _COMMUNICATION
        case _:
            assert_never(task)


def _in_lanes(receives: Iterable[tuple[Task, Interval]]) -> dict[int, int]:
    """Return a lane for each receive, by id, so that no two in a lane overlap."""
    free_ps: list[int] = []
    lanes: dict[int, int] = {}
    for task, (start, end) in receives:
        lane = next((lane for lane, free in enumerate(free_ps) if free <= start), len(free_ps))
        free_ps[lane : lane + 1] = [end]
        lanes[task.id] = lane
    return lanes


def _exposed(tasks: Sequence[tuple[Task, Interval]]) -> Iterator[tuple[Task, Interval]]:
    """Yield exposed communication, each moment once: as the communication that started first."""
    hiding = [pair for pair in tasks if isinstance(pair[0], ComputeTask)]
    computing = [interval for task, interval in hiding if not _is_on_host(task)]
    own: list[tuple[Task, Interval]] = []
    reached = 0
    for task, (start, end) in tasks:
        if isinstance(task, ComputeTask | MemoryTask | EmptyTask) or end <= reached:
            continue
        own.append((task, (max(start, reached), end)))
        reached = end
    parts = exposed_parts(computing, [interval for _, interval in own])
    for (task, _), exposed in zip(own, parts, strict=True):
        yield from ((task, part) for part in exposed)
