"""The links of a network by number, and the routes of many messages at once, as arrays.

A topology answers three questions: which links does a message cross, how wide is a link, and what
is its name. There is one for dimensions (rings, switches, fat trees, all to all), one for graphs of
nodes and dragonflies, and one that wraps another and overrides single links.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Protocol, TypeAlias, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from hespas.errors import HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import Dimension, Dimensions, Dragonfly, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph
from hespas.simulate.kernel import check_memory

Integers: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]


Links: TypeAlias = tuple[int, ...]
"""The numbers of the links that a message crosses."""
_Node = TypeVar("_Node")
Move: TypeAlias = tuple[_Node, Links]
"""Where a message gets to, and over which links."""


def shortest_way(
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
        _, _, taken, at, links = heappop(ahead)
        if at == target:
            return links
        if at in seen:
            continue
        seen.add(at)
        for node, over in moves(at):
            if node not in seen:
                most = taken + 1 + left(node)
                heappush(ahead, (most, -next(numbers), taken + 1, node, links + over))
    return None


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


class Topology(Protocol):
    """The links of a network by number, and which of them a message crosses."""

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages from sources to targets, one by one."""
        ...

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        ...

    def name(self, link: int) -> str:
        """Return what people call a link."""
        ...


class Wires(Topology, Protocol):
    """A topology as it is specified, whose links a cluster may override."""

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        ...

    def latency_ns(self, link: int) -> float:
        """Return the latency of a link."""
        ...

    def dimension(self, link: int) -> int | None:
        """Return the dimension that a link lies along; None where there are none."""
        ...

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return the links of a way without dead links, of fewest moves; None if there is none."""
        ...


def make_topology(interconnect: Interconnect) -> Wires:
    """Return the links of a network by number."""
    match interconnect.fabric:
        case Dimensions():
            return DimensionTopology(interconnect.fabric)
        case Dragonfly():
            return _DragonflyRoutes(interconnect.fabric).topology()
        case Graph():
            graph = interconnect.fabric
            return GraphTopology(graph.edges, graph.devices, _ShortestRoutes(graph).route)
        case _:
            assert_never(interconnect.fabric)


_PARTS = {
    Shape.RING: ("next", "previous"),
    Shape.LINE: ("next", "previous"),
    Shape.SWITCH: ("up", "down"),
    Shape.FAT_TREE: ("up", "down", "leaf_up", "leaf_down"),
    Shape.FULLY_CONNECTED: ("to",),
}
_NAME = re.compile(r"dim([0-9]+)\.([a-z_]+)\.([0-9]+)(?:\.([0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """The links of one dimension, along which devices are ``stride`` apart; ``first`` is the first.

    The number of a link says what it is: a dimension has a range of numbers for each part of it
    (such as the links up to the switch), with one link a device, or one a leaf switch, in order.
    """

    index: int
    dimension: Dimension
    stride: int
    devices: int
    first: int

    @property
    def part_size(self) -> int:
        """How many links a part has that isn't between leaf switches."""
        full = self.dimension.shape is Shape.FULLY_CONNECTED
        return self.devices * (self.dimension.size if full else 1)

    def part(self, number: int) -> int:
        """Return the first link of a part."""
        leaves = max(0, number - 2) if self.dimension.shape is Shape.FAT_TREE else 0
        return self.first + (number - leaves) * self.part_size + leaves * self.leaves

    @property
    def leaves(self) -> int:
        """The number of leaf switches."""
        return self.devices // (self.dimension.leaf_size or self.devices)

    @property
    def links(self) -> int:
        """The number of links."""
        return self.part(len(_PARTS[self.dimension.shape])) - self.first

    @property
    def bytes_per_ns(self) -> float:
        """The bandwidth of a device's link."""
        return self.dimension.parameters.bandwidth_bytes_per_s / 1e9


class DimensionTopology:
    """Dimensions, which a message crosses one after the other."""

    def __init__(self, fabric: Dimensions) -> None:
        self._axes: list[_Axis] = []
        first = 0
        stride = 1
        for index, dimension in enumerate(fabric.dimensions):
            axis = _Axis(
                index=index,
                dimension=dimension,
                stride=stride,
                devices=fabric.device_count,
                first=first,
            )
            self._axes.append(axis)
            first += axis.links
            stride *= dimension.size

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages, along each dimension in turn."""
        at = np.asarray(sources, dtype=np.int64)
        goal = np.asarray(targets, dtype=np.int64)
        latency_ns = np.zeros(len(at))
        dimensions = np.zeros(len(at), dtype=np.int64)
        parts: list[tuple[Integers, Integers]] = []
        for axis in self._axes:
            size = axis.dimension.size
            here, there = at // axis.stride % size, goal // axis.stride % size
            (moving,) = np.nonzero(here != there)
            if len(moving):
                crossing = _cross(axis, at[moving], here[moving], there[moving])
                parts += [(moving[which], links) for which, links in crossing]
                hops = sum(np.bincount(which, minlength=len(moving)) for which, _ in crossing)
                per_hop_ns = round(axis.dimension.parameters.latency_s * 1e9, 6)
                latency_ns[moving] += hops * per_hop_ns
                dimensions[moving] |= 1 << axis.index
                at = at + (there - here) * axis.stride
        empty = np.zeros(0, dtype=np.int64)
        return Routes(
            message=np.concatenate([which for which, _ in parts]) if parts else empty,
            link=np.concatenate([links for _, links in parts]) if parts else empty,
            latency_ns=latency_ns,
            dimensions=dimensions,
        )

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        numbers = np.asarray(links, dtype=np.int64)
        result = np.zeros(len(numbers))
        for axis in self._axes:
            inside = (numbers >= axis.first) & (numbers < axis.first + axis.links)
            result[inside] = axis.bytes_per_ns
            if axis.dimension.leaf_size is not None:
                leaf = inside & (numbers >= axis.part(2))
                wider = axis.dimension.leaf_size / axis.dimension.oversubscription
                result[leaf] = axis.bytes_per_ns * wider
        return result

    def name(self, link: int) -> str:
        """Return a link's name, as ``dim0.up.3``: the dimension, the part, the device or leaf."""
        axis = self._axis_of(link)
        parts = _PARTS[axis.dimension.shape]
        number = max(at for at in range(len(parts)) if axis.part(at) <= link)
        index = link - axis.part(number)
        head = f"dim{axis.index}.{parts[number]}"
        if axis.dimension.shape is Shape.FULLY_CONNECTED:
            source, coordinate = divmod(index, axis.dimension.size)
            own = source // axis.stride % axis.dimension.size
            return f"{head}.{source}.{source + (coordinate - own) * axis.stride}"
        return f"{head}.{index}"

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) >= len(self._axes):
            return None
        axis = self._axes[int(match[1])]
        parts = _PARTS[axis.dimension.shape]
        if match[2] not in parts:
            return None
        number = parts.index(match[2])
        index = int(match[3])
        if axis.dimension.shape is Shape.FULLY_CONNECTED and match[4] is not None:
            coordinate = int(match[4]) // axis.stride % axis.dimension.size
            index = index * axis.dimension.size + coordinate
        link = axis.part(number) + index
        return link if link < axis.first + axis.links and self.name(link) == name else None

    def latency_ns(self, link: int) -> float:
        """Return the latency of a link."""
        return round(self._axis_of(link).dimension.parameters.latency_s * 1e9, 6)

    def dimension(self, link: int) -> int | None:
        """Return the dimension that a link lies along."""
        return self._axis_of(link).index

    def _axis_of(self, link: int) -> _Axis:
        return next(axis for axis in self._axes if link < axis.first + axis.links)

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return the links of a way without dead links, of fewest moves; None if there is none.

        Where several ways are equally short, the ends decide, so that messages spread.
        """

        def moves(at: int) -> list[Move[int]]:
            found = [move for axis in self._axes for move in _moves(axis, at)]
            alive = [(node, links) for node, links in found if dead.isdisjoint(links)]
            turn = _spread(source, target, at) % len(alive) if alive else 0
            return [*alive[turn:], *alive[:turn]]

        def left(at: int) -> int:
            return sum(_moves_left(axis, at, target) for axis in self._axes)

        return shortest_way(source, target, moves, left)


def _cross(
    axis: _Axis, at: Integers, here: Integers, there: Integers
) -> Sequence[tuple[Integers, Integers]]:
    """Return (messages, links) of messages from devices ``at`` along one dimension."""
    every = np.arange(len(at))
    goal = at + (there - here) * axis.stride
    match axis.dimension.shape:
        case Shape.FULLY_CONNECTED:
            return [(every, axis.part(0) + at * axis.dimension.size + there)]
        case Shape.SWITCH:
            return [(every, axis.part(0) + at), (every, axis.part(1) + goal)]
        case Shape.FAT_TREE:
            return list(_cross_tree(axis, at, goal))
        case Shape.RING:
            return [_cross_ring(axis, at, here, _shorter_way(here, there, axis.dimension.size))]
        case Shape.LINE:
            return [_cross_ring(axis, at, here, there - here)]
        case _:
            assert_never(axis.dimension.shape)


def _moves(axis: _Axis, at: int) -> list[Move[int]]:
    """Return where a device gets to along a dimension over its own links, and over which."""
    size, shape = axis.dimension.size, axis.dimension.shape
    here = at // axis.stride % size
    if shape in {Shape.RING, Shape.LINE}:
        ways = [(here + 1, axis.part(0) + at), (here - 1, axis.part(1) + at)]
        is_open = shape is Shape.LINE
        return [
            (at + (there % size - here) * axis.stride, (link,))
            for there, link in ways
            if size > 1 and not (is_open and not 0 <= there < size)
        ]
    others = [there for there in range(size) if there != here]
    there = np.array(others, dtype=np.int64)
    links: list[list[int]] = [[] for _ in others]
    for which, crossed in _cross(axis, np.full_like(there, at), np.full_like(there, here), there):
        for number, link in zip(which, crossed, strict=True):
            links[int(number)].append(int(link))
    return [
        (at + (other - here) * axis.stride, tuple(own))
        for other, own in zip(others, links, strict=True)
    ]


def _moves_left(axis: _Axis, at: int, target: int) -> int:
    """Return the fewest moves along a dimension from a device to another."""
    size = axis.dimension.size
    away = abs(at // axis.stride % size - target // axis.stride % size)
    match axis.dimension.shape:
        case Shape.RING:
            return min(away, size - away)
        case Shape.LINE:
            return away
        case _:
            return min(away, 1)


def _cross_tree(axis: _Axis, at: Integers, goal: Integers) -> Iterator[tuple[Integers, Integers]]:
    every = np.arange(len(at))
    yield every, axis.part(0) + at
    yield every, axis.part(1) + goal
    leaf, other = _leaf(axis, at), _leaf(axis, goal)
    (climbing,) = np.nonzero(leaf != other)
    yield climbing, axis.part(2) + leaf[climbing]
    yield climbing, axis.part(3) + other[climbing]


def _leaf(axis: _Axis, devices: Integers) -> Integers:
    size, leaf_size = axis.dimension.size, axis.dimension.leaf_size or 1
    block = devices // (axis.stride * size) * axis.stride + devices % axis.stride
    return block * (size // leaf_size) + devices // axis.stride % size // leaf_size


def _shorter_way(here: Integers, there: Integers, size: int) -> Integers:
    """Return how far a message goes around a ring; below 0 downwards.

    Where both ways are equally long, every other device sends upwards and the rest downwards.
    """
    up = (there - here) % size
    goes_up = (2 * up < size) | ((2 * up == size) & (here % 2 == 0))
    return np.where(goes_up, up, up - size)


def _cross_ring(
    axis: _Axis, at: Integers, here: Integers, way: Integers
) -> tuple[Integers, Integers]:
    size = axis.dimension.size
    hops, step = np.abs(way), np.sign(way)
    which = np.repeat(np.arange(len(at)), hops)
    taken = np.arange(len(which)) - np.repeat(np.cumsum(hops) - hops, hops)
    coordinate = (here[which] + step[which] * taken) % size
    device = at[which] + (coordinate - here[which]) * axis.stride
    part = np.where(step[which] > 0, axis.part(0), axis.part(1))
    return which, part + device


class GraphTopology:
    """Nodes and the links between them; ``route_of`` gives the links from a source to a target."""

    def __init__(
        self, edges: Sequence[Edge], devices: Sequence[str], route_of: Callable[[int, int], Links]
    ) -> None:
        self._edges = edges
        self._devices = devices
        self._route = cache(route_of)
        self._names = _names(edges)

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages."""
        ends = zip(np.asarray(sources).tolist(), np.asarray(targets).tolist(), strict=True)
        routes = [self._route(source, target) for source, target in ends]
        latencies = [sum(self._edges[link].latency_s for link in links) for links in routes]
        return Routes(
            message=np.repeat(np.arange(len(routes)), [len(links) for links in routes]),
            link=np.array([link for links in routes for link in links], dtype=np.int64),
            latency_ns=np.round(np.array(latencies, dtype=np.float64) * 1e9, 6),
            dimensions=np.zeros(len(routes), dtype=np.int64),
        )

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        numbers: list[int] = np.asarray(links, dtype=np.int64).tolist()
        return np.array([self._edges[link].bandwidth_bytes_per_s / 1e9 for link in numbers])

    def name(self, link: int) -> str:
        """Return a link's name, as ``a->b``; ``a->b#1`` for the second of such links."""
        return self._names[link]

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        return self._names.index(name) if name in self._names else None

    def latency_ns(self, link: int) -> float:
        """Return the latency of a link."""
        return round(self._edges[link].latency_s * 1e9, 6)

    def dimension(self, link: int) -> int | None:
        """Return None: a graph has no dimensions."""
        del link

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return the links of a way without dead links, of fewest; None if there is none."""
        out: dict[str, list[Move[str]]] = {}
        for link, edge in enumerate(self._edges):
            if link not in dead:
                out.setdefault(edge.source, []).append((edge.target, (link,)))
        ends = self._devices[source], self._devices[target]
        return shortest_way(*ends, lambda node: out.get(node, []), lambda _: 0)


def _names(edges: Sequence[Edge]) -> list[str]:
    seen: dict[str, int] = {}
    names: list[str] = []
    for edge in edges:
        name = f"{edge.source}->{edge.target}"
        count = seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}#{count}" if count else name)
    return names


class _ShortestRoutes:
    """Routes of fewest links through a graph, the same for the same two ends."""

    def __init__(self, graph: Graph) -> None:
        names = (*graph.devices, *graph.switches)
        number = {name: at for at, name in enumerate(names)}
        self._names = names
        self._out: list[list[tuple[int, int]]] = [[] for _ in names]
        self._in: list[list[int]] = [[] for _ in names]
        for link, edge in enumerate(graph.edges):
            source, target = number[edge.source], number[edge.target]
            self._out[source].append((link, target))
            self._in[target].append(source)
        self._distances: dict[int, list[int]] = {}

    def route(self, source: int, target: int) -> Links:
        """Return the links of a shortest route; the ends decide between equally short ones."""
        distances = self._distances_to(target)
        if distances[source] < 0:
            message = f"there is no route from {self._names[source]} to {self._names[target]}"
            raise HardwareError(message, hint="add a link to the graph")
        links: list[int] = []
        at = source
        while at != target:
            closer = [
                (link, node) for link, node in self._out[at] if distances[node] == distances[at] - 1
            ]
            link, at = closer[_spread(source, target, len(links)) % len(closer)]
            links.append(link)
        return tuple(links)

    def _distances_to(self, target: int) -> list[int]:
        if target in self._distances:
            return self._distances[target]
        distances = [-1] * len(self._names)
        distances[target] = 0
        queue = deque([target])
        while queue:
            at = queue.popleft()
            for before in self._in[at]:
                if distances[before] < 0:
                    distances[before] = distances[at] + 1
                    queue.append(before)
        self._distances[target] = distances
        return distances


def _spread(source: int, target: int, hop: int) -> int:
    """Return a number that spreads messages over equal routes, as a switch's hash does."""
    mixed = (source * 0x9E3779B1 + target * 0x85EBCA77 + hop * 0xC2B2AE3D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return mixed ^ (mixed >> 12)


_BYTES_PER_LINK = 500


class _DragonflyRoutes:
    """Minimal routes through a dragonfly."""

    def __init__(self, fabric: Dragonfly) -> None:
        self._fabric = fabric
        self._links: dict[tuple[str, str], int] = {}
        self._edges: list[Edge] = []

    def topology(self) -> GraphTopology:
        fabric = self._fabric
        inside, between = fabric.routers_per_group, fabric.groups
        links = (inside * (inside - 1) * between + between * (between - 1)) // 2
        check_memory(2 * (fabric.device_count + links), "links", bytes_each=_BYTES_PER_LINK)
        for device in range(fabric.device_count):
            self._connect(f"device{device}", self._router(device), fabric.device_link)
        routers = range(fabric.routers_per_group)
        for group in range(fabric.groups):
            for one in routers:
                for other in range(one + 1, fabric.routers_per_group):
                    self._connect(_name(group, one), _name(group, other), fabric.local_link)
            for other in range(group + 1, fabric.groups):
                ends = self._gateway(group, other), self._gateway(other, group)
                self._connect(*ends, fabric.global_link)
        devices = [f"device{number}" for number in range(fabric.device_count)]
        return GraphTopology(self._edges, devices, self._route)

    def _connect(self, one: str, other: str, link: LinkParameters) -> None:
        for source, target in ((one, other), (other, one)):
            self._links[source, target] = len(self._edges)
            self._edges.append(
                Edge(
                    source=source,
                    target=target,
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                    latency_s=link.latency_s,
                )
            )

    def _router(self, device: int) -> str:
        fabric = self._fabric
        group, router = divmod(device // fabric.devices_per_router, fabric.routers_per_group)
        return _name(group, router)

    def _gateway(self, group: int, other: int) -> str:
        """Return the router of a group with the link to another: they take turns."""
        turn = (other - group - 1) % self._fabric.groups
        return _name(group, turn % self._fabric.routers_per_group)

    def _route(self, source: int, target: int) -> Links:
        fabric = self._fabric
        per_group = fabric.routers_per_group * fabric.devices_per_router
        group, other = source // per_group, target // per_group
        stops = [f"device{source}", self._router(source)]
        if group != other:
            stops += [self._gateway(group, other), self._gateway(other, group)]
        stops += [self._router(target), f"device{target}"]
        return tuple([self._links[pair] for pair in pairwise(stops) if pair[0] != pair[1]])


def _name(group: int, router: int) -> str:
    return f"router{group}.{router}"


class OverriddenTopology:
    """Another topology, with the bandwidths and latencies of a cluster's ``links``.

    Messages go around links without bandwidth, which are dead, on a way of fewest moves. Raises
    `HardwareError` for a link that isn't there, and where no way is left.
    """

    def __init__(self, topology: Wires, cluster: Cluster) -> None:
        self._topology = topology
        self._overrides: dict[int, LinkOverride] = {}
        for override in cluster.links:
            link = topology.link_named(override.link)
            if link is None:
                hint = f"links are named as {topology.name(0)}"
                message = f"there is no link {override.link!r}"
                raise HardwareError(message, location=cluster.source, hint=hint)
            self._overrides[link] = override
        self._source = cluster.source
        self._dead = frozenset(link for link, each in self._overrides.items() if each.is_dead)
        self._detours: dict[tuple[int, int], Links] = {}

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages from sources to targets, one by one."""
        routes = self._around(self._topology.routes(sources, targets), sources, targets)
        latency_ns = routes.latency_ns.copy()
        for link, override in self._overrides.items():
            np.add.at(
                latency_ns, routes.message[routes.link == link], override.extra_latency_s * 1e9
            )
        return replace(routes, latency_ns=latency_ns)

    def _around(
        self,
        routes: Routes,
        sources: Sequence[int] | Integers,
        targets: Sequence[int] | Integers,
    ) -> Routes:
        """Return routes of which none crosses a dead link."""
        crossing = np.isin(routes.link, list(self._dead))
        if not crossing.any():
            return routes
        moved: list[int] = np.unique(routes.message[crossing]).tolist()
        ways = [self._detour(int(sources[at]), int(targets[at])) for at in moved]
        stays = ~np.isin(routes.message, moved)
        latency_ns, dimensions = routes.latency_ns.copy(), routes.dimensions.copy()
        for at, way in zip(moved, ways, strict=True):
            latency_ns[at] = sum(self._topology.latency_ns(link) for link in way)
            crossed = {self._topology.dimension(link) for link in way} - {None}
            dimensions[at] = sum(1 << each for each in crossed if each is not None)
        links = np.array([link for way in ways for link in way], dtype=np.int64)
        return Routes(
            message=np.concatenate([
                routes.message[stays], np.repeat(moved, [len(way) for way in ways])
            ]),
            link=np.concatenate([routes.link[stays], links]),
            latency_ns=latency_ns,
            dimensions=dimensions,
        )  # fmt: skip

    def _detour(self, source: int, target: int) -> Links:
        if (source, target) not in self._detours:
            way = self._topology.detour(source, target, self._dead)
            if way is None:
                dead = ", ".join(self.name(link) for link in sorted(self._dead)[:3])
                raise HardwareError(
                    f"every way from device {source} to device {target} crosses a dead link: "
                    f"{dead} has a bandwidth_scale of 0",
                    location=self._source,
                    hint="give it some bandwidth, or leave its device out",
                )
            self._detours[source, target] = way
        return self._detours[source, target]

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        numbers = np.asarray(links, dtype=np.int64)
        result = self._topology.bytes_per_ns(numbers).copy()
        for link, override in self._overrides.items():
            here = numbers == link
            if override.bandwidth_bytes_per_s is not None:
                result[here] = override.bandwidth_bytes_per_s / 1e9
            result[here] *= override.bandwidth_scale
        return result

    def name(self, link: int) -> str:
        """Return what people call a link."""
        return self._topology.name(link)
