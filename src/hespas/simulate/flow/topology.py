"""The links of a network by number, and the routes of many messages at once, as arrays.

A `Topology` says which links a message crosses, how wide a link is, and what its name is. It is of
dimensions, of which links and routes are computed, or of a graph of nodes, of which links are
listed and routes found. A cluster may override single links.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate, combinations, count, pairwise
from typing import TypeAlias, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from hespas.errors import HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    DragonflyRouting,
    Interconnect,
    Shape,
)
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph
from hespas.simulate.kernel import check_memory

Integers: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]

Links: TypeAlias = tuple[int, ...]
"""The numbers of the links that a message crosses."""
Crossing: TypeAlias = tuple[Integers, Integers]
"""Messages and links: the k-th message crosses the k-th link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Which message crosses which link: entry k says that ``message[k]`` crosses ``link[k]``.

    ``latency_ns`` has the sum over the links of each message, and ``dimensions`` the dimensions
    that each message crosses, as a set of bits.
    """

    message: Integers
    link: Integers
    latency_ns: Reals
    dimensions: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``count`` links that are alike, numbered behind those of the parts before."""

    name: str
    count: int
    bytes_per_ns: float
    latency_s: float
    dimension: int | None = None

    @property
    def is_of_leaf(self) -> bool:
        """Whether these are links between leaf switches and spines."""
        return ".leaf_" in self.name


def make_topology(interconnect: Interconnect, cluster: Cluster | None = None) -> Topology:
    """Return the links of a network, of which a cluster may override some.

    Raises `HardwareError` for an override of a link that isn't there.
    """
    match interconnect.fabric:
        case Dimensions() as fabric:
            return Topology(_DimensionLinks(fabric), cluster)
        case Dragonfly() as fabric:
            graph = dragonfly_graph(fabric)
            return Topology(_GraphLinks(graph, _dragonfly_route(fabric, graph)), cluster)
        case Graph() as fabric:
            return Topology(_GraphLinks(fabric, _ShortestRoutes(fabric).route), cluster)
        case _:
            assert_never(interconnect.fabric)


class Topology:
    """The links of a network by number, and which of them messages cross.

    Links of the cluster without bandwidth are dead: messages go around them by fewest moves.
    """

    def __init__(self, network: _DimensionLinks | _GraphLinks, cluster: Cluster | None) -> None:
        parts = network.parts
        self._network = network
        self._first = np.array([0, *accumulate(part.count for part in parts)], dtype=np.int64)
        self._bytes_per_ns = np.array([part.bytes_per_ns for part in parts])
        self._latency_ns = np.array([round(part.latency_s * 1e9, 6) for part in parts])
        self._dimension = np.array(
            [0 if part.dimension is None else 1 << part.dimension for part in parts], dtype=np.int64
        )
        self._source = "" if cluster is None else cluster.source
        self._overrides: dict[int, LinkOverride] = {}
        for override in () if cluster is None else cluster.links:
            link = self.link_named(override.link)
            if link is None:
                hint = f"links are named as {self.name(0)}"
                message = f"there is no link {override.link!r}"
                raise HardwareError(message, location=self._source, hint=hint)
            self._overrides[link] = override
        self._dead = frozenset(link for link, one in self._overrides.items() if one.is_dead)
        self._detour = cache(self._find_detour)

    def _parts(self, links: Integers) -> Integers:
        return np.searchsorted(self._first, links, side="right") - 1

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages from sources to targets, one by one.

        Raises `HardwareError` where every way crosses a dead link.
        """
        starts = np.asarray(sources, dtype=np.int64)
        goals = np.asarray(targets, dtype=np.int64)
        message, link = self._network.crossed(starts, goals)
        if self._dead:
            message, link = self._around(message, link, starts, goals)
        part = self._parts(link)
        late_ns, along = self._latency_ns[part], self._dimension[part]
        for number, override in self._overrides.items():
            late_ns[link == number] += override.extra_latency_s * 1e9
        dimensions = np.zeros(len(starts), dtype=np.int64)
        for bit in {*self._dimension.tolist()} - {0}:
            dimensions[message[along == bit]] |= bit
        latency_ns = np.zeros(len(starts))
        latency_ns += np.bincount(message, weights=late_ns, minlength=len(starts))
        return Routes(
            message=message, link=link, latency_ns=np.round(latency_ns, 6), dimensions=dimensions
        )

    def _around(
        self, message: Integers, link: Integers, starts: Integers, goals: Integers
    ) -> Crossing:
        moved = sorted({*message[np.isin(link, list(self._dead))].tolist()})
        ways = [self._detour(int(starts[one]), int(goals[one])) for one in moved]
        stays = ~np.isin(message, moved)
        detoured = np.repeat(np.array(moved, dtype=np.int64), [len(way) for way in ways])
        links = np.array([number for way in ways for number in way], dtype=np.int64)
        return np.concatenate([message[stays], detoured]), np.concatenate([link[stays], links])

    def _find_detour(self, source: int, target: int) -> Links:
        way = self._network.detour(source, target, self._dead)
        if way is None:
            dead = ", ".join(self.name(link) for link in sorted(self._dead)[:3])
            raise HardwareError(
                f"every way from device {source} to device {target} crosses a dead link: "
                f"{dead} has a bandwidth_scale of 0",
                location=self._source,
                hint="give it some bandwidth, or leave its device out",
            )
        return way

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        numbers = np.asarray(links, dtype=np.int64)
        result = self._bytes_per_ns[self._parts(numbers)]
        for link, override in self._overrides.items():
            here = numbers == link
            if override.bandwidth_bytes_per_s is not None:
                result[here] = override.bandwidth_bytes_per_s / 1e9
            result[here] *= override.bandwidth_scale
        return result

    def name(self, link: int) -> str:
        """Return what people call a link."""
        part = int(self._parts(np.array(link)))
        return self._network.name(part, link - int(self._first[part]))

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        place = self._network.find(name)
        if place is None:
            return None
        link = int(self._first[place[0]]) + place[1]
        return link if link < self._first[-1] and self.name(link) == name else None


_PARTS = {
    Shape.RING: ("next", "previous"),
    Shape.LINE: ("next", "previous"),
    Shape.SWITCH: ("up", "down"),
    Shape.FAT_TREE: ("up", "down", "leaf_up", "leaf_down"),
    Shape.FULLY_CONNECTED: ("to",),
}
"""What links each device has along a dimension, and each leaf switch (``leaf_``), one of each."""
_NAME = re.compile(r"(dim[0-9]+\.[a-z_]+)\.([0-9]+)(?:\.([0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """One dimension, along which devices are ``stride`` apart.

    ``first`` are the first links of its parts.
    """

    dimension: Dimension
    stride: int
    first: tuple[int, ...]

    def coordinate(self, devices: Integers) -> Integers:
        return devices // self.stride % self.dimension.size


class _DimensionLinks:
    """Dimensions, which a message crosses one after the other.

    A link is called ``dim0.up.3``: the dimension, the part, the device or leaf.
    """

    def __init__(self, fabric: Dimensions) -> None:
        self.parts: list[Part] = []
        self._axes: list[_Axis] = []
        self._axis_of_part: list[_Axis] = []
        links, stride = 0, 1
        for index, dimension in enumerate(fabric.dimensions):
            parts = list(_parts_of(index, dimension, fabric.device_count))
            first = list(accumulate((part.count for part in parts), initial=links))
            axis = _Axis(dimension=dimension, stride=stride, first=tuple(first[:-1]))
            self._axes.append(axis)
            self._axis_of_part += [axis] * len(parts)
            self.parts += parts
            links, stride = first[-1], stride * dimension.size

    def crossed(self, sources: Integers, targets: Integers) -> Crossing:
        places = sources
        messages: list[Integers] = [np.zeros(0, dtype=np.int64)]
        links: list[Integers] = [np.zeros(0, dtype=np.int64)]
        for axis in self._axes:
            here, there = axis.coordinate(places), axis.coordinate(targets)
            (moving,) = np.nonzero(here != there)
            if len(moving):
                for which, link in _cross(axis, places[moving], here[moving], there[moving]):
                    messages.append(moving[which])
                    links.append(link)
                places = places + (there - here) * axis.stride
        return np.concatenate(messages), np.concatenate(links)

    def name(self, part: int, index: int) -> str:
        axis, head = self._axis_of_part[part], self.parts[part].name
        if axis.dimension.is_hashed and self.parts[part].is_of_leaf:
            leaf, spine = divmod(index, axis.dimension.spines or 1)
            return f"{head}.{leaf}.{spine}"
        if axis.dimension.shape is not Shape.FULLY_CONNECTED:
            return f"{head}.{index}"
        source, coordinate = divmod(index, axis.dimension.size)
        own = source // axis.stride % axis.dimension.size
        return f"{head}.{source}.{source + (coordinate - own) * axis.stride}"

    def find(self, name: str) -> tuple[int, int] | None:
        match = _NAME.fullmatch(name)
        part = next((n for n, one in enumerate(self.parts) if match and one.name == match[1]), None)
        if match is None or part is None:
            return None
        axis, index = self._axis_of_part[part], int(match[2])
        if axis.dimension.shape is Shape.FULLY_CONNECTED and match[3] is not None:
            coordinate = int(match[3]) // axis.stride % axis.dimension.size
            index = index * axis.dimension.size + coordinate
        if axis.dimension.is_hashed and self.parts[part].is_of_leaf:
            index = index * (axis.dimension.spines or 1) + int(match[3] or 0)
        return part, index

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return the shortest route without dead links, if any.

        Where several ways are equally short, the ends decide, so that messages spread.
        """

        def moves(device: int) -> list[Move[int]]:
            all_moves = [move for axis in self._axes for move in _moves(axis, device)]
            alive = [(node, links) for node, links in all_moves if dead.isdisjoint(links)]
            turn = _spread(source, target, device) % len(alive) if alive else 0
            return [*alive[turn:], *alive[:turn]]

        def left(device: int) -> int:
            return sum(_moves_left(axis, device, target) for axis in self._axes)

        return _shortest_way(source, target, moves, left)


def _parts_of(index: int, dimension: Dimension, devices: int) -> Iterator[Part]:
    leaf_size = dimension.leaf_size or 1
    full = dimension.shape is Shape.FULLY_CONNECTED
    own = Part(
        name="",
        count=devices * (dimension.size if full else 1),
        bytes_per_ns=dimension.parameters.bandwidth_bytes_per_s / 1e9,
        latency_s=dimension.parameters.latency_s,
        dimension=index,
    )
    spines = dimension.spines or 1
    leaf = replace(
        own,
        count=devices // leaf_size * spines,
        bytes_per_ns=own.bytes_per_ns * (leaf_size / dimension.oversubscription / spines),
    )
    for name in _PARTS[dimension.shape]:
        yield replace(leaf if name.startswith("leaf_") else own, name=f"dim{index}.{name}")


def _cross(
    axis: _Axis, places: Integers, here: Integers, there: Integers, spine: Integers | None = None
) -> list[Crossing]:
    """Return what links messages cross along a dimension; None: the hash chooses each spine."""
    every, first = np.arange(len(places)), axis.first
    goals = places + (there - here) * axis.stride
    match axis.dimension.shape:
        case Shape.FULLY_CONNECTED:
            return [(every, first[0] + places * axis.dimension.size + there)]
        case Shape.SWITCH:
            return [(every, first[0] + places), (every, first[1] + goals)]
        case Shape.FAT_TREE:
            leaf, other = _leaf(axis, places), _leaf(axis, goals)
            (climbing,) = np.nonzero(leaf != other)
            spines = axis.dimension.spines or 1
            if spine is None:
                spine = _spread(places, goals, 0, axis.dimension.seed) % spines
            up, down = spines * leaf + spine, spines * other + spine
            return [
                (every, first[0] + places),
                (every, first[1] + goals),
                (climbing, first[2] + up[climbing]),
                (climbing, first[3] + down[climbing]),
            ]
        case Shape.RING:
            return [
                _around_ring(axis, places, here, _shorter_way(here, there, axis.dimension.size))
            ]
        case Shape.LINE:
            return [_around_ring(axis, places, here, there - here)]
        case _:
            assert_never(axis.dimension.shape)


def _leaf(axis: _Axis, devices: Integers) -> Integers:
    size, leaf_size = axis.dimension.size, axis.dimension.leaf_size or 1
    block = devices // (axis.stride * size) * axis.stride + devices % axis.stride
    return block * (size // leaf_size) + axis.coordinate(devices) // leaf_size


def _shorter_way(here: Integers, there: Integers, size: int) -> Integers:
    """Return how far a message goes around a ring; below 0 downwards.

    Where both ways are equally long, every other device sends upwards and the rest downwards.
    """
    up = (there - here) % size
    goes_up = (2 * up < size) | ((2 * up == size) & (here % 2 == 0))
    return np.where(goes_up, up, up - size)


def _around_ring(axis: _Axis, places: Integers, here: Integers, distance: Integers) -> Crossing:
    hops, step = np.abs(distance), np.sign(distance)
    which = np.repeat(np.arange(len(places)), hops)
    taken = np.arange(len(which)) - np.repeat(np.cumsum(hops) - hops, hops)
    coordinate = (here[which] + step[which] * taken) % axis.dimension.size
    device = places[which] + (coordinate - here[which]) * axis.stride
    return which, np.where(step[which] > 0, *axis.first) + device


def _moves(axis: _Axis, device: int) -> list[Move[int]]:
    """Return a device's neighbours along a dimension, and the links to them."""
    size, shape = axis.dimension.size, axis.dimension.shape
    here = device // axis.stride % size
    if shape in {Shape.RING, Shape.LINE}:
        return [
            (device + (there % size - here) * axis.stride, (first + device,))
            for there, first in zip((here + 1, here - 1), axis.first, strict=True)
            if size > 1 and (shape is Shape.RING or 0 <= there < size)
        ]
    spines = axis.dimension.spines or 1
    there = np.repeat([other for other in range(size) if other != here], spines)
    spine = np.tile(np.arange(spines), size - 1)
    links: list[list[int]] = [[] for _ in there]
    for which, crossed in _cross(
        axis, np.full_like(there, device), np.full_like(there, here), there, spine
    ):
        for number, link in zip(which, crossed, strict=True):
            links[int(number)].append(int(link))
    return [
        (device + (other - here) * axis.stride, tuple(own))
        for other, own in zip(there.tolist(), links, strict=True)
    ]


def _moves_left(axis: _Axis, device: int, target: int) -> int:
    size = axis.dimension.size
    away = abs(device // axis.stride % size - target // axis.stride % size)
    match axis.dimension.shape:
        case Shape.RING:
            return min(away, size - away)
        case Shape.LINE:
            return away
        case _:
            return min(away, 1)


class _GraphLinks:
    """Nodes and links between them; ``route_of`` gives the links from a source to a target.

    A link is called ``a->b``, and ``a->b#1`` if it is the second of such links.
    """

    def __init__(self, graph: Graph, route_of: Callable[[int, int], Links]) -> None:
        self._graph = graph
        self._route = cache(route_of)
        seen: Counter[str] = Counter()
        self.parts: list[Part] = []
        for edge in graph.edges:
            name = f"{edge.source}->{edge.target}"
            number = f"#{seen[name]}" if name in seen else ""
            seen[name] += 1
            self.parts.append(
                Part(
                    name=f"{name}{number}",
                    count=1,
                    bytes_per_ns=edge.bandwidth_bytes_per_s / 1e9,
                    latency_s=edge.latency_s,
                )
            )

    def crossed(self, sources: Integers, targets: Integers) -> Crossing:
        ends = zip(sources.tolist(), targets.tolist(), strict=True)
        routes = [self._route(source, target) for source, target in ends]
        message = np.repeat(np.arange(len(routes)), [len(links) for links in routes])
        return message, np.array([link for links in routes for link in links], dtype=np.int64)

    def name(self, part: int, index: int) -> str:
        del index
        return self.parts[part].name

    def find(self, name: str) -> tuple[int, int] | None:
        return next(((n, 0) for n, part in enumerate(self.parts) if part.name == name), None)

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        out: dict[str, list[Move[str]]] = {}
        for link, edge in enumerate(self._graph.edges):
            if link not in dead:
                out.setdefault(edge.source, []).append((edge.target, (link,)))
        ends = self._graph.devices[source], self._graph.devices[target]
        return _shortest_way(*ends, lambda node: out.get(node, []), lambda _: 0)


class _ShortestRoutes:
    """Routes of fewest links through a graph, the same for the same two ends."""

    def __init__(self, graph: Graph) -> None:
        self._names = (*graph.devices, *graph.switches)
        self._seed = graph.seed
        number = {name: index for index, name in enumerate(self._names)}
        self._out: list[list[tuple[int, int]]] = [[] for _ in self._names]
        self._in: list[list[int]] = [[] for _ in self._names]
        for link, edge in enumerate(graph.edges):
            source, target = number[edge.source], number[edge.target]
            self._out[source].append((link, target))
            self._in[target].append(source)
        self._distances = cache(self._distances_to)

    def route(self, source: int, target: int) -> Links:
        """Return the links of a shortest route; the ends decide between equally short ones."""
        distances = self._distances(target)
        if distances[source] < 0:
            message = f"there is no route from {self._names[source]} to {self._names[target]}"
            raise HardwareError(message, hint="add a link to the graph")
        links: list[int] = []
        node = source
        while node != target:
            closer = [
                (link, other)
                for link, other in self._out[node]
                if distances[other] == distances[node] - 1
            ]
            link, node = closer[_spread(source, target, len(links), self._seed) % len(closer)]
            links.append(link)
        return tuple(links)

    def _distances_to(self, target: int) -> list[int]:
        distances = [-1] * len(self._names)
        distances[target] = 0
        queue = deque([target])
        while queue:
            node = queue.popleft()
            for before in self._in[node]:
                if distances[before] < 0:
                    distances[before] = distances[node] + 1
                    queue.append(before)
        return distances


_Numbers = TypeVar("_Numbers", int, Integers)


def _spread(source: _Numbers, target: _Numbers, hop: int, seed: int = 0) -> _Numbers:
    """Return numbers that spread messages over equal routes, as a switch's hash does."""
    mixed = source * 0x9E3779B1 + target * 0x85EBCA77 + hop * 0xC2B2AE3D + seed * 0x27D4EB2F
    mixed &= 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return mixed ^ (mixed >> 12)


_Node = TypeVar("_Node")
Move: TypeAlias = tuple[_Node, Links]
"""Where a message gets to, and over which links."""


def _shortest_way(
    source: _Node,
    target: _Node,
    moves: Callable[[_Node], Sequence[Move[_Node]]],
    left: Callable[[_Node], int],
) -> Links | None:
    """Return the links of a way of fewest moves; None if there is none.

    ``left`` is at most how many moves are left from a node. Source: P. Hart, N. Nilsson, B.
    Raphael, A Formal Basis for the Heuristic Determination of Minimum Cost Paths, 1968 (A*).
    """
    numbers = count()
    ahead: list[tuple[int, int, int, _Node, Links]] = [(left(source), 0, 0, source, ())]
    seen: set[_Node] = set()
    while ahead:
        _, _, taken, node, links = heappop(ahead)
        if node == target:
            return links
        if node in seen:
            continue
        seen.add(node)
        for other, over in moves(node):
            if other not in seen:
                most = taken + 1 + left(other)
                heappush(ahead, (most, -next(numbers), taken + 1, other, links + over))
    return None


_BYTES_PER_LINK = 500


def dragonfly_graph(fabric: Dragonfly) -> Graph:
    """Return the devices, the routers and the links of a dragonfly."""
    inside, groups = fabric.routers_per_group, fabric.groups
    links = (inside * (inside - 1) * groups + groups * (groups - 1)) // 2
    check_memory(2 * (fabric.device_count + links), "links", bytes_each=_BYTES_PER_LINK)
    devices = tuple([f"device{number}" for number in range(fabric.device_count)])
    routers = [[_router(group, one) for one in range(inside)] for group in range(groups)]
    edges: list[Edge] = []

    def connect(one: str, other: str, link: LinkParameters) -> None:
        edge = Edge(one, other, link.bandwidth_bytes_per_s, link.latency_s)
        edges.extend((edge, edge.reversed))

    for number, device in enumerate(devices):
        connect(device, _router_of(fabric, number), fabric.device_link)
    for group in range(groups):
        for one, other in combinations(routers[group], 2):
            connect(one, other, fabric.local_link)
        for other in range(group + 1, groups):
            ends = _gateway(fabric, group, other), _gateway(fabric, other, group)
            connect(*ends, fabric.global_link)
    switches = tuple([router for own in routers for router in own])
    return Graph(devices=devices, switches=switches, edges=tuple(edges))


def _router(group: int, router: int) -> str:
    return f"router{group}.{router}"


def _router_of(fabric: Dragonfly, device: int) -> str:
    return _router(*divmod(device // fabric.devices_per_router, fabric.routers_per_group))


def _gateway(fabric: Dragonfly, group: int, other: int) -> str:
    turn = (other - group - 1) % fabric.groups
    return _router(group, turn % fabric.routers_per_group)


def _dragonfly_route(fabric: Dragonfly, graph: Graph) -> Callable[[int, int], Links]:
    """Return the routes through a dragonfly: by one link between groups, or two."""
    link_of = {(edge.source, edge.target): link for link, edge in enumerate(graph.edges)}
    per_group = fabric.routers_per_group * fabric.devices_per_router

    def route(source: int, target: int) -> Links:
        group, other = source // per_group, target // per_group
        stops = [f"device{source}", _router_of(fabric, source)]
        passed = [group, *_groups_between(fabric, source, target), other]
        for one, next_one in pairwise(passed):
            if one != next_one:
                ends = _gateway(fabric, one, next_one), _gateway(fabric, next_one, one)
                stops += ends
        stops += [_router_of(fabric, target), f"device{target}"]
        return tuple([link_of[pair] for pair in pairwise(stops) if pair[0] != pair[1]])

    return route


def _groups_between(fabric: Dragonfly, source: int, target: int) -> tuple[int, ...]:
    """Return the group that a message passes between two others, if any."""
    per_group = fabric.routers_per_group * fabric.devices_per_router
    ends = {source // per_group, target // per_group}
    others = [group for group in range(fabric.groups) if group not in ends]
    if fabric.routing is DragonflyRouting.MINIMAL or len(ends) == 1 or not others:
        return ()
    return (others[_spread(source, target, 0, fabric.seed) % len(others)],)
