"""Extrapolate a step from simulated iterations of its loops.

Once two iterations match to the picosecond, all later ones do: the sums of a step follow by
multiplication.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

from hespas.base.frozen import frozen
from hespas.simulate.timeline import ClassTimeline, Interval, Timeline, union
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, SendTask, Task, TaskGraph


@frozen
class Repeat:
    """Two neighbouring iterations, and the second one's count.

    ``before`` and ``again`` are their tasks by id, in equal order; another iteration precedes the
    first, and one follows the second.
    """

    before: tuple[int, ...]
    again: tuple[int, ...]
    count: int


@frozen
class _Window:
    """A part of a step that runs ``count`` times."""

    start_ps: int
    end_ps: int
    count: int


def extended(
    timeline: Timeline, repeats: Sequence[Repeat], counts: Mapping[int, int]
) -> Timeline | None:
    """Return a timeline's sums with repeated iterations multiplied.

    ``counts`` says how often each task runs; for nested loops it is the product. If every task of
    an iteration starts and ends equally long after its counterpart in the preceding iteration, and
    no older task still runs, the state of all devices is that of one iteration ago, and so it is
    for all later iterations, even if work crosses from one into the next. ``nodes`` are unchanged.
    The result is None if iterations differ, or devices are not as specified.
    """
    if timeline.as_specified is not None:
        return None
    orders = [_Order.of(item) for item in timeline.classes]
    windows: list[_Window] = []
    for repeat in repeats:
        window = _window(timeline.classes, orders, repeat)
        if window is None:
            return None
        windows.append(window)
    pieces = _pieces(windows)
    if pieces is None:
        return None
    classes = tuple([_extended(item, pieces, counts) for item in timeline.classes])
    return replace(timeline, classes=classes)


@frozen
class _Order:
    """A class's task ids with cumulative ends and beginnings.

    ``ended_ps`` is when all tasks up to each have ended, ``begins_ps`` when the later ones begin.
    """

    ids: Sequence[int]
    ended_ps: Sequence[int]
    begins_ps: Sequence[int]

    @classmethod
    def of(cls, timeline: ClassTimeline) -> _Order:
        ids = sorted(timeline.nodes)
        ended = list(accumulate((timeline.nodes[task][1] for task in ids), max))
        begins = list(accumulate((timeline.nodes[task][0] for task in reversed(ids)), min))
        return cls(ids=ids, ended_ps=ended, begins_ps=begins[::-1])

    def ended_before(self, task: int) -> int:
        """Return when all tasks before ``task`` have ended."""
        position = bisect_left(self.ids, task)
        return self.ended_ps[position - 1] if position else 0

    def begins_after(self, task: int) -> int | None:
        """Return when the first task after ``task`` begins, or None."""
        position = bisect_right(self.ids, task)
        return self.begins_ps[position] if position < len(self.ids) else None


def _window(
    classes: Sequence[ClassTimeline], orders: Sequence[_Order], repeat: Repeat
) -> _Window | None:
    """Return the second iteration's window; None if it differs."""
    if len(repeat.before) != len(repeat.again) or not repeat.again:
        return None
    later_ps: set[int] = set()
    for timeline in classes:
        for before, again in zip(repeat.before, repeat.again, strict=True):
            if (before in timeline.nodes) is not (again in timeline.nodes):
                return None
            if again in timeline.nodes:
                early, late = timeline.nodes[before], timeline.nodes[again]
                later_ps |= {late[0] - early[0], late[1] - early[1]}
    if len(later_ps) != 1:
        return None
    (period_ps,) = later_ps
    start_ps = min(
        timeline.nodes[task][0]
        for timeline in classes
        for task in repeat.again
        if task in timeline.nodes
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
    """Cut the step into counted pieces; None if windows cross.

    A piece's count is the product over the windows around it.
    """
    last_ps = max((item.end_ps for item in windows), default=0) + 1
    cuts = sorted(
        {0, last_ps, *(time for item in windows for time in (item.start_ps, item.end_ps))}
    )
    ordered = sorted(windows, key=lambda item: (item.start_ps, -item.end_ps))
    pieces: list[_Window] = []
    open_windows: list[_Window] = []
    waiting = deque(ordered)
    for start_ps, end_ps in pairwise(cuts):
        open_windows = [item for item in open_windows if item.end_ps > start_ps]
        while waiting and waiting[0].start_ps <= start_ps:
            window = waiting.popleft()
            if open_windows and window.end_ps > open_windows[-1].end_ps:
                return None
            open_windows.append(window)
        count = prod(item.count for item in open_windows)
        pieces.append(_Window(start_ps=start_ps, end_ps=end_ps, count=count))
    return pieces


def _extended(
    timeline: ClassTimeline, pieces: Sequence[_Window], counts: Mapping[int, int]
) -> ClassTimeline:
    tasks = [task for task in timeline.graph.tasks if task.id in timeline.nodes]
    computing = [task for task in tasks if isinstance(task, ComputeTask) and not task.is_on_host]
    spans_ps = sum(
        counts[task.id] * (timeline.nodes[task.id][1] - timeline.nodes[task.id][0])
        for task in computing
    )
    compute_ps = sum(counts[task.id] * task.duration_ps for task in computing)
    communicating = union(
        timeline.nodes[task.id]
        for task in tasks
        if isinstance(task, CollectiveTask | SendTask | ReceiveTask)
    )
    finish_ps = _repeated_ps([(0, timeline.finish_ps)], pieces)
    communication_ps = _repeated_ps(communicating, pieces)
    return replace(
        timeline,
        finish_ps=finish_ps,
        compute_ps=compute_ps,
        communication_ps=communication_ps,
        overlap_ps=max(0, spans_ps + communication_ps - finish_ps),
        slowed_ps=spans_ps - compute_ps,
        exposed_ps={task: counts[task] * exposed for task, exposed in timeline.exposed_ps.items()},
    )


def _repeated_ps(intervals: Sequence[Interval], pieces: Sequence[_Window]) -> int:
    """Return the length of disjoint intervals, with pieces counted repeatedly."""
    total_ps = sum(end - start for start, end in intervals)
    first = 0
    for piece in pieces:
        if piece.count == 1:
            continue
        while first < len(intervals) and intervals[first][1] <= piece.start_ps:
            first += 1
        position = first
        while position < len(intervals) and intervals[position][0] < piece.end_ps:
            start, end = intervals[position]
            part_ps = min(end, piece.end_ps) - max(start, piece.start_ps)
            total_ps += (piece.count - 1) * part_ps
            position += 1
    return total_ps


@frozen
class JoinedGraph:
    """A graph with joined rows of computations, and its original.

    ``members`` gives the computations of a row by the id of its task, which is the last one's.
    """

    graph: TaskGraph
    original: TaskGraph
    members: Mapping[int, tuple[ComputeTask, ...]]


def joined_graph(graph: TaskGraph) -> JoinedGraph:
    """Join rows of computations in a graph.

    In a row, each computation waits only for the preceding one, and no other task waits for that
    one. The computations must be in a total order, as in scheduled programs.
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
    return JoinedGraph(graph=replace(graph, tasks=tuple(joined)), original=graph, members=members)


def _row_before(
    task: ComputeTask, rows: Mapping[int, list[ComputeTask]], dependents: Mapping[int, int]
) -> list[ComputeTask]:
    """Return the row that a computation continues or begins."""
    if len(task.depends_on) != 1:
        return []
    (before,) = task.depends_on
    row = rows.get(before)
    if row is None or dependents[before] > 1 or row[-1].is_on_host != task.is_on_host:
        return []
    return row


def _joined_row(row: tuple[ComputeTask, ...]) -> ComputeTask:
    if len(row) == 1:
        return row[0]
    duration_ps = sum(task.duration_ps for task in row)
    return replace(
        row[-1],
        depends_on=row[0].depends_on,
        duration_ps=duration_ps,
        arithmetic_share=sum(task.duration_ps * task.arithmetic_share for task in row)
        / (duration_ps or 1),
    )


def expanded(timeline: Timeline, joined: JoinedGraph) -> Timeline:
    """Expand a joined graph's timeline to the original graph's."""
    classes = tuple([_expanded(item, joined) for item in timeline.classes])
    return replace(timeline, classes=classes)


def _expanded(timeline: ClassTimeline, joined: JoinedGraph) -> ClassTimeline:
    nodes: dict[int, Interval] = {}
    for number, (start, end) in timeline.nodes.items():
        row = joined.members.get(number, ())
        row_ps = sum(task.duration_ps for task in row)
        before_ps, task_start = 0, start
        for task in row[:-1]:
            before_ps += task.duration_ps
            # A row that took longer than alone did so evenly.
            task_end = start + (end - start) * before_ps // (row_ps or 1)
            nodes[task.id] = (task_start, task_end)
            task_start = task_end
        nodes[number] = (task_start, end)
    return replace(timeline, graph=joined.original, nodes=nodes)
