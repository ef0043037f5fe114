"""Make a chart of a simulated step: a process for each class of devices that behave alike.

Its tracks, from top to bottom: computation, the CPU, communication (one track for each stream),
receives (as many tracks as overlap), communication that no computation hides, and what the device
waits for while it doesn't compute. Computation and waiting together fill the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from hespas.limits import MOST_SLICES
from hespas.report.timeline.chart import Arguments, Chart, Process, Slice, Track
from hespas.report.timeline.flows import Flows, flows_of
from hespas.report.timeline.joined import joined
from hespas.report.timeline.partners import Partners, short_devices_text
from hespas.report.timeline.waits import Wait, arrivals, waits_of
from hespas.schedule.intervals import Interval, exposed_parts
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
)
from hespas.simulate.timeline import ClassTimeline, Timeline

Timed = tuple[Task, Interval]


def step_chart(timeline: Timeline, *, most_slices: int = MOST_SLICES) -> Chart:
    """Return the chart of a timeline, with about ``most_slices`` slices at most.

    Where there are more, classes of devices are left out, all but the slowest, and then slices of
    one track are joined. Its notes say what is not shown.
    """
    partners = Partners(timeline=timeline)
    shown, notes = _classes_shown(timeline, most_slices)
    flows = flows_of(partners, shown)
    processes = [_process(partners, number, flows) for number in shown]
    return joined(Chart(processes=tuple(processes), notes=notes), most_slices=most_slices)


def _classes_shown(timeline: Timeline, most_slices: int) -> tuple[list[int], tuple[str, ...]]:
    """Return the classes to show, in order: the slowest one, and as many first ones as fit.

    A task is taken for two slices: itself, and a wait or the part of it that is exposed.
    """
    classes = timeline.classes
    slowest = classes.index(timeline.slowest)
    shown: list[int] = []
    room = most_slices
    for number in (slowest, *(each for each in range(len(classes)) if each != slowest)):
        room -= 2 * len(classes[number].nodes)
        if shown and room < 0:
            break
        shown.append(number)
    shown.sort()
    if len(shown) == len(classes):
        return shown, ()
    note = (
        f"{len(classes) - len(shown)} of {len(classes)} classes of devices are not shown: the "
        f"slowest and the first are, up to {most_slices:,} slices"
    )
    return shown, (note,)


def _process(partners: Partners, number: int, flows: Flows) -> Process:
    one = partners.timeline.classes[number]
    timed = [(task, one.nodes[task.id]) for task in partners.tasks[number].values()]
    timed.sort(key=lambda pair: (pair[1], pair[0].id))
    late = arrivals(partners, number)
    slices: dict[str, list[Slice]] = defaultdict(list)
    for (task, interval), track in zip(timed, _tracks(timed, one), strict=True):
        slices[track].append(_slice(task, interval, flows.of(number, task.id)))
        if task.id in late:
            slices[track].append(_wait_slice(late[task.id]))
    slices[_EXPOSED] = [
        _slice(task, interval, category="exposed") for task, interval in _exposed(timed)
    ]
    slices[_WAITING] = [_wait_slice(wait) for wait in waits_of(partners, number)]
    return Process(
        name=short_devices_text(one.devices),
        tracks=tuple([Track(name=name, slices=tuple(slices[name])) for name in _ordered(slices)]),
    )


_COMPUTE, _HOST, _COMMUNICATION, _RECEIVE = "compute", "CPU", "communication", "receive"
_EXPOSED, _WAITING = "exposed communication", "waiting"
_FIRST = (_COMPUTE, _HOST, _COMMUNICATION)
_LAST = (_EXPOSED, _WAITING)


def _ordered(slices: Mapping[str, Sequence[Slice]]) -> list[str]:
    """Return the names of the tracks that hold something, from top to bottom."""
    named = [name for name in slices if name not in (*_FIRST, *_LAST)]
    named.sort(
        key=lambda name: (
            name.startswith(_RECEIVE),
            len(name) if name.startswith(_RECEIVE) else 0,
            name,
        )
    )
    return [name for name in (*_FIRST, *named, *_LAST) if slices.get(name)]


def _tracks(timed: Iterable[Timed], one: ClassTimeline) -> Iterator[str]:
    """Yield the name of the track of each task: its stream, and a number where tasks overlap."""
    free_ps: dict[str, list[int]] = defaultdict(list)
    for task, (start_ps, end_ps) in timed:
        stream = _stream(task, one)
        free = free_ps[stream]
        lane = next((lane for lane, free_at in enumerate(free) if free_at <= start_ps), len(free))
        free[lane : lane + 1] = [end_ps]
        yield stream if lane == 0 and stream != _RECEIVE else f"{stream} {lane + 1}"


def _stream(task: Task, one: ClassTimeline) -> str:
    if _is_receive(task):
        return _RECEIVE
    match task:
        case ComputeTask():
            return _HOST if task.is_on_host else _COMPUTE
        case CollectiveTask() | SendTask() | ReceiveTask() | MemoryTask() | EmptyTask():
            return one.streams.get(task.id, _COMMUNICATION)
        case _:
            assert_never(task)


def _slice(
    task: Task,
    interval: Interval,
    flows: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    *,
    category: str = "",
) -> Slice:
    computes = isinstance(task, ComputeTask)
    starts, ends = flows
    return Slice(
        name=task.name,
        start_ps=interval[0],
        end_ps=interval[1],
        category=category or ("compute" if computes else "communication"),
        arguments=_arguments(task),
        starts=starts,
        ends=ends,
    )


def _wait_slice(wait: Wait) -> Slice:
    return Slice(
        name=f"waits for {wait.reason}", start_ps=wait.start_ps, end_ps=wait.end_ps, category="wait"
    )


def _arguments(task: Task) -> Arguments:
    match task:
        case ComputeTask():
            return {"id": task.id, **({"label": task.label} if task.label else {})}
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


def _is_on_host(task: Task) -> bool:
    return isinstance(task, ComputeTask) and task.is_on_host


def _is_receive(task: Task) -> bool:
    """Return whether several such tasks may overlap on a device: receives, and recorded ones."""
    return isinstance(task, ReceiveTask) or (
        isinstance(task, CollectiveTask) and not task.takes_slot
    )


def _exposed(tasks: Sequence[Timed]) -> Iterator[Timed]:
    """Yield exposed communication, each moment once: as the communication that started first."""
    hiding = [pair for pair in tasks if isinstance(pair[0], ComputeTask)]
    computing = [interval for task, interval in hiding if not _is_on_host(task)]
    own: list[Timed] = []
    reached = 0
    for task, (start, end) in tasks:
        if isinstance(task, ComputeTask | MemoryTask | EmptyTask) or end <= reached:
            continue
        own.append((task, (max(start, reached), end)))
        reached = end
    parts = exposed_parts(computing, [interval for _, interval in own])
    for (task, _), exposed in zip(own, parts, strict=True):
        yield from ((task, part) for part in exposed)
