"""A whole step from the simulation of one in which each loop has a few rounds.

Where a round is what the one before it was, to the picosecond, so are those that follow: what a
step takes follows by multiplication.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod

from hespas.simulate.timeline import ClassTimeline, Interval, Timeline, union
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, SendTask, Task, TaskGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Two neighbouring rounds of a loop, and how often the second one runs in a step.

    ``before`` and ``again`` are their tasks by id, in equal order; the first has a round before it,
    the second one after it.
    """

    before: tuple[int, ...]
    again: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A part of a step that runs ``count`` times."""

    start_ps: int
    end_ps: int
    count: int


def extended(
    timeline: Timeline, repeats: Sequence[Repeat], counts: Mapping[int, int]
) -> Timeline | None:
    """Return a timeline's sums with the second round of each of ``repeats`` as often as it runs.

    ``counts`` says how often each task runs, those of nested loops as often as all of them have it.
    Where every task of a round starts and ends the same time after its like in the round before,
    and nothing older is left, the state of all devices is that of one round ago, and so are all
    rounds that follow: work may be under way where one round ends and the next one begins.
    ``nodes`` stay as they are. None where rounds are not alike, or devices not as specified.
    """
    if timeline.as_specified is not None:
        return None
    orders = [_Order.of(one) for one in timeline.classes]
    windows: list[_Window] = []
    for repeat in repeats:
        window = _window(timeline.classes, orders, repeat)
        if window is None:
            return None
        windows.append(window)
    pieces = _pieces(windows)
    if pieces is None:
        return None
    classes = tuple([_extended(one, pieces, counts) for one in timeline.classes])
    return replace(timeline, classes=classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The tasks of a class by id, when all up to each have ended, and when the rest begins."""

    ids: Sequence[int]
    ended_ps: Sequence[int]
    begins_ps: Sequence[int]

    @classmethod
    def of(cls, one: ClassTimeline) -> _Order:
        ids = sorted(one.nodes)
        ended = list(accumulate((one.nodes[each][1] for each in ids), max))
        begins = list(accumulate((one.nodes[each][0] for each in reversed(ids)), min))
        return cls(ids=ids, ended_ps=ended, begins_ps=begins[::-1])

    def ended_before(self, task: int) -> int:
        """Return when all tasks before one have ended."""
        at = bisect_left(self.ids, task)
        return self.ended_ps[at - 1] if at else 0

    def begins_after(self, task: int) -> int | None:
        """Return when the first task after one begins, None where there is none."""
        at = bisect_right(self.ids, task)
        return self.begins_ps[at] if at < len(self.ids) else None


def _window(
    classes: Sequence[ClassTimeline], orders: Sequence[_Order], repeat: Repeat
) -> _Window | None:
    """Return when the second round of a repeat is, None where it differs from the first."""
    if len(repeat.before) != len(repeat.again) or not repeat.again:
        return None
    later_ps: set[int] = set()
    for one in classes:
        for before, again in zip(repeat.before, repeat.again, strict=True):
            if (before in one.nodes) is not (again in one.nodes):
                return None
            if again in one.nodes:
                early, late = one.nodes[before], one.nodes[again]
                later_ps |= {late[0] - early[0], late[1] - early[1]}
    if len(later_ps) != 1:
        return None
    (period_ps,) = later_ps
    start_ps = min(
        one.nodes[task][0] for one in classes for task in repeat.again if task in one.nodes
    )
    end_ps = start_ps + period_ps
    for order in orders:
        after_ps = order.begins_after(repeat.again[-1])
        is_old = order.ended_before(repeat.before[0]) > start_ps
        if is_old or order.ended_before(repeat.again[0]) > end_ps:
            return None
        if after_ps is not None and after_ps < end_ps:
            return None
    return _Window(start_ps=start_ps, end_ps=end_ps, count=repeat.count)


def _pieces(windows: Sequence[_Window]) -> list[_Window] | None:
    """Return the step in pieces, each as often as all windows around it say; None if they cross."""
    last_ps = max((each.end_ps for each in windows), default=0) + 1
    cuts = sorted({0, last_ps, *(at for each in windows for at in (each.start_ps, each.end_ps))})
    ordered = sorted(windows, key=lambda each: (each.start_ps, -each.end_ps))
    pieces: list[_Window] = []
    around: list[_Window] = []
    waiting = deque(ordered)
    for start_ps, end_ps in pairwise(cuts):
        around = [each for each in around if each.end_ps > start_ps]
        while waiting and waiting[0].start_ps <= start_ps:
            window = waiting.popleft()
            if around and window.end_ps > around[-1].end_ps:
                return None
            around.append(window)
        count = prod(each.count for each in around)
        pieces.append(_Window(start_ps=start_ps, end_ps=end_ps, count=count))
    return pieces


def _extended(
    one: ClassTimeline, pieces: Sequence[_Window], counts: Mapping[int, int]
) -> ClassTimeline:
    tasks = [task for task in one.graph.tasks if task.id in one.nodes]
    compute_ps = sum(
        counts[task.id] * (one.nodes[task.id][1] - one.nodes[task.id][0])
        for task in tasks
        if isinstance(task, ComputeTask) and not task.is_on_host
    )
    communicating = union(
        one.nodes[task.id]
        for task in tasks
        if isinstance(task, CollectiveTask | SendTask | ReceiveTask)
    )
    finish_ps = _repeated_ps([(0, one.finish_ps)], pieces)
    communication_ps = _repeated_ps(communicating, pieces)
    return replace(
        one,
        finish_ps=finish_ps,
        compute_ps=compute_ps,
        communication_ps=communication_ps,
        overlap_ps=max(0, compute_ps + communication_ps - finish_ps),
        exposed_ps={task: counts[task] * exposed for task, exposed in one.exposed_ps.items()},
    )


def _repeated_ps(intervals: Sequence[Interval], pieces: Sequence[_Window]) -> int:
    """Return the length of disjoint intervals in order, each piece as often as it runs."""
    total_ps = sum(end - start for start, end in intervals)
    at = 0
    for piece in pieces:
        if piece.count == 1:
            continue
        while at < len(intervals) and intervals[at][1] <= piece.start_ps:
            at += 1
        inside = at
        while inside < len(intervals) and intervals[inside][0] < piece.end_ps:
            start, end = intervals[inside]
            part_ps = min(end, piece.end_ps) - max(start, piece.start_ps)
            total_ps += (piece.count - 1) * part_ps
            inside += 1
    return total_ps


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
    joined = [*tasks, *(_joined_row(row) for row in members.values())]
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


def _joined_row(row: tuple[ComputeTask, ...]) -> ComputeTask:
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
