"""Hold a simulation's result: task times and their sums."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS, PS_PER_S
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    is_host_launch,
)

Interval = tuple[int, int]


def covered_ps(intervals: Iterable[Interval]) -> int:
    """Return the length of the union of intervals.

    >>> covered_ps([(0, 5), (3, 8), (10, 11)])
    9
    """
    return _length_ps(union(intervals))


def _length_ps(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint intervals in order.

    >>> union([(3, 8), (0, 5), (10, 11), (8, 9)])
    [(0, 9), (10, 11)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def exposed_parts(
    hiding: Sequence[Interval], intervals: Iterable[Interval]
) -> list[list[Interval]]:
    """Return the parts of each interval outside ``hiding``.

    ``hiding`` are disjoint intervals in order.

    >>> exposed_parts([(2, 4), (6, 7)], [(0, 8)])
    [[(0, 2), (4, 6), (7, 8)]]
    """
    ends = list(accumulate((end for _, end in hiding), max))
    return [_uncovered(hiding, bisect_right(ends, span[0]), span) for span in intervals]


def _uncovered(hiding: Sequence[Interval], first: int, span: Interval) -> list[Interval]:
    parts: list[Interval] = []
    position, end = span
    for number in range(first, len(hiding)):
        start, stop = hiding[number]
        if start >= end:
            break
        if start > position:
            parts.append((position, start))
        position = max(position, stop)
    if position < end:
        parts.append((position, end))
    return parts


TO_HOST, FROM_HOST = "to the host", "from the host"
"""The names of the streams of transfers between a device and its host."""


@frozen
class ClassTimeline:
    """The timeline of devices that behave alike.

    Times are in ps from the start. ``nodes`` gives (issue, end) by task id. ``compute_ps`` is the
    sum of the computations, ``communication_ps`` the time during which any communication runs (a
    receive from its posting on), ``overlap_ps`` the time during which both run.
    ``host_transfer_ps`` is the time during which data moves to or from the host, and
    ``exposed_host_transfer_ps`` the part of it without computation and communication.
    ``launch_wait_ps`` is the idle time before launches by the host. ``exposed_communication_ps`` is
    ASTRA-sim's term: the finish less ``compute_ps``, less these two, and less ``replayed_ps``, the
    sum of replayed communication; it includes idle time. ``exposed_ps`` gives, by communication
    task, the part that no computation hides. ``streams`` names, by task id, the streams of
    communication tasks if there are several. ``slowed_ps`` is how much longer computations took
    beside collectives than alone; ``compute_ps`` excludes it, so it counts as exposed
    communication. ``waits_ps`` gives, by communication task, the time it waits for other devices
    before anything is sent, if any; it is None if the network model does not separate waiting from
    sending.
    """

    devices: tuple[int, ...]
    graph: TaskGraph
    nodes: Mapping[int, Interval]
    finish_ps: int
    compute_ps: int
    communication_ps: int
    overlap_ps: int
    exposed_ps: Mapping[int, int]
    replayed_ps: int = 0
    streams: Mapping[int, str] = field(default_factory=dict[int, str])
    host_transfer_ps: int = 0
    exposed_host_transfer_ps: int = 0
    launch_wait_ps: int = 0
    slowed_ps: int = 0
    waits_ps: Mapping[int, int] | None = None

    @property
    def exposed_communication_ps(self) -> int:
        """The finish less all other terms."""
        other_terms_ps = self.compute_ps + self.exposed_host_transfer_ps + self.replayed_ps
        return self.finish_ps - other_terms_ps - self.launch_wait_ps

    @property
    def without_collectives_ps(self) -> int:
        """The exposed communication during which no collective is under way."""
        computing = union(self._of(ComputeTask))
        collectives = exposed_parts(computing, union(self._of(CollectiveTask)))
        exposed_ps = covered_ps(part for parts in collectives for part in parts)
        return max(0, self.exposed_communication_ps - exposed_ps - self.slowed_ps)

    def _of(self, kind: type[Task]) -> Iterator[Interval]:
        for task in self.graph.tasks:
            if task.id in self.nodes and isinstance(task, kind) and not is_host_launch(task):
                yield self.nodes[task.id]

    @property
    def waited_ps(self) -> int:
        """The time its communication waits for other devices, if known."""
        return sum((self.waits_ps or {}).values())


@frozen
class Timeline:
    """The timelines of all device classes.

    Each device is in one class. ``imperfections`` are the cluster's. ``as_specified`` is the
    slowest class when every device is as specified, None if no device differs.
    """

    classes: tuple[ClassTimeline, ...]
    model: str = "astra-sim"
    assumptions: tuple[str, ...] = ()
    imperfections: tuple[str, ...] = ()
    as_specified: ClassTimeline | None = None

    @property
    def finish_ps(self) -> int:
        """When the last device ends: the duration of the step."""
        return max((item.finish_ps for item in self.classes), default=0)

    @property
    def slowest(self) -> ClassTimeline:
        """The first class that ends last and waits least for others."""
        last = [item for item in self.classes if item.finish_ps == self.finish_ps]
        return min(last, key=lambda item: item.waited_ps)

    @property
    def specified(self) -> ClassTimeline:
        """The slowest class when every device is as specified."""
        return self.as_specified or self.slowest

    @property
    def straggler_ps(self) -> int:
        """The extra time with slow, late and jittering devices, below 0 with faster ones."""
        return self.finish_ps - self.specified.finish_ps

    @property
    def step_time_s(self) -> float:
        """The duration of the step in seconds."""
        return self.finish_ps / PS_PER_S

    def of_device(self, device: int) -> ClassTimeline:
        """Return a device's timeline; `KeyError` if there is none."""
        for item in self.classes:
            if device in item.devices:
                return item
        raise KeyError(device)

    def as_json(self, *, with_nodes: bool = False) -> dict[str, object]:
        """Return the JSON object of ``hespas simulate``.

        Times are in ns, whole ones as ints.

        Keys: ``step_time_ns``; its parts ``compute_ns``, ``exposed_communication_ns`` and
        ``straggler_ns``, if devices are not as specified; ``devices``, by device; ``model`` and
        ``assumptions``, if there are any; and, on request, ``nodes``, by device and task id, as
        [issue, end].
        """
        per_device = {device: item for item in self.classes for device in item.devices}
        figures = {id(item): _figures(item) for item in self.classes}
        result: dict[str, object] = {"step_time_ns": _ns(self.finish_ps)}
        if self.as_specified is not None:
            specified = self.as_specified
            result |= {
                "compute_ns": _ns(specified.compute_ps),
                "exposed_communication_ns": _ns(specified.exposed_communication_ps),
                **_host_figures(specified, ("exposed_host_transfer_ps",)),
                "straggler_ns": _ns(self.straggler_ps),
            }
        result["devices"] = {str(d): figures[id(per_device[d])] for d in sorted(per_device)}
        assumptions = [*self.imperfections, *self.assumptions]
        if assumptions:
            result |= {"model": self.model, "assumptions": assumptions}
        if with_nodes:
            nodes = {
                id(item): {str(task): list(map(_ns, span)) for task, span in item.nodes.items()}
                for item in self.classes
            }
            result["nodes"] = {str(d): nodes[id(per_device[d])] for d in sorted(per_device)}
        return result


def class_timeline(
    devices: tuple[int, ...],
    graph: TaskGraph,
    tasks: Sequence[Task],
    spans: Sequence[Interval],
) -> ClassTimeline:
    """Return a device class's timeline from its tasks' spans."""
    timed = list(zip(tasks, spans, strict=True))
    computing = sorted(
        span for task, span in timed if isinstance(task, ComputeTask) and not task.is_on_host
    )
    communicating = {
        task.id: span
        for task, span in timed
        if isinstance(task, CollectiveTask | SendTask | ReceiveTask)
    }
    stream_of = host_streams(tasks)
    moving = union(span for task, span in timed if task.id in stream_of)
    busy = union([*computing, *communicating.values()])
    finish_ps = max((end for _, end in spans), default=0)
    communication_ps = covered_ps(communicating.values())
    exposed_host_ps = sum(map(_length_ps, exposed_parts(busy, moving)))
    compute_ps = _length_ps(computing)
    exposed = map(_length_ps, exposed_parts(computing, communicating.values()))
    has_launches = any(map(is_host_launch, tasks))
    return ClassTimeline(
        devices=devices,
        graph=graph,
        nodes={task.id: span for task, span in timed},
        finish_ps=finish_ps,
        compute_ps=compute_ps,
        communication_ps=communication_ps,
        overlap_ps=max(0, compute_ps + communication_ps + exposed_host_ps - finish_ps),
        exposed_ps=dict(zip(communicating, exposed, strict=True)),
        host_transfer_ps=_length_ps(moving),
        exposed_host_transfer_ps=exposed_host_ps,
        launch_wait_ps=finish_ps - covered_ps([*busy, *moving]) if has_launches else 0,
    )


def slower_ps(timeline: ClassTimeline) -> dict[int, int]:
    """Return how much longer each computation took beside collectives."""
    return {
        task.id: timeline.nodes[task.id][1] - timeline.nodes[task.id][0] - task.duration_ps
        for task in timeline.graph.tasks
        if isinstance(task, ComputeTask) and task.id in timeline.nodes and not task.is_on_host
    }


def host_streams(tasks: Iterable[Task]) -> dict[int, str]:
    """Return the stream names of host transfers, by task id."""
    return {
        task.id: TO_HOST if task.is_store else FROM_HOST
        for task in tasks
        if isinstance(task, MemoryTask) and task.duration_ps is not None
    }


def _ns(time_ps: int) -> int | float:
    return time_ps // PS_PER_NS if time_ps % PS_PER_NS == 0 else time_ps / PS_PER_NS


def _figures(timeline: ClassTimeline) -> dict[str, int | float]:
    return {
        "finish_ns": _ns(timeline.finish_ps),
        "compute_ns": _ns(timeline.compute_ps),
        "communication_ns": _ns(timeline.communication_ps),
        "exposed_communication_ns": _ns(timeline.exposed_communication_ps),
        "overlap_ns": _ns(timeline.overlap_ps),
        **_host_figures(timeline, ("host_transfer_ps", "exposed_host_transfer_ps")),
    }


def _host_figures(timeline: ClassTimeline, names: Sequence[str]) -> dict[str, int | float]:
    used = names if timeline.host_transfer_ps else ()
    return {f"{name.removesuffix('_ps')}_ns": _ns(getattr(timeline, name)) for name in used}
