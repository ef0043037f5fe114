"""How long a collective takes on a system, by closed forms.

The phases of its chunks take what `hespas.simulate.astra.durations` says, and queue up as in
ASTRA-sim's stream scheduler: every phase has a queue, which runs so many chunks at once, in order
of arrival, and all members of the collective do so alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import ceil, prod
from typing import TYPE_CHECKING, assert_never

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
    Route,
    delay_ns,
    endpoint_ns,
    group_implementation,
    hops,
    reduce_ns,
    route,
)
from hespas.simulate.kernel import Kernel

if TYPE_CHECKING:
    from hespas.collectives.schedule import Schedule
    from hespas.simulate.astra.dataflow import Times

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's size, and its routes by algorithm and by distance in its list.

    A route is None where members at that distance do not all have equal routes.
    """

    size: int
    routes: tuple[tuple[AlgorithmName, int, Route | None], ...]


def group_shape(system: System, group: Group, algorithms: frozenset[AlgorithmName]) -> GroupShape:
    """Return the shape of a group, with the distances that its algorithms use.

    Raises `SimulationError` for a group of one device.
    """
    if len(group) < 2:
        message = f"the group {list(group)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")
    routes: list[tuple[AlgorithmName, int, Route | None]] = [
        (algorithm, distance, _common_route(system, _pairs(algorithm, group, distance)))
        for algorithm in sorted(algorithms)
        for distance in _distances(algorithm, len(group))
    ]
    return GroupShape(len(group), tuple(routes))


def group_algorithms(system: System, kinds: Iterable[CollectiveKind]) -> frozenset[AlgorithmName]:
    """Return the algorithms that groups smaller than the system use for some collectives."""
    return frozenset(group_implementation(system, kind).algorithm for kind in kinds)


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
        case _:
            assert_never(algorithm)


def _pairs(algorithm: AlgorithmName, group: Group, distance: int) -> Iterator[tuple[int, int]]:
    """Yield the members that send to each other: around the list, or within its blocks."""
    size = len(group)
    if algorithm != "halving-doubling":
        yield from ((group[i], group[(i + distance) % size]) for i in range(size))
        return
    for index in range(size - distance):
        if index // distance % 2 == 0:
            yield group[index], group[index + distance]


def _common_route(system: System, pairs: Iterable[tuple[int, int]]) -> Route | None:
    common: Route | None = None
    # Pairs that are as far apart from places alike along the dimensions have equal routes.
    sizes = [dimension.npus_count for dimension in system.dimensions]
    known: set[tuple[int, int]] = set()
    for source, target in pairs:
        place = _first_difference(sizes, source, target)
        if place in known:
            continue
        known.add(place)
        one = route(system, source, target)
        if common not in (None, one):
            return None
        common = one
    return common


def _first_difference(sizes: Sequence[int], source: int, target: int) -> tuple[int, int]:
    """Return the first dimension in which two devices differ, and by how much."""
    for index, size in enumerate(sizes):
        distance = target % size - source % size
        if distance:
            return index, distance
        source //= size
        target //= size
    return len(sizes), 0


Involved = tuple[bool, ...] | None
"""Of each dimension, whether a collective runs along it; None for all of them."""


class CollectiveDurations:
    """How long collectives take on one system, each computed once.

    Of a collective of a smaller group, ``shape`` is the group's; it is None for all devices.
    """

    def __init__(self, system: System, queues_per_dimension: int) -> None:
        self._system = system
        self._planner = Planner(system, queues_per_dimension)
        self._width = ceil(system.active_chunks_per_dimension / queues_per_dimension)
        self._logical_ring = cache(self._make_logical_ring)
        self.span = cache(self._span)

    def _plan(
        self, kind: CollectiveKind, size_bytes: int, involved: Involved, shape: GroupShape | None
    ) -> Plan:
        if shape is None:
            return self._planner.everyone(kind, size_bytes, involved)
        return self._planner.group(kind, size_bytes, shape.size)

    def joins_everyone(self, kind: CollectiveKind, involved: Involved) -> bool:
        """Return whether a collective of all devices joins them all, rather than parts of them."""
        rings = self._planner.rings_of_everyone(kind, involved)
        return prod(ring.size for ring in rings) >= self._system.device_count

    def _span(
        self, kind: CollectiveKind, size_bytes: int, involved: Involved, shape: GroupShape | None
    ) -> Span | None:
        """Return how long a collective takes whose members start together.

        None where there is no closed form: for the double binary tree, and where members of a
        group are at unequal distances, and thus don't end together.
        """
        plan = self._plan(kind, size_bytes, involved, shape)
        spans: list[Span] = []
        for phase in plan.phases:
            ring = plan.rings[phase.ring]
            logical = self._logical_ring(ring, shape)
            if logical is None:
                return None
            implementation = ring.implementation
            one = span(
                implementation.algorithm,
                implementation.window,
                phase.kind,
                logical,
                phase.size_bytes,
            )
            if one is None:
                return None
            spans.append(one)
        last_wait_ns = spans[-1].last_wait_ns
        if plan.chunks == 1:
            return Span(sum(one.total_ns for one in spans), last_wait_ns)
        stages = [
            [
                Stage(phase.queue(number), one.total_ns)
                for phase, one in zip(plan.phases, spans, strict=True)
            ]
            for number in range(plan.chunks)
        ]
        return Span(pipeline_ns(stages, self._width), last_wait_ns)

    def ends_ps(
        self,
        kind: CollectiveKind,
        size_bytes: int,
        involved: Involved,
        shape: GroupShape | None,
        starts_ps: Times,
    ) -> Times | None:
        """Return when each member ends, given when each starts, as an array of the same form.

        It has a row for each group of the shape; for all devices, a single one. None where there
        is no closed form: for several chunks, a window of peers, and what
        `hespas.simulate.astra.dataflow.staggered_ends_ps` doesn't cover.
        """
        from hespas.simulate.astra.dataflow import (  # noqa: PLC0415 - numpy comes with it
            staggered_ends_ps,
        )

        plan = self._plan(kind, size_bytes, involved, shape)
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

    def _make_logical_ring(self, ring: PlannedRing, shape: GroupShape | None) -> LogicalRing | None:
        """Return a ring with the delays in it; None where not all members see the same ones."""
        system = self._system
        routes: Mapping[int, Route | None]
        if shape is not None:
            algorithm = ring.implementation.algorithm
            routes = {distance: one for of, distance, one in shape.routes if of == algorithm}
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

        is_subgroup = shape is not None
        return LogicalRing(
            size=ring.size,
            endpoint_ns=SUBGROUP_ENDPOINT_NS if is_subgroup else endpoint_ns(system),
            delay_ns=cache(delay),
            reduce_ns=partial(reduce_ns, system),
            is_subgroup=is_subgroup,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase of one chunk: the queue that it waits in, and how long it then takes."""

    queue: int
    duration_ns: int


def pipeline_ns(chunks: Sequence[Sequence[Stage]], width: int) -> int:
    """Return when the last of the chunks, which are all there from the start, is through.

    >>> pipeline_ns([[Stage(0, 5), Stage(1, 3)]] * 3, width=1)
    18
    """
    kernel = Kernel()
    position = [-1] * len(chunks)
    waiting: dict[int, deque[int]] = {}
    running: dict[int, int] = {}

    def proceed(chunk: int) -> None:
        stages = chunks[chunk]
        before = position[chunk]
        position[chunk] = after = before + 1
        if after < len(stages):
            waiting.setdefault(stages[after].queue, deque()).append(chunk)
        if before >= 0:
            running[stages[before].queue] -= 1
            start_waiting(stages[before].queue)
        if after < len(stages):
            start_waiting(stages[after].queue)

    def start_waiting(queue: int) -> None:
        chunks_there = waiting.get(queue)
        while chunks_there and running.get(queue, 0) < width:
            chunk = chunks_there.popleft()
            running[queue] = running.get(queue, 0) + 1
            duration_ns = chunks[chunk][position[chunk]].duration_ns
            kernel.after(duration_ns * PS_PER_NS, proceed, chunk)

    for chunk in range(len(chunks)):
        proceed(chunk)
    kernel.run()
    return kernel.now_ps // PS_PER_NS


_AG, _RS = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_AR, _A2A = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRing:
    """A logical ring of ``size`` members, all of which see the same distances.

    ``delay_ns`` gives D for (distance in the ring, bytes), ``reduce_ns`` R for bytes.
    ``is_subgroup`` marks a group smaller than the system, which ASTRA-sim treats differently.
    """

    size: int
    endpoint_ns: int
    delay_ns: Callable[[int, int], int]
    reduce_ns: Callable[[int], int]
    is_subgroup: bool


@dataclass(frozen=True, slots=True)
class Span:
    """How long something takes, and how long before its end the last wait begins."""

    total_ns: int
    last_wait_ns: int


def ring_bytes_sent(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return the bytes that each member of a ring sends.

    An all-reduce sends ``2 (n - 1) / n`` of its buffer, the others as many messages as steps.

    >>> ring_bytes_sent(CollectiveKind.ALL_REDUCE, 4, 1000)
    1500
    """
    return ring_steps(kind, members) * message_bytes(kind, members, size_bytes)


def span(
    algorithm: AlgorithmName,
    window: int | None,
    kind: CollectiveKind,
    ring: LogicalRing,
    size_bytes: int,
) -> Span | None:
    """Return how long ``kind`` takes; None for the double binary tree, which has no closed form.

    ``window`` limits how many peers a direct collective serves at once. Raises `SimulationError`
    for halving-doubling among a number that isn't a power of two, and for a halving-doubling
    all-to-all, which doesn't exist.
    """
    match algorithm:
        case "ring":
            return _ring(kind, ring, size_bytes)
        case "direct":
            return _direct(kind, ring, size_bytes, min(window or ring.size, ring.size - 1))
        case "halving-doubling":
            return _halving_doubling(kind, ring, size_bytes)
        case "double-binary-tree":
            return None
        case _:
            assert_never(algorithm)


def message_bytes(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return the size of each message of a ring or a direct collective."""
    return size_bytes if kind is _AG else size_bytes // members


def ring_steps(kind: CollectiveKind, members: int) -> int:
    """Return how many messages each member of a ring sends."""
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return 2 * (members - 1)
        case CollectiveKind.REDUCE_SCATTER | CollectiveKind.ALL_GATHER:
            return members - 1
        case _:
            # All-to-all: data for the k-th neighbour is handed on k times, 1 + 2 + ... + (n - 1).
            return members * (members - 1) // 2


def _ring(kind: CollectiveKind, ring: LogicalRing, size_bytes: int) -> Span:
    """Return (steps + 1) E + steps D, and for a reduction (n - 1) R."""
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    steps = ring_steps(kind, n)
    reduce_ns = ring.reduce_ns(message)
    total_ns = (steps + 1) * ring.endpoint_ns + steps * ring.delay_ns(1, message)
    if kind in (_AR, _RS):
        total_ns += (n - 1) * reduce_ns
    return Span(total_ns, reduce_ns if kind is _RS else ring.endpoint_ns)


def _direct(kind: CollectiveKind, ring: LogicalRing, size_bytes: int, window: int) -> Span:
    """Return the time to serve all peers at once: 2E + D, and R per reduction.

    An all-reduce does so twice: 3E + 2D. In a group smaller than the system, of more than two
    members, its second half pays R again. D is that of the farthest peer. There is no such
    formula for a smaller window, nor for an all-reduce with peers at several distances, whose
    halves overlap.
    """
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    delays_ns = tuple([ring.delay_ns(distance, message) for distance in range(1, n)])
    reduce_ns = ring.reduce_ns(message)
    if window < n - 1 or (kind is _AR and len(set(delays_ns)) > 1):
        return _rotation(kind, ring, window, delays_ns, reduce_ns)
    rounds = 2 if kind is _AR else 1
    twice = kind is _AR and ring.is_subgroup and n > 2
    reductions = {_AR: 2 if twice else 1, _RS: 1}.get(kind, 0)
    total_ns = (rounds + 1) * ring.endpoint_ns + rounds * max(delays_ns) + reductions * reduce_ns
    return Span(total_ns, reduce_ns if kind is _RS or twice else ring.endpoint_ns)


def _rotation(
    kind: CollectiveKind,
    ring: LogicalRing,
    window: int,
    delays_ns: tuple[int, ...],
    reduce_ns: int,
) -> Span:
    peers = len(delays_ns)
    rotation = Rotation(
        window=window,
        peers=peers,
        steps=2 * peers if kind is _AR else peers,
        is_all_reduce=kind is _AR,
        is_reduce_scatter=kind is _RS,
        later_per_round=peers * window if ring.is_subgroup else window,
        endpoint_ns=ring.endpoint_ns,
        reduce_ns=reduce_ns,
        delays_ns=delays_ns,
    )
    return Span(rotation_ns(rotation), ring.endpoint_ns)


def halving_doubling_steps(
    kind: CollectiveKind, members: int, size_bytes: int
) -> list[tuple[int, int]]:
    """Return the (distance to the partner, bytes) of each message of halving-doubling.

    Raises `SimulationError` among a number that isn't a power of two, and for an all-to-all.

    >>> halving_doubling_steps(CollectiveKind.ALL_GATHER, 4, 100)
    [(2, 100), (1, 200)]
    """
    schedule = halving_doubling_schedule(kind, members)
    return [
        (rounds.pattern.first, schedule.message_bytes(rounds, size_bytes))
        for rounds in schedule.rounds
    ]


def halving_doubling_schedule(kind: CollectiveKind, members: int) -> Schedule:
    """Return the schedule of halving-doubling; raises as `halving_doubling_steps` does."""
    # Most runs do without, and save the import.
    from hespas.collectives.algorithms import HALVING_DOUBLING  # noqa: PLC0415

    if members & members - 1:
        raise SimulationError(f"halvingDoubling among {members}, which is not a power of two")
    if kind is _A2A:
        raise SimulationError("there is no all-to-all by halvingDoubling")
    return HALVING_DOUBLING.schedule(kind, members)


def _halving_doubling(kind: CollectiveKind, ring: LogicalRing, size_bytes: int) -> Span:
    """Return (steps + 1) E and the sum of D over messages that halve, double, or both.

    A reduction adds R of every message of the first half but the first.
    """
    steps = halving_doubling_steps(kind, ring.size, size_bytes)
    levels = ring.size.bit_length() - 1
    total_ns = (len(steps) + 1) * ring.endpoint_ns
    total_ns += sum(ring.delay_ns(distance, message) for distance, message in steps)
    if kind is not _AG:
        total_ns += sum(ring.reduce_ns(message) for _, message in steps[1:levels])
    return Span(total_ns, ring.endpoint_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A direct collective that serves a window of peers at a time, at most ``window`` messages.

    All members do the same at the same times, so one stands for all: what it sends at a distance
    arrives when what it awaits from that distance does. Of ``steps`` messages, message k goes to
    the ``k mod peers``-th next member and takes ``delays_ns`` of that one. Of the messages handed
    in, ``window`` in each round are never reduced; the next ``later_per_round`` are, in a
    reduce-scatter always, in an all-reduce in odd rounds.
    """

    window: int
    peers: int
    steps: int
    is_all_reduce: bool
    is_reduce_scatter: bool
    later_per_round: int
    endpoint_ns: int
    reduce_ns: int
    delays_ns: tuple[int, ...]


def rotation_ns(rotation: Rotation) -> int:
    """Return the time from the start until all messages are sent, received and handed in."""
    return _RotatingMember(rotation).run()


class _RotatingMember:
    """One member: tokens allow it to send, and every message handed in makes one."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._kernel = Kernel()
        self._queue: deque[int] = deque()
        self._handed_in = self._received = self._tokens = 0
        self._left = rotation.steps
        self._first_left = self._later_left = 0
        self._is_odd_round = False

    def run(self) -> int:
        for _ in range(self._rotation.window):
            self._hand_in()
        self._kernel.run()
        return self._kernel.now_ps // PS_PER_NS

    def _hand_in(self) -> None:
        rotation = self._rotation
        reduce_ns = rotation.reduce_ns if self._is_reduced() else 0
        self._queue.append(self._handed_in % rotation.peers)
        self._handed_in += 1
        self._kernel.after((rotation.endpoint_ns + reduce_ns) * PS_PER_NS, self._take_token)

    def _is_reduced(self) -> bool:
        rotation = self._rotation
        if self._first_left == self._later_left == 0:
            self._first_left, self._later_left = rotation.window, rotation.later_per_round
            self._is_odd_round = not self._is_odd_round
        if self._first_left:
            self._first_left -= 1
            return False
        self._later_left -= 1
        return rotation.is_reduce_scatter or (rotation.is_all_reduce and self._is_odd_round)

    def _take_token(self, _: object) -> None:
        rotation = self._rotation
        self._tokens += 1
        if not rotation.is_all_reduce or self._left > rotation.peers:
            self._send()
        elif self._received >= rotation.peers:
            # The second half begins only when all of the first has come.
            for _ in range(rotation.window):
                self._send()
        if self._left == 0 and self._tokens == rotation.window:
            self._kernel.stop()

    def _send(self) -> None:
        if not (self._left and self._tokens and self._queue):
            return
        self._left -= 1
        self._tokens -= 1
        delay_ns = self._rotation.delays_ns[self._queue.popleft()]
        self._kernel.after(delay_ns * PS_PER_NS, self._receive)

    def _receive(self, _: object) -> None:
        self._received += 1
        self._hand_in()
