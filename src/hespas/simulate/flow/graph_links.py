"""Links of a graph of nodes, and routes through it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, count, pairwise
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.errors import HardwareError
from hespas.hardware.interconnect import Dragonfly, DragonflyRouting
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph
from hespas.simulate.kernel import check_memory

Integers: TypeAlias = NDArray[np.int64]
Links: TypeAlias = tuple[int, ...]
"""The numbers of the links that a message crosses."""
Crossing: TypeAlias = tuple[Integers, Integers]
"""Messages and links: the k-th message crosses the k-th link."""


@frozen
class Part:
    """``count`` equal links, numbered after those of earlier parts."""

    name: str
    count: int
    bytes_per_ns: float
    latency_s: float
    dimension: int | None = None

    @property
    def is_of_leaf(self) -> bool:
        """Whether these are links between leaf switches and spines."""
        return ".leaf_" in self.name


class GraphLinks:
    """The links of a graph of nodes.

    ``route_of`` gives the links from a source to a target. A link is called ``a->b``, and
    ``a->b#1`` if it is the second of such links.
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
        """Return the links that messages cross."""
        ends = zip(sources.tolist(), targets.tolist(), strict=True)
        routes = [self._route(source, target) for source, target in ends]
        message = np.repeat(np.arange(len(routes)), [len(links) for links in routes])
        return message, np.array([link for links in routes for link in links], dtype=np.int64)

    def name(self, part: int, index: int) -> str:
        """Return the name of a link."""
        del index
        return self.parts[part].name

    def find(self, name: str) -> tuple[int, int] | None:
        """Return the part and index of a named link."""
        return next(((n, 0) for n, part in enumerate(self.parts) if part.name == name), None)

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return a shortest route around dead links, if any."""
        out: dict[str, list[Move[str]]] = {}
        for link, edge in enumerate(self._graph.edges):
            if link not in dead:
                out.setdefault(edge.source, []).append((edge.target, (link,)))
        ends = self._graph.devices[source], self._graph.devices[target]
        return shortest_route(*ends, lambda node: out.get(node, []), lambda _: 0)


class ShortestRoutes:
    """Shortest routes through a graph, fixed by their ends."""

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
        """Return a shortest route; the ends decide between equal ones."""
        distances = self._distances(target)
        if distances[source] < 0:
            message = f"there is no route from {self._names[source]} to {self._names[target]}"
            raise HardwareError(message, hint="add a link to the graph")
        links: list[int] = []
        node = source
        while node != target:
            closer = [
                (link, neighbour)
                for link, neighbour in self._out[node]
                if distances[neighbour] == distances[node] - 1
            ]
            link, node = closer[spread(source, target, len(links), self._seed) % len(closer)]
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


def spread(source: _Numbers, target: _Numbers, hop: int, seed: int = 0) -> _Numbers:
    """Hash messages over equal routes, as switches do."""
    mixed = source * 0x9E3779B1 + target * 0x85EBCA77 + hop * 0xC2B2AE3D + seed * 0x27D4EB2F
    mixed &= 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return mixed ^ (mixed >> 12)


_Node = TypeVar("_Node")
Move: TypeAlias = tuple[_Node, Links]
"""The next node of a message, and the links to it."""


def shortest_route(
    source: _Node,
    target: _Node,
    moves: Callable[[_Node], Sequence[Move[_Node]]],
    distance: Callable[[_Node], int],
) -> Links | None:
    """Return the links of a shortest route, if any.

    ``distance`` is a lower bound of the moves from a node to the target. Source: P. Hart, N.
    Nilsson, B. Raphael, A Formal Basis for the Heuristic Determination of Minimum Cost Paths, 1968
    (A*).
    """
    numbers = count()
    queue: list[tuple[int, int, int, _Node, Links]] = [(distance(source), 0, 0, source, ())]
    seen: set[_Node] = set()
    while queue:
        _, _, steps, node, links = heappop(queue)
        if node == target:
            return links
        if node in seen:
            continue
        seen.add(node)
        for neighbour, crossed in moves(node):
            if neighbour not in seen:
                least = steps + 1 + distance(neighbour)
                entry = (least, -next(numbers), steps + 1, neighbour, links + crossed)
                heappush(queue, entry)
    return None


_BYTES_PER_LINK = 500


def dragonfly_graph(fabric: Dragonfly) -> Graph:
    """Return the graph of a dragonfly's devices and routers."""
    inside, groups = fabric.routers_per_group, fabric.groups
    links = (inside * (inside - 1) * groups + groups * (groups - 1)) // 2
    check_memory(2 * (fabric.device_count + links), "links", bytes_each=_BYTES_PER_LINK)
    devices = tuple([f"device{number}" for number in range(fabric.device_count)])
    routers = [[_router(group, index) for index in range(inside)] for group in range(groups)]
    edges: list[Edge] = []

    def connect(source: str, target: str, link: LinkParameters) -> None:
        edge = Edge(source, target, link.bandwidth_bytes_per_s, link.latency_s)
        edges.extend((edge, edge.reversed))

    for number, device in enumerate(devices):
        connect(device, _router_of(fabric, number), fabric.device_link)
    for group in range(groups):
        for source, target in combinations(routers[group], 2):
            connect(source, target, fabric.local_link)
        for peer in range(group + 1, groups):
            ends = _gateway(fabric, group, peer), _gateway(fabric, peer, group)
            connect(*ends, fabric.global_link)
    switches = tuple([router for own in routers for router in own])
    return Graph(devices=devices, switches=switches, edges=tuple(edges))


def _router(group: int, router: int) -> str:
    return f"router{group}.{router}"


def _router_of(fabric: Dragonfly, device: int) -> str:
    return _router(*divmod(device // fabric.devices_per_router, fabric.routers_per_group))


def _gateway(fabric: Dragonfly, group: int, peer: int) -> str:
    """Return the router of a group that links a peer."""
    turn = (peer - group - 1) % fabric.groups
    return _router(group, turn % fabric.routers_per_group)


def dragonfly_route(fabric: Dragonfly, graph: Graph) -> Callable[[int, int], Links]:
    """Return a function from two devices to their route."""
    link_of = {(edge.source, edge.target): link for link, edge in enumerate(graph.edges)}
    per_group = fabric.routers_per_group * fabric.devices_per_router

    def route(source: int, target: int) -> Links:
        first, last = source // per_group, target // per_group
        stops = [f"device{source}", _router_of(fabric, source)]
        for group, following in pairwise([first, *_detour_group(fabric, source, target), last]):
            if group != following:
                stops += [_gateway(fabric, group, following), _gateway(fabric, following, group)]
        stops += [_router_of(fabric, target), f"device{target}"]
        return tuple([link_of[pair] for pair in pairwise(stops) if pair[0] != pair[1]])

    return route


def _detour_group(fabric: Dragonfly, source: int, target: int) -> tuple[int, ...]:
    """Return the intermediate group of a message, if any."""
    per_group = fabric.routers_per_group * fabric.devices_per_router
    ends = {source // per_group, target // per_group}
    groups = [group for group in range(fabric.groups) if group not in ends]
    if fabric.routing is DragonflyRouting.MINIMAL or len(ends) == 1 or not groups:
        return ()
    return (groups[spread(source, target, 0, fabric.seed) % len(groups)],)
