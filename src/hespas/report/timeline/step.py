"""Make a chart of a simulated step: a process for each class of devices that behave alike.

Its tracks, from top to bottom: phases and layers of the model; loops,
round by round; computation, with the kernels of
each region inside of it; the CPU; communication, one track for each stream; receives, as many
tracks as overlap; communication that no computation hides; and what the device waits for while it
doesn't compute. Computation and waiting together fill the step. A counter has the memory in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from hespas.base.limits import MOST_SLICES
from hespas.report.timeline.chart import Arguments, Chart, Counter, Process, Slice, Track
from hespas.report.timeline.details import Details, NoDetails
from hespas.report.timeline.flows import Flows, flows_of
from hespas.report.timeline.joined import joined
from hespas.report.timeline.nested import (
    PlacedTime,
    layer_slices,
    loop_slices,
    phase_slices,
    piece_places,
    piece_slices,
)
from hespas.report.timeline.partners import Partners
from hespas.report.timeline.waits import Wait, arrivals, waits_of
from hespas.simulate.timeline import ClassTimeline, Interval, Timeline, exposed_parts
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    short_devices_text,
)

Timed = tuple[Task, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A class of devices to show, with what its tasks run or without."""

    number: int
    has_pieces: bool


def step_chart(
    timeline: Timeline, details: Details | None = None, *, most_slices: int = MOST_SLICES
) -> Chart:
    """Return the chart of a timeline, with about ``most_slices`` slices at most.

    ``details`` is what is known of its tasks. Where there are more slices, those inside of tasks
    are left out, then classes of devices, all but the slowest, and then slices of one track are
    joined. The chart's notes say what is not shown.
    """
    known = details or NoDetails()
    partners = Partners(timeline=timeline)
    shown = _shown(timeline, known, most_slices)
    flows = flows_of(partners, [each.number for each in shown])
    processes = [_process(partners, each, flows, known) for each in shown]
    notes = tuple(_notes(timeline, shown, most_slices))
    return joined(Chart(processes=tuple(processes), notes=notes), most_slices=most_slices)


def _shown(timeline: Timeline, details: Details, most_slices: int) -> list[_Shown]:
    """Return the classes to show, in order: the slowest one, and as many first ones as fit.

    A task is taken for two slices: itself, and a wait or the part of it that is exposed.
    """
    classes = timeline.classes
    slowest = classes.index(timeline.slowest)
    shown: list[_Shown] = []
    room = most_slices
    for number in (slowest, *(each for each in range(len(classes)) if each != slowest)):
        nodes = classes[number].nodes
        needed = 2 * len(nodes)
        if shown and needed > room:
            break
        # What is inside of a task stands on the tracks of layers too.
        inside = 2 * sum(map(details.size, nodes))
        has_pieces = needed + inside <= room
        shown.append(_Shown(number=number, has_pieces=has_pieces))
        room -= needed + (inside if has_pieces else 0)
    return sorted(shown, key=lambda each: each.number)


def _notes(timeline: Timeline, shown: Sequence[_Shown], most_slices: int) -> Iterator[str]:
    without = [timeline.classes[each.number].devices for each in shown if not each.has_pieces]
    if without:
        named = ", ".join(map(short_devices_text, without[:3]))
        more = f" and {len(without) - 3} more classes" if len(without) > 3 else ""
        yield (
            f"what is inside of tasks of {named}{more} is not shown: a timeline has up to "
            f"{most_slices:,} slices"
        )
    left_out = len(timeline.classes) - len(shown)
    if left_out:
        yield (
            f"{left_out} of {len(timeline.classes)} classes of devices are not shown: the slowest "
            f"and the first are, up to {most_slices:,} slices"
        )


def _process(partners: Partners, shown: _Shown, flows: Flows, details: Details) -> Process:
    number = shown.number
    one = partners.timeline.classes[number]
    timed = [(task, one.nodes[task.id]) for task in partners.tasks[number].values()]
    timed.sort(key=lambda pair: (pair[1], pair[0].id))
    late = arrivals(partners, number)
    slices: dict[str, list[Slice]] = defaultdict(list)
    places: list[PlacedTime] = []
    for (task, interval), track in zip(timed, _tracks(timed, one), strict=True):
        arguments = {**_arguments(task), **details.arguments(task.id)}
        slices[track].append(_slice(task, interval, arguments, flows.of(number, task.id)))
        if task.id in late:
            slices[track].append(_wait_slice(late[task.id]))
        if isinstance(task, ComputeTask) and not task.is_on_host:
            pieces = details.pieces(task.id) if shown.has_pieces else ()
            slices[track].extend(piece_slices(pieces, interval))
            whole = [(interval, details.place(task.id))]
            places.extend(piece_places(pieces, interval) if pieces else whole)
    slices[_PHASES] = list(phase_slices(places))
    slices[_LAYERS] = list(layer_slices(places))
    slices[_LOOPS] = list(loop_slices(details.rounds(), one.nodes))
    slices[_EXPOSED] = [
        _slice(task, interval, _arguments(task), category="exposed")
        for task, interval in _exposed(timed)
    ]
    slices[_WAITING] = [_wait_slice(wait) for wait in waits_of(partners, number)]
    return Process(
        name=short_devices_text(one.devices),
        tracks=tuple([Track(name=name, slices=tuple(slices[name])) for name in _ordered(slices)]),
        counters=tuple(_memory(timed, details)),
    )


def _memory(timed: Iterable[Timed], details: Details) -> Iterator[Counter]:
    """Yield the memory in use, where it is known: it changes as the program goes on.

    A communication that starts later than what stands behind it in the program changes nothing.
    """
    points: list[tuple[int, int]] = []
    reached = -1
    for task, (start_ps, _) in timed:
        size_bytes = details.memory_bytes(task.id)
        if size_bytes is None or task.id <= reached:
            continue
        reached = task.id
        if points and points[-1][0] == start_ps:
            points.pop()
        if not points or points[-1][1] != size_bytes:
            points.append((start_ps, size_bytes))
    if points:
        yield Counter(name="memory", points=tuple(points))


_COMPUTE, _HOST, _COMMUNICATION, _RECEIVE = "compute", "CPU", "communication", "receive"
_EXPOSED, _WAITING = "exposed communication", "waiting"
_PHASES, _LAYERS, _LOOPS = "phases", "layers", "loops"
_FIRST = (_PHASES, _LAYERS, _LOOPS, _COMPUTE, _HOST, _COMMUNICATION)
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
    arguments: Arguments,
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
        arguments=arguments,
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
