"""Number a network's links, and route messages as arrays.

A `Topology` says which links a message crosses, and the bandwidth and name of a link. For a network
of dimensions it computes links and routes; for a graph of nodes it lists the links and searches the
routes. A cluster may override single links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.errors import HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    Interconnect,
    Shape,
)
from hespas.hardware.machine_links import Graph
from hespas.simulate.flow.graph_links import (
    Crossing,
    GraphLinks,
    Integers,
    Links,
    Move,
    Part,
    ShortestRoutes,
    dragonfly_graph,
    dragonfly_route,
    shortest_route,
    spread,
)

Reals: TypeAlias = NDArray[np.float64]


@frozen
class Routes:
    """The links that messages cross: ``message[k]`` crosses ``link[k]``.

    ``latency_ns`` has the sum over the links of each message, and ``dimensions`` the dimensions
    that each message crosses, as a set of bits.
    """

    message: Integers
    link: Integers
    latency_ns: Reals
    dimensions: Integers


def make_topology(interconnect: Interconnect, cluster: Cluster | None = None) -> Topology:
    """Return a network's links, some overridden by a cluster.

    Raises `HardwareError` for an override of a link that isn't there.
    """
    match interconnect.fabric:
        case Dimensions() as fabric:
            return Topology(_DimensionLinks(fabric), cluster)
        case Dragonfly() as fabric:
            graph = dragonfly_graph(fabric)
            return Topology(GraphLinks(graph, dragonfly_route(fabric, graph)), cluster)
        case Graph() as fabric:
            return Topology(GraphLinks(fabric, ShortestRoutes(fabric).route), cluster)
        case _:
            assert_never(interconnect.fabric)


class Topology:
    """The numbered links of a network and their messages.

    Links of the cluster without bandwidth are dead: messages go around them by fewest moves.
    """

    def __init__(self, network: _DimensionLinks | GraphLinks, cluster: Cluster | None) -> None:
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
        self._dead = frozenset(link for link, item in self._overrides.items() if item.is_dead)
        self._detour = cache(self._find_detour)

    @property
    def link_count(self) -> int:
        """The number of links."""
        return int(self._first[-1])

    def _parts(self, links: Integers) -> Integers:
        return np.searchsorted(self._first, links, side="right") - 1

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages from sources to targets.

        Raises `HardwareError` if every route of a message crosses a dead link.
        """
        message, link = self.crossed(sources, targets)
        part = self._parts(link)
        link_latency_ns, bits = self._latency_ns[part], self._dimension[part]
        for number, override in self._overrides.items():
            link_latency_ns[link == number] += override.extra_latency_s * 1e9
        dimensions = np.zeros(len(sources), dtype=np.int64)
        for bit in {*self._dimension.tolist()} - {0}:
            dimensions[message[bits == bit]] |= bit
        latency_ns = np.zeros(len(sources))
        latency_ns += np.bincount(message, weights=link_latency_ns, minlength=len(sources))
        return Routes(
            message=message, link=link, latency_ns=np.round(latency_ns, 6), dimensions=dimensions
        )

    def crossed(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Crossing:
        """Return messages and the links that they cross: the routes alone.

        Raises as `routes` does.
        """
        starts = np.asarray(sources, dtype=np.int64)
        goals = np.asarray(targets, dtype=np.int64)
        message, link = self._network.crossed(starts, goals)
        return self._around(message, link, starts, goals) if self._dead else (message, link)

    def _around(
        self, message: Integers, link: Integers, starts: Integers, goals: Integers
    ) -> Crossing:
        """Return the crossings with detours for messages on dead links."""
        moved = sorted({*message[np.isin(link, list(self._dead))].tolist()})
        routes = [self._detour(int(starts[number]), int(goals[number])) for number in moved]
        stays = ~np.isin(message, moved)
        detoured = np.repeat(np.array(moved, dtype=np.int64), [len(route) for route in routes])
        links = np.array([number for route in routes for number in route], dtype=np.int64)
        return np.concatenate([message[stays], detoured]), np.concatenate([link[stays], links])

    def _find_detour(self, source: int, target: int) -> Links:
        route = self._network.detour(source, target, self._dead)
        if route is None:
            dead = ", ".join(self.name(link) for link in sorted(self._dead)[:3])
            raise HardwareError(
                f"every way from device {source} to device {target} crosses a dead link: "
                f"{dead} has a bandwidth_scale of 0",
                location=self._source,
                hint="give it some bandwidth, or leave its device out",
            )
        return route

    @property
    def bandwidth_classes(self) -> tuple[int, ...]:
        """Equal numbers for links of equal bandwidth, by sort of link; overrides left out."""
        numbers: dict[float, int] = {}
        return tuple([
            numbers.setdefault(value, len(numbers)) for value in self._bytes_per_ns.tolist()
        ])  # fmt: skip

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
        """Return the name of a link."""
        part = int(self._parts(np.array(link)))
        return self._network.name(part, link - int(self._first[part]))

    def link_named(self, name: str) -> int | None:
        """Return the number of a named link, if it exists."""
        position = self._network.find(name)
        if position is None:
            return None
        part, index = position
        link = int(self._first[part]) + index
        return link if link < self._first[-1] and self.name(link) == name else None


_PARTS = {
    Shape.RING: ("next", "previous"),
    Shape.LINE: ("next", "previous"),
    Shape.SWITCH: ("up", "down"),
    Shape.FAT_TREE: ("up", "down", "leaf_up", "leaf_down"),
    Shape.FULLY_CONNECTED: ("to",),
}
"""The parts of a dimension: one link per device each, or per leaf switch (``leaf_``)."""
_NAME = re.compile(r"(dim[0-9]+\.[a-z_]+)\.([0-9]+)(?:\.([0-9]+))?")


@frozen
class _Axis:
    """One dimension: devices are ``stride`` apart, ``first`` are its parts' first links."""

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
            if not len(moving):
                continue
            goals = places + (there - here) * axis.stride
            if len(moving) == len(places):
                crossings = _cross(axis, places, here, there)
            else:
                own = _cross(axis, places[moving], here[moving], there[moving])
                crossings = [(moving[message], link) for message, link in own]
            places = goals
            messages += [message for message, _ in crossings]
            links += [link for _, link in crossings]
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
        names = [part.name for part in self.parts]
        if match is None or match[1] not in names:
            return None
        part = names.index(match[1])
        axis, index = self._axis_of_part[part], int(match[2])
        if axis.dimension.shape is Shape.FULLY_CONNECTED and match[3] is not None:
            coordinate = int(match[3]) // axis.stride % axis.dimension.size
            index = index * axis.dimension.size + coordinate
        if axis.dimension.is_hashed and self.parts[part].is_of_leaf:
            index = index * (axis.dimension.spines or 1) + int(match[3] or 0)
        return part, index

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return the shortest route without dead links, if any.

        The ends decide between equally short ones, so that messages spread.
        """

        def moves(device: int) -> list[Move[int]]:
            all_moves = [move for axis in self._axes for move in _moves(axis, device)]
            alive = [(node, links) for node, links in all_moves if dead.isdisjoint(links)]
            turn = spread(source, target, device) % len(alive) if alive else 0
            return [*alive[turn:], *alive[:turn]]

        def distance(device: int) -> int:
            return sum(_distance(axis, device, target) for axis in self._axes)

        return shortest_route(source, target, moves, distance)


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
    """Return the links crossed along a dimension, over ``spine`` or a hashed one."""
    every, first = np.arange(len(places)), axis.first
    goals = places + (there - here) * axis.stride
    match axis.dimension.shape:
        case Shape.FULLY_CONNECTED:
            return [(every, first[0] + places * axis.dimension.size + there)]
        case Shape.SWITCH:
            return [(every, first[0] + places), (every, first[1] + goals)]
        case Shape.FAT_TREE:
            leaf, goal_leaf = _leaf(axis, places), _leaf(axis, goals)
            (climbing,) = np.nonzero(leaf != goal_leaf)
            spines = axis.dimension.spines or 1
            if spine is None:
                spine = spread(places, goals, 0, axis.dimension.seed) % spines
            up, down = spines * leaf + spine, spines * goal_leaf + spine
            return [
                (every, first[0] + places),
                (every, first[1] + goals),
                (climbing, first[2] + up[climbing]),
                (climbing, first[3] + down[climbing]),
            ]
        case Shape.RING:
            distance = _shorter_way(here, there, axis.dimension.size)
            return [_around_ring(axis, places, here, distance)]
        case Shape.LINE:
            return [_around_ring(axis, places, here, there - here)]
        case _:
            assert_never(axis.dimension.shape)


def _leaf(axis: _Axis, devices: Integers) -> Integers:
    size, leaf_size = axis.dimension.size, axis.dimension.leaf_size or 1
    block = devices // (axis.stride * size) * axis.stride + devices % axis.stride
    return block * (size // leaf_size) + axis.coordinate(devices) // leaf_size


def _shorter_way(here: Integers, there: Integers, size: int) -> Integers:
    """Return a message's distance around a ring, below 0 downwards.

    Of two equally long ways, every other device takes the one upwards.
    """
    up = (there - here) % size
    goes_up = (2 * up < size) | ((2 * up == size) & (here % 2 == 0))
    return np.where(goes_up, up, up - size)


def _around_ring(axis: _Axis, places: Integers, here: Integers, distance: Integers) -> Crossing:
    hops, step = np.abs(distance), np.sign(distance)
    message = np.repeat(np.arange(len(places)), hops)
    passed = np.arange(len(message)) - np.repeat(np.cumsum(hops) - hops, hops)
    coordinate = (here[message] + step[message] * passed) % axis.dimension.size
    device = places[message] + (coordinate - here[message]) * axis.stride
    return message, np.where(step[message] > 0, *axis.first) + device


def _moves(axis: _Axis, device: int) -> list[Move[int]]:
    """Return a device's neighbours along a dimension with their links."""
    size, shape = axis.dimension.size, axis.dimension.shape
    here = device // axis.stride % size
    if shape in {Shape.RING, Shape.LINE}:
        return [
            (device + (there % size - here) * axis.stride, (first + device,))
            for there, first in zip((here + 1, here - 1), axis.first, strict=True)
            if size > 1 and (shape is Shape.RING or 0 <= there < size)
        ]
    spines = axis.dimension.spines or 1
    there = np.repeat([coordinate for coordinate in range(size) if coordinate != here], spines)
    spine = np.tile(np.arange(spines), size - 1)
    routes: list[list[int]] = [[] for _ in there]
    places = np.full_like(there, device)
    for messages, links in _cross(axis, places, np.full_like(there, here), there, spine):
        for message, link in zip(messages, links, strict=True):
            routes[int(message)].append(int(link))
    return [
        (device + (coordinate - here) * axis.stride, tuple(route))
        for coordinate, route in zip(there.tolist(), routes, strict=True)
    ]


def _distance(axis: _Axis, device: int, target: int) -> int:
    size = axis.dimension.size
    away = abs(device // axis.stride % size - target // axis.stride % size)
    match axis.dimension.shape:
        case Shape.RING:
            return min(away, size - away)
        case Shape.LINE:
            return away
        case _:
            return min(away, 1)
