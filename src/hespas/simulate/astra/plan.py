"""Plan the rings, chunks and phases of collectives.

Source: ASTRA-sim's system layer. A collective of all devices runs along the dimensions of the
network, one logical ring each; a smaller group is one logical ring in the order of its list.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import Literal, TypeAlias

from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS, to_ns
from hespas.errors import SimulationError
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.tasks.graph import CollectiveTask

AlgorithmName: TypeAlias = Literal["ring", "direct", "halving-doubling", "double-binary-tree"]
"""The algorithms of `hespas.collectives.algorithms.ALGORITHMS` that ASTRA-sim has."""


def output_bytes(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return a member's output bytes from its input bytes."""
    match kind:
        case CollectiveKind.REDUCE_SCATTER:
            return size_bytes // members
        case CollectiveKind.ALL_GATHER:
            return size_bytes * members
        case _:
            return size_bytes


def task_text(task: CollectiveTask) -> str:
    """Return a collective's name in errors."""
    return f"{task.kind.name} {task.id} ({task.name})"


def collective_kind(task: CollectiveTask) -> CollectiveKind:
    """Return a supported kind; `SimulationError` for others."""
    if task.kind not in COMMON_KINDS:
        raise SimulationError(f"{task.kind.name} has no model here", location=task_text(task))
    return task.kind


_AR, _AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER

SUBGROUP_ENDPOINT_NS = 10
"""The endpoint wait of groups smaller than the system, whatever the system says."""


@frozen
class PlannedRing:
    """Rings of devices ``stride`` apart, or a smaller group, on a dimension's queues."""

    implementation: Implementation
    size: int
    stride: int = 0
    dimension: int = 0

    def members_with(self, device: int, group: tuple[int, ...] | None) -> tuple[Sequence[int], int]:
        """Return the members of a device's ring, and its position."""
        if group is not None:
            return group, group.index(device)
        position = device // self.stride % self.size
        first = device - position * self.stride
        return range(first, first + self.size * self.stride, self.stride), position


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a chunk along one ring.

    It begins with ``size_bytes``. Chunks wait in ``queues`` in turn. A ring turns backwards for
    queues that aren't in ``lower_queues``.
    """

    ring: int
    kind: CollectiveKind
    size_bytes: int
    queues: range
    lower_queues: range

    def queue(self, turn: int) -> int:
        """Return the queue for a chunk's turn."""
        return self.queues[turn % len(self.queues)]

    def direction(self, turn: int) -> int:
        """Return 1, or -1 for a ring that turns backwards."""
        return 1 if self.queue(turn) in self.lower_queues else -1


def chunks_of(system: System, kind: CollectiveKind, size_bytes: int) -> tuple[int, int]:
    """Return a collective's chunk count and chunk bytes."""
    splits = system.preferred_dataset_splits
    chunk_bytes = size_bytes // splits
    if kind is not _AG and chunk_bytes < system.device_count:
        chunk_bytes = system.device_count
        size_bytes = splits * chunk_bytes
    if chunk_bytes == 0:
        raise SimulationError(f"{size_bytes} bytes can't be cut into {splits} chunks")
    # A remainder makes one more chunk of full size.
    return ceil(size_bytes / chunk_bytes), chunk_bytes


def phases_of(
    system: System,
    kind: CollectiveKind,
    size_bytes: int,
    rings: Sequence[PlannedRing],
    queues: int,
) -> Iterator[Phase]:
    """Yield a chunk's phases along rings, in order."""
    # Imported here, so runs without collectives don't pay for it.
    from hespas.collectives.schedule import phase_order  # noqa: PLC0415

    is_cut = kind is not _AR or system.collective_optimization != "baseline"
    order = phase_order(kind, range(len(rings)))
    for index, phase in order if is_cut else [(index, kind) for index in range(len(rings))]:
        ring = rings[index]
        pool = _queue_pool(system, kind, ring.dimension, phase, queues)
        first = ring.dimension * queues
        lower = range(first, first + max(1, queues // 2))
        if queues == 1 and phase is _AG and kind is _AR:
            lower = range(0)
        yield Phase(index, phase, size_bytes, pool, lower)
        is_tree = ring.implementation.algorithm == "double-binary-tree"
        # A tree reduces all data, whatever the collective.
        size_bytes = output_bytes(_AR if is_tree else phase, ring.size, size_bytes)


def _queue_pool(
    system: System, kind: CollectiveKind, dimension: int, phase: CollectiveKind, queues: int
) -> range:
    """Return the queues that a phase's chunks use in turn."""
    first = dimension * queues
    is_cut = kind is _AR and system.collective_optimization != "baseline"
    if not is_cut or queues == 1:
        return range(first, first + queues)
    half = first + queues // 2
    return range(half, first + queues) if phase is _AG else range(first, half)


@frozen
class Plan:
    """The plan of every member: chunks passing all phases."""

    chunks: int
    phases: tuple[Phase, ...]
    rings: tuple[PlannedRing, ...]
    endpoint_ps: int
    is_subgroup: bool


class Planner:
    """Plans collectives on one system, each once."""

    def __init__(self, system: System, queues_per_dimension: int) -> None:
        self._system = system
        self._queues = queues_per_dimension
        self.everyone = cache(self._everyone)
        self.group = cache(self._group)

    def _everyone(
        self, kind: CollectiveKind, size_bytes: int, involved: tuple[bool, ...] | None
    ) -> Plan:
        rings = self.rings_of_everyone(kind, involved)
        return self._plan(kind, size_bytes, rings, is_subgroup=False)

    def rings_of_everyone(
        self, kind: CollectiveKind, involved: tuple[bool, ...] | None
    ) -> list[PlannedRing]:
        """Return the rings of all devices, one per involved dimension."""
        rings = self._world_rings(kind)
        if involved is not None:
            rings = [ring for ring, is_used in zip(rings, involved, strict=False) if is_used]
        rings = [ring for ring in rings if ring.size > 1]
        if not rings:
            raise SimulationError("the collective involves no dimension with several devices")
        return rings

    def _group(self, kind: CollectiveKind, size_bytes: int, members: int) -> Plan:
        ring = PlannedRing(implementation=group_implementation(self._system, kind), size=members)
        return self._plan(kind, size_bytes, [ring], is_subgroup=True)

    def _plan(
        self, kind: CollectiveKind, size_bytes: int, rings: list[PlannedRing], *, is_subgroup: bool
    ) -> Plan:
        chunks, chunk_bytes = chunks_of(self._system, kind, size_bytes)
        phases = phases_of(self._system, kind, chunk_bytes, rings, self._queues)
        wait_ns = SUBGROUP_ENDPOINT_NS if is_subgroup else endpoint_ns(self._system)
        return Plan(
            chunks=chunks,
            phases=tuple(phases),
            rings=tuple(rings),
            endpoint_ps=wait_ns * PS_PER_NS,
            is_subgroup=is_subgroup,
        )

    def _world_rings(self, kind: CollectiveKind) -> list[PlannedRing]:
        counts = [dimension.size for dimension in self._system.dimensions]
        rings: list[PlannedRing] = []
        for index, entry in enumerate(implementations(self._system, kind)):
            size, stride = counts[index], prod(counts[:index])
            if entry.is_one_ring:
                size, stride = prod(counts), 1
            ring = PlannedRing(implementation=entry, size=size, stride=stride, dimension=index)
            rings.append(ring)
            if entry.is_one_ring:
                break  # even after other dimensions, it ends the list
        return rings


_NAME = re.compile(
    rf"(one)?(ring|direct|halvingdoubling|doublebinarytree)([0-9]{{0,{MOST_DIGITS}}})",
    re.IGNORECASE,
)
_ALGORITHMS: Mapping[str, AlgorithmName] = {
    "ring": "ring",
    "direct": "direct",
    "halvingdoubling": "halving-doubling",
    "doublebinarytree": "double-binary-tree",
}


@dataclass(frozen=True, slots=True)
class Implementation:
    """An entry of ``<collective>-implementation``.

    ``window`` is the number of peers that a direct collective serves at once (None: all of them);
    ``is_one_ring`` puts all devices in one ring, whatever the dimensions.
    """

    algorithm: AlgorithmName
    window: int | None
    is_one_ring: bool


_RING = Implementation("ring", window=None, is_one_ring=False)


def parse_implementation(name: str) -> Implementation:
    """Parse an implementation; `SimulationError` for a name without model.

    >>> parse_implementation("oneDirect2")
    Implementation(algorithm='direct', window=2, is_one_ring=True)
    """
    match = _NAME.fullmatch(name)
    has_number = match is not None and match[3] and match[2].lower() != "direct"
    one_tree = match is not None and match[1] and match[2].lower() == "doublebinarytree"
    if match is None or has_number or one_tree:
        hint = "use ring, direct, halvingDoubling or doubleBinaryTree"
        raise SimulationError(f"the collective algorithm {name} has no model here", hint=hint)
    return Implementation(
        algorithm=_ALGORITHMS[match[2].lower()],
        window=int(match[3]) if match[3] else None,
        is_one_ring=match[1] is not None,
    )


def implementations(system: System, kind: CollectiveKind) -> tuple[Implementation, ...]:
    """Return a collective's implementation along each listed dimension."""
    names = system.implementations.get(kind)
    if not names:
        message = f"there is no {kind.option}-implementation"
        raise SimulationError(message, location=system.name, hint="add one to system.json")
    return tuple([parse_implementation(name) for name in names])


def group_implementation(system: System, kind: CollectiveKind) -> Implementation:
    """Return the implementation for a smaller group: the only entry, else a ring."""
    entries = implementations(system, kind)
    if len(entries) == 1 and entries[0].algorithm == "double-binary-tree":
        message = "doubleBinaryTree in a group smaller than the system has no model here"
        raise SimulationError(message, location=system.name)
    return entries[0] if len(entries) == 1 else _RING


PER_NODE = "per-node-custom-implementation"
"""The option that names a map from tasks to prefixes."""


def custom_option(kind: CollectiveKind) -> str:
    """Return the option for a kind's file prefix."""
    return f"{kind.option}-implementation-custom"


def has_custom_collectives(system: System) -> bool:
    """Return whether the system writes out any collective."""
    names = (PER_NODE, *map(custom_option, COMMON_KINDS))
    return any(system.options.get(name) for name in names)


_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Route:
    """The links of one dimension that a message crosses."""

    dimension: int
    hops: int


def bytes_per_ns(dimension: Dimension) -> float:
    """Return a link's bandwidth."""
    return dimension.bandwidth_bytes_per_s / _NS_PER_S


def endpoint_ns(system: System) -> int:
    """Return a device's wait before each message of a collective."""
    return round(to_ns(system.endpoint_delay_s))


def hops(dimension: Dimension, distance: int) -> int:
    """Return the link count of a distance in one dimension."""
    match dimension.shape:
        case Shape.FULLY_CONNECTED:
            return 1
        case Shape.SWITCH:
            return 2
        case _:
            distance %= dimension.size
            return min(distance, dimension.size - distance)


def first_difference(system: System, source: int, target: int) -> tuple[int, int]:
    """Return the first dimension that separates devices, and their distance."""
    for index, dimension in enumerate(system.dimensions):
        distance = target % dimension.size - source % dimension.size
        if distance:
            return index, distance
        source //= dimension.size
        target //= dimension.size
    return len(system.dimensions), 0


def route(system: System, source: int, target: int) -> Route:
    """Return the route between two different devices.

    Only the first dimension in which they differ counts; the others are free of charge.
    """
    index, distance = first_difference(system, source, target)
    if not distance:
        message = "a device has no route to itself"
        raise ValueError(message)
    return Route(index, hops(system.dimensions[index], distance))


def delay_ns(system: System, route: Route, size_bytes: int) -> int:
    """Return a message's ``floor(hops * latency + size / bandwidth)`` in ns."""
    dimension = system.dimensions[route.dimension]
    return int(route.hops * to_ns(dimension.latency_s) + size_bytes / bytes_per_ns(dimension))


def reduce_ns(system: System, size_bytes: int) -> int:
    """Return a reduction's two local reads and a write, each in whole ns."""
    bandwidth_bytes_per_s = system.local_memory_bandwidth_bytes_per_s
    if bandwidth_bytes_per_s is None:
        return 0
    return 3 * int(size_bytes / bandwidth_bytes_per_s * 1e9)


class Queues:
    """Queues that run ``width`` chunks at once, in order.

    The turn among several queues continues from collective to collective. Source: ASTRA-sim's
    stream scheduler and its queue levels.
    """

    __slots__ = ("_allocated", "_running", "_waiting", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._waiting: dict[int, deque[Callable[[], None]]] = {}
        self._running: dict[int, int] = {}
        self._allocated: dict[range, int] = {}

    def allocate(self, pool: range, count: int) -> int:
        """Return the first turn of new chunks in a pool."""
        first = self._allocated.get(pool, 0)
        self._allocated[pool] = (first + count) % len(pool)
        return first

    def enter(self, queue: int, start: Callable[[], None]) -> None:
        """Queue a chunk; `kick` calls ``start`` when it may run."""
        self._waiting.setdefault(queue, deque()).append(start)

    def kick(self, queue: int) -> None:
        """Start the chunks that may run."""
        waiting = self._waiting.get(queue)
        while waiting and self._running.get(queue, 0) < self._width:
            self._running[queue] = self._running.get(queue, 0) + 1
            waiting.popleft()()

    def leave(self, queue: int) -> None:
        """Remove a finished chunk from a queue and start others."""
        self._running[queue] -= 1
        self.kick(queue)
