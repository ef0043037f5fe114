"""Compute communication durations on a system by closed forms.

Source of every formula: ASTRA-sim's collective algorithms over a network without congestion, where
n members each wait E at an endpoint, D(m) for a message of m bytes, R(m) for a reduction.

The phases of a collective's chunks queue up as in ASTRA-sim's stream scheduler: every phase has a
queue, which runs a limited number of chunks at once, in order of arrival, and all members do so
alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.plan import (
    SUBGROUP_ENDPOINT_NS,
    AlgorithmName,
    Plan,
    PlannedRing,
    Planner,
    Queues,
    Route,
    collective_kind,
    delay_ns,
    endpoint_ns,
    first_difference,
    group_implementation,
    hops,
    reduce_ns,
    route,
    task_text,
)
from hespas.simulate.astra.relays import GroupShape, LogicalRing, Span, span
from hespas.simulate.communicators import Channel, Group, Members, check_group
from hespas.simulate.kernel import Kernel
from hespas.tasks.graph import CollectiveTask, SendTask, Task

if TYPE_CHECKING:
    from hespas.simulate.astra.dataflow import Times

Timing: TypeAlias = Route | GroupShape | None
"""The timing key of communication: a channel's route, a group's shape; None for all devices."""


def _distances(algorithm: AlgorithmName, size: int) -> Iterable[int]:
    match algorithm:
        case "ring":
            return (1,)
        case "direct":
            return range(1, size)
        case "halving-doubling":
            return [1 << level for level in range((size - 1).bit_length())]
        case "double-binary-tree":
            return ()


def _sending_pairs(
    algorithm: AlgorithmName, group: Members, distance: int
) -> Iterator[tuple[int, int]]:
    """Yield a group's pairs that send at a distance."""
    size = len(group)
    if algorithm != "halving-doubling":
        yield from ((group[i], group[(i + distance) % size]) for i in range(size))
        return
    for index in range(size - distance):
        if index // distance % 2 == 0:
            yield group[index], group[index + distance]


def _common_route(system: System, pairs: Iterable[tuple[int, int]]) -> Route | None:
    routes: dict[tuple[int, int], Route] = {}
    for source, target in pairs:
        # Pairs with equal distances from equal positions along the dimensions have equal routes.
        difference = first_difference(system, source, target)
        if difference not in routes:
            routes[difference] = route(system, source, target)
            if len(set(routes.values())) > 1:
                return None
    return next(iter(routes.values()), None)


Involved = tuple[bool, ...] | None
"""Whether a collective runs along each dimension; None for all of them."""


class ClosedForms:
    """Durations of communication on one system, each computed once.

    ``shape`` describes a group smaller than the system; None is all devices.
    """

    def __init__(self, tasks: Iterable[Task], system: System) -> None:
        self._system = system
        self._planner = Planner(system, queues_per_dimension=1)
        self._logical_ring = cache(self._make_logical_ring)
        self._span_of = cache(self._make_span)
        kinds = {
            collective_kind(task)
            for task in tasks
            if isinstance(task, CollectiveTask) and task.group_table is not None
        }
        self._algorithms: set[AlgorithmName] = {
            group_implementation(system, kind).algorithm for kind in kinds
        }

    def timing(self, group: Group) -> Timing:
        """Return a group's timing key, its route or shape."""
        check_group(group)
        if isinstance(group, Channel):
            return route(self._system, group.source, group.target)
        if len(group) == self._system.device_count:
            return None
        routes: list[tuple[AlgorithmName, int, Route | None]] = []
        for algorithm in sorted(self._algorithms):
            for distance in _distances(algorithm, len(group)):
                pairs = _sending_pairs(algorithm, group, distance)
                routes.append((algorithm, distance, _common_route(self._system, pairs)))
        return GroupShape(len(group), tuple(routes))

    def wait_ns(self, timing: Timing) -> int:
        """Return the endpoint wait before each message of a collective."""
        return endpoint_ns(self._system) if timing is None else SUBGROUP_ENDPOINT_NS

    def message_ns(self, task: SendTask, timing: Timing) -> int:
        """Return the duration of a message."""
        if not isinstance(timing, Route):
            raise SimulationError(f"send {task.id} ({task.name}) has no route")
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        return delay_ns(self._system, timing, task.size_bytes)

    def covers_group(self, task: CollectiveTask, timing: Timing) -> bool:
        """Return whether a collective synchronises its whole group, not only parts of it."""
        if timing is not None:
            return True
        rings = self._planner.rings_of_everyone(collective_kind(task), task.involved_dimensions)
        return prod(ring.size for ring in rings) >= self._system.device_count

    def span(self, task: CollectiveTask, shape: GroupShape | None) -> Span | None:
        """Return the duration of a collective whose members start together.

        The result is None without a closed form: for the double binary tree, and if members of a
        group are at unequal distances, and thus don't end together.
        """
        kind = collective_kind(task)
        try:
            return self._span_of(kind, task.size_bytes, task.involved_dimensions, shape)
        except SimulationError as error:
            error.location = task_text(task)
            raise

    def _plan(
        self, kind: CollectiveKind, size_bytes: int, involved: Involved, shape: GroupShape | None
    ) -> Plan:
        if shape is None:
            return self._planner.everyone(kind, size_bytes, involved)
        return self._planner.group(kind, size_bytes, shape.size)

    def _make_span(
        self, kind: CollectiveKind, size_bytes: int, involved: Involved, shape: GroupShape | None
    ) -> Span | None:
        plan = self._plan(kind, size_bytes, involved, shape)
        spans: list[Span] = []
        for phase in plan.phases:
            ring = plan.rings[phase.ring]
            logical, implementation = self._logical_ring(ring, shape), ring.implementation
            if logical is None:
                return None
            phase_span = span(
                implementation.algorithm,
                implementation.window,
                phase.kind,
                logical,
                phase.size_bytes,
            )
            if phase_span is None:
                return None
            spans.append(phase_span)
        total_ns = sum(phase_span.total_ns for phase_span in spans)
        if plan.chunks > 1:
            total_ns = _pipeline_ns(plan, spans, self._system.active_chunks_per_dimension)
        return Span(total_ns, spans[-1].last_wait_ns)

    def ends_ps(
        self, task: CollectiveTask, shape: GroupShape | None, starts_ps: Times
    ) -> Times | None:
        """Return each member's end from its start, or None.

        Times have a row for each group of the shape. The result is None without a closed form: for
        several chunks, a window of peers, and algorithms that
        `hespas.simulate.astra.dataflow.staggered_ends_ps` doesn't cover.
        """
        from hespas.simulate.astra.dataflow import staggered_ends_ps  # noqa: PLC0415 - numpy

        kind = collective_kind(task)
        plan = self._plan(kind, task.size_bytes, task.involved_dimensions, shape)
        if plan.chunks > 1:
            return None
        ends_ps = starts_ps
        for phase in plan.phases:
            ring = plan.rings[phase.ring]
            logical = self._logical_ring(ring, shape)
            window = ring.implementation.window
            if logical is None or (window is not None and window < ring.size - 1):
                return None
            # The members of a ring are ``stride`` apart: bring them next to each other.
            blocks = ends_ps.reshape(-1, ring.size, ring.stride or 1).swapaxes(1, 2)
            ended = staggered_ends_ps(
                ring.implementation.algorithm,
                phase.kind,
                logical,
                phase.size_bytes,
                blocks.reshape(-1, ring.size),
                direction=phase.direction(0),
            )
            if ended is None:
                return None
            ends_ps = ended.reshape(blocks.shape).swapaxes(1, 2).reshape(ends_ps.shape)
        return ends_ps

    def ends_of_classes(
        self,
        task: CollectiveTask,
        shape: GroupShape | None,
        classes: Sequence[int],
        starts_ps: Mapping[int, int],
    ) -> Mapping[int, int] | None:
        """Return the ends of classes from their starts, or None.

        The result is None without a closed form, or if members of one class don't end together.
        """
        import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

        starts = np.array([[starts_ps[member_class] for member_class in classes]], dtype=np.int64)
        ends = self.ends_ps(task, shape, starts)
        if ends is None:
            return None
        distinct = set(zip(classes, ends[0].tolist(), strict=True))
        return dict(distinct) if len(distinct) == len(set(classes)) else None

    def _make_logical_ring(self, ring: PlannedRing, shape: GroupShape | None) -> LogicalRing | None:
        """Return a ring with its delays; None for unequal ones."""
        system = self._system
        routes: Mapping[int, Route | None]
        if shape is not None:
            algorithm = ring.implementation.algorithm
            routes = {
                distance: common_route
                for route_algorithm, distance, common_route in shape.routes
                if route_algorithm == algorithm
            }
            if None in routes.values():
                return None
        elif ring.implementation.is_one_ring:
            routes = {distance: route(system, 0, distance) for distance in range(1, ring.size)}
        else:
            dimension = system.dimensions[ring.dimension]
            routes = {
                distance: Route(ring.dimension, hops(dimension, distance))
                for distance in range(1, ring.size)
            }

        def delay(distance: int, size_bytes: int) -> int:
            common = routes[distance]
            if common is None:
                raise ValueError(distance)
            return delay_ns(system, common, size_bytes)

        return LogicalRing(
            size=ring.size,
            endpoint_ns=self.wait_ns(shape),
            delay_ns=cache(delay),
            reduce_ns=partial(reduce_ns, system),
            is_subgroup=shape is not None,
        )


def _pipeline_ns(plan: Plan, spans: Sequence[Span], width: int) -> int:
    """Return the end of a plan's last chunk."""
    kernel, queues = Kernel(), Queues(width)
    position = [-1] * plan.chunks

    def start(chunk: int) -> None:
        kernel.after(spans[position[chunk]].total_ns * PS_PER_NS, proceed, chunk)

    def proceed(chunk: int) -> None:
        finished_phase = position[chunk]
        position[chunk] = next_phase = finished_phase + 1
        if next_phase < len(spans):
            queues.enter(plan.phases[next_phase].queue(chunk), partial(start, chunk))
        if finished_phase >= 0:
            queues.leave(plan.phases[finished_phase].queue(chunk))
        if next_phase < len(spans):
            queues.kick(plan.phases[next_phase].queue(chunk))

    for chunk in range(plan.chunks):
        proceed(chunk)
    kernel.run()
    return kernel.now_ps // PS_PER_NS
