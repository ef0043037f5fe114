"""Links of a graph of nodes, and the ways through it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from hespas.errors import HardwareError
from hespas.hardware.interconnect import Dragonfly, Edge, Graph
from hespas.hardware.links import LinkParameters
from hespas.simulate.flow.ways import Ways

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers, Reals

Way = tuple[int, ...]
"""The numbers of the links that a message crosses."""


class GraphWiring:
    """A `hespas.simulate.flow.ways.Wiring` of numbered wires; ``way_of`` finds a message's way."""

    def __init__(
        self, device_count: int, edges: Sequence[Edge], way_of: Callable[[int, int], Way]
    ) -> None:
        self._device_count = device_count
        self._edges = edges
        self._way_of = way_of
        self._known: dict[tuple[int, int], Way] = {}
        self._names = _names(edges)

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self._device_count

    def routes(self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers) -> Ways:
        """Return the ways of messages."""
        import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

        ends = zip(np.asarray(sources).tolist(), np.asarray(targets).tolist(), strict=True)
        ways = [self._way(source, target) for source, target in ends]
        latencies = [sum(self._edges[link].latency_s for link in way) for way in ways]
        return Ways(
            message=np.repeat(np.arange(len(ways)), [len(way) for way in ways]),
            link=np.array([link for way in ways for link in way], dtype=np.int64),
            latency_ns=np.round(np.array(latencies, dtype=np.float64) * 1e9, 6),
            kinds=np.zeros(len(ways), dtype=np.int64),
        )

    def _way(self, source: int, target: int) -> Way:
        key = (source, target)
        if key not in self._known:
            self._known[key] = self._way_of(source, target)
        return self._known[key]

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        import numpy as np  # noqa: PLC0415 - as above

        numbers: list[int] = np.asarray(links, dtype=np.int64).tolist()
        return np.array([self._edges[link].bandwidth_bytes_per_s / 1e9 for link in numbers])

    def name(self, link: int) -> str:
        """Return a link's name, as ``a->b``; ``a->b#1`` for the second of such wires."""
        return self._names[link]

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        return self._names.index(name) if name in self._names else None


def _names(edges: Sequence[Edge]) -> list[str]:
    seen: dict[str, int] = {}
    names: list[str] = []
    for edge in edges:
        name = f"{edge.source}->{edge.target}"
        count = seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}#{count}" if count else name)
    return names


def graph_wiring(graph: Graph) -> GraphWiring:
    """Return the wiring of a graph: ways of fewest links, the same for the same two ends."""
    return GraphWiring(graph.device_count, graph.edges, _ShortestWays(graph).way)


class _ShortestWays:
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

    def way(self, source: int, target: int) -> Way:
        """Go closer with each link; where several do, the ends decide which one is taken."""
        distances = self._distances_to(target)
        if distances[source] < 0:
            message = f"there is no way from {self._names[source]} to {self._names[target]}"
            raise HardwareError(message, hint="add a link to the graph")
        links: list[int] = []
        at = source
        while at != target:
            closer = [one for one in self._out[at] if distances[one[1]] == distances[at] - 1]
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
    """Return a number that spreads messages over equal ways, as a switch's hash does."""
    mixed = (source * 0x9E3779B1 + target * 0x85EBCA77 + hop * 0xC2B2AE3D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return mixed ^ (mixed >> 12)


def dragonfly_wiring(fabric: Dragonfly) -> GraphWiring:
    """Return the wiring of a dragonfly with minimal routing."""
    return _DragonflyWays(fabric).wiring()


class _DragonflyWays:
    def __init__(self, fabric: Dragonfly) -> None:
        self._fabric = fabric
        self._links: dict[tuple[str, str], int] = {}
        self._edges: list[Edge] = []

    def wiring(self) -> GraphWiring:
        fabric = self._fabric
        for device in range(fabric.device_count):
            self._wire(f"device{device}", self._router(device), fabric.device_link)
        routers = range(fabric.routers_per_group)
        for group in range(fabric.groups):
            for one in routers:
                for other in range(one + 1, fabric.routers_per_group):
                    self._wire(_name(group, one), _name(group, other), fabric.local_link)
            for other in range(group + 1, fabric.groups):
                ends = self._gateway(group, other), self._gateway(other, group)
                self._wire(*ends, fabric.global_link)
        return GraphWiring(fabric.device_count, self._edges, self._way)

    def _wire(self, one: str, other: str, link: LinkParameters) -> None:
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
        """Return the router of a group with the wire to another: they take turns."""
        turn = (other - group - 1) % self._fabric.groups
        return _name(group, turn % self._fabric.routers_per_group)

    def _way(self, source: int, target: int) -> Way:
        fabric = self._fabric
        per_group = fabric.routers_per_group * fabric.devices_per_router
        group, other = source // per_group, target // per_group
        stops = [f"device{source}", self._router(source)]
        if group != other:
            stops += [self._gateway(group, other), self._gateway(other, group)]
        stops += [self._router(target), f"device{target}"]
        taken = [stop for stop, before in zip(stops, ["", *stops], strict=False) if stop != before]
        return tuple([self._links[pair] for pair in pairwise(taken)])


def _name(group: int, router: int) -> str:
    return f"router{group}.{router}"
