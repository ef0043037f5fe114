"""Run jobs whose tasks never compete for a stream.

Each task starts when its dependencies have ended. If the tasks of each stream depend on each other
in a row, as in traces of a compiler's schedule, nothing competes, and the order of events at one
instant doesn't matter. All devices can then be processed task by task, as arrays, however much they
differ in speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, assert_never

import numpy as np

from hespas.base.units import PS_PER_NS
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.durations import ClosedForms
from hespas.simulate.astra.plan import AlgorithmName
from hespas.simulate.astra.relays import (
    GroupShape,
    LogicalRing,
    RelayRounds,
    message_bytes,
    relay_rounds,
)
from hespas.simulate.communicators import Members
from hespas.simulate.timeline import ClassTimeline, class_timeline
from hespas.tasks.graph import (
    ALWAYS,
    CollectiveTask,
    ComputeTask,
    Job,
    Task,
    TaskGraph,
    find_roles,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times: TypeAlias = NDArray[np.int64]
    _Part: TypeAlias = tuple[Members | None, NDArray[np.int64]]

_MOST_TIMES = 50_000_000


def run_dataflow(job: Job, forms: ClosedForms) -> tuple[ClassTimeline, ...] | None:
    """Return the timelines of devices, equal ones together.

    The result is None if a collective has no closed form, and for unsupported jobs: with sends,
    memory or CPU tasks, graphs that differ in more than durations, tasks that compete for a stream,
    or more times than fit in memory.
    """
    if not _is_supported(job):
        return None
    run = _Run(job, forms)
    return tuple(run.classes()) if run.run() else None


def _is_supported(job: Job) -> bool:
    first = job.graphs[0]
    for graph in job.graphs[1:]:
        is_alike = graph.group_tables == first.group_tables and len(graph.tasks) == len(first.tasks)
        if not (is_alike and all(map(_differ_in_duration_only, first.tasks, graph.tasks))):
            return False
    return job.device_count * len(first.tasks) <= _MOST_TIMES and _is_in_rows(first)


def _differ_in_duration_only(first: Task, second: Task) -> bool:
    if isinstance(first, ComputeTask) and isinstance(second, ComputeTask):
        return first.id == second.id and first.depends_on == second.depends_on
    return first == second


def _is_in_rows(graph: TaskGraph) -> bool:
    """Return whether tasks follow all earlier ones of their stream."""
    index_of = {task.id: index for index, task in enumerate(graph.tasks)}
    ancestors_of: list[int] = []
    last: dict[type, int] = {}
    for index, task in enumerate(graph.tasks):
        is_simple = isinstance(task, ComputeTask) and not task.is_on_host
        is_simple |= isinstance(task, CollectiveTask) and task.recorded_ps is None
        if not is_simple:
            return False
        ancestors = 0
        for dependency in task.depends_on:
            position = index_of[dependency]
            ancestors |= ancestors_of[position] | 1 << position
        ancestors_of.append(ancestors)
        previous = last.get(type(task))
        if previous is not None and not ancestors >> previous & 1:
            return False
        last[type(task)] = index
    return True


def _duration_ps(task: Task) -> int:
    if not isinstance(task, ComputeTask):
        raise TypeError(task)
    return task.duration_ps


class _Run:
    def __init__(self, job: Job, forms: ClosedForms) -> None:
        self._job = job
        self._forms = forms
        self._graph = job.graphs[0]
        self._roles = find_roles(self._graph)
        self._of_device = np.array(job.graph_of_device)
        everyone = np.arange(job.device_count, dtype=np.int64)[np.newaxis]
        self._everyone: _Part = (None, everyone)
        self._groups: dict[int, list[_Part]] = {}
        self._presences: dict[tuple[int | None, ...], tuple[bool, ...]] = {}
        self._starts: list[Times] = []
        self._ends: list[Times] = []

    def run(self) -> bool:
        """Compute all times; return False without a closed form."""
        index_of = {task.id: index for index, task in enumerate(self._graph.tasks)}
        nothing = np.zeros(self._job.device_count, dtype=np.int64)
        for index, task in enumerate(self._graph.tasks):
            start = nothing
            for dependency in task.depends_on:
                start = np.maximum(start, self._ends[index_of[dependency]])
            self._starts.append(start)
            if isinstance(task, CollectiveTask):
                end = self._collective(task, start)
                if end is None:
                    return False
                self._ends.append(end)
            else:
                durations = [_duration_ps(graph.tasks[index]) for graph in self._job.graphs]
                self._ends.append(start + np.array(durations, dtype=np.int64)[self._of_device])
        return True

    def _collective(self, task: CollectiveTask, start: Times) -> Times | None:
        # Devices that take no part continue at once.
        end = start.copy()
        for group, members in self._parts(task.group_table):
            ends = self._group_ends_ps(task, group, start[members])
            if ends is None:
                return None
            end[members] = ends
        return end

    def _group_ends_ps(
        self, task: CollectiveTask, group: Members | None, starts_ps: Times
    ) -> Times | None:
        """Return the ends of members in groups of one shape."""
        shape = None if group is None else self._shape_of(group)
        span = self._forms.span(task, shape)
        # A collective without duration at time 0 is an error, which the event simulation explains.
        if span is None or (self._forms.wait_ns(shape) == 0 and not starts_ps.all()):
            return None
        if (starts_ps == starts_ps[:, :1]).all():
            return starts_ps + span.total_ns * PS_PER_NS
        return self._forms.ends_ps(task, shape, starts_ps)

    def _shape_of(self, group: Members) -> GroupShape | None:
        timing = self._forms.timing(group)
        return timing if isinstance(timing, GroupShape) else None

    def _parts(self, table: int | None) -> Sequence[_Part]:
        if table is None:
            return [self._everyone]
        if table not in self._groups:
            groups_of_shape: dict[object, list[Members]] = {}
            parts: list[_Part] = []
            for group in self._graph.group_tables[table]:
                shape = self._shape_of(group)
                if shape is None:
                    parts.append(self._everyone)
                else:
                    groups_of_shape.setdefault((len(group), shape), []).append(group)
            parts += [
                (groups[0], np.array(groups, dtype=np.int64)) for groups in groups_of_shape.values()
            ]
            self._groups[table] = parts
        return self._groups[table]

    def classes(self) -> Iterator[ClassTimeline]:
        """Yield the classes of devices with one graph and times."""
        starts, ends = (
            np.ascontiguousarray(np.stack(times).T) if times else np.zeros((0, 0), dtype=np.int64)
            for times in (self._starts, self._ends)
        )
        devices_of_times: dict[object, list[int]] = {}
        for device, graph_index in enumerate(self._job.graph_of_device):
            times = (starts[device].tobytes(), ends[device].tobytes())
            key = (graph_index, self._presence(device), *times)
            devices_of_times.setdefault(key, []).append(device)
        for devices in devices_of_times.values():
            first = devices[0]
            graph = self._job.graphs[self._job.graph_of_device[first]]
            own = [index for index, is_own in enumerate(self._presence(first)) if is_own]
            spans = zip(starts[first, own].tolist(), ends[first, own].tolist(), strict=True)
            tasks = [graph.tasks[index] for index in own]
            yield class_timeline(tuple(devices), graph, tasks, list(spans))

    def _presence(self, device: int) -> tuple[bool, ...]:
        key = self._roles.key(device)
        if key not in self._presences:
            self._presences[key] = tuple([
                role == ALWAYS or key[role] is not None for role in self._roles.role_of_task
            ])  # fmt: skip
        return self._presences[key]


_AR, _RS = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER


def staggered_ends_ps(
    algorithm: AlgorithmName,
    kind: CollectiveKind,
    ring: LogicalRing,
    size_bytes: int,
    starts_ps: Times,
    *,
    direction: int,
) -> Times | None:
    """Return each member's end from its start, or None.

    Direct all-reduces and double binary trees have no closed form. Source: ASTRA-sim's algorithms
    over a network without congestion, message by message. A member posts the receive of a step when
    it sends its own message of that step; so with s the times of sending and D the delay, a message
    is received at max(s of its sender + D, s of the receiver). Times have a row for each of several
    rings of one shape. ``direction`` is -1 for rings that turn backwards. No member ends before all
    of its ring have started.
    """
    match algorithm:
        case "ring" | "halving-doubling":
            rounds = relay_rounds(algorithm, kind, ring.size, size_bytes)
            return _staggered_relay(rounds, ring, starts_ps, direction)
        case "direct":
            return None if kind is _AR else _staggered_direct(kind, ring, size_bytes, starts_ps)
        case "double-binary-tree":
            return None
        case _:
            assert_never(algorithm)


def _staggered_relay(
    rounds: Iterable[RelayRounds], ring: LogicalRing, starts_ps: Times, direction: int
) -> Times:
    """Return the times after each member's last message and reduction."""
    wait_ps = ring.endpoint_ns * PS_PER_NS
    positions = np.arange(ring.size)
    sent = starts_ps + wait_ps
    for item in rounds:
        delay_ps = ring.delay_ns(item.distance, item.size_bytes) * PS_PER_NS
        after_ps = wait_ps
        if item.reduced_bytes is not None:
            after_ps += ring.reduce_ns(item.reduced_bytes) * PS_PER_NS
        sources = positions ^ item.distance if item.is_exchange else positions - direction
        for _ in range(item.repeats):
            sent_by_sources = np.take(sent, sources, axis=1, mode="wrap")
            sent = np.maximum(sent_by_sources + delay_ps, sent) + after_ps
    return sent


def _staggered_direct(
    kind: CollectiveKind, ring: LogicalRing, size_bytes: int, starts_ps: Times
) -> Times:
    """Return the times when all concurrent messages have been processed."""
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    wait_ps = ring.endpoint_ns * PS_PER_NS
    reduce_ps = ring.reduce_ns(message) * PS_PER_NS if kind is _RS else 0
    sent = starts_ps + wait_ps
    received = sent
    for distance in range(1, n):
        delay_ps = ring.delay_ns(distance, message) * PS_PER_NS
        received = np.maximum(received, np.roll(sent, distance, axis=1) + delay_ps)
    return received + wait_ps + reduce_ps
