"""What matters of a group smaller than the system: how far its members are from each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind, System
from hespas.simulate.algorithms import Algorithm
from hespas.simulate.implementations import group_implementation
from hespas.simulate.network import Route, route

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's size, and its routes by algorithm and by distance in its list.

    A route is None where members at that distance do not all have equal routes.
    """

    size: int
    routes: tuple[tuple[Algorithm, int, Route | None], ...]


def group_shape(system: System, group: Group, algorithms: frozenset[Algorithm]) -> GroupShape:
    """Return the shape of a group, with the distances that its algorithms use.

    Raises `SimulationError` for a group of one device.
    """
    if len(group) < 2:
        message = f"the group {list(group)} has only one member"
        raise SimulationError(message, hint="leave collectives of one device out")
    routes = [
        (algorithm, distance, _common_route(system, _pairs(algorithm, group, distance)))
        for algorithm in sorted(algorithms, key=lambda algorithm: algorithm.value)
        for distance in _distances(algorithm, len(group))
    ]
    return GroupShape(len(group), tuple(routes))


def group_algorithms(system: System, kinds: Iterable[CollectiveKind]) -> frozenset[Algorithm]:
    """Return the algorithms that groups smaller than the system use for some collectives."""
    return frozenset(group_implementation(system, kind).algorithm for kind in kinds)


def _distances(algorithm: Algorithm, size: int) -> Iterable[int]:
    match algorithm:
        case Algorithm.RING:
            return (1,)
        case Algorithm.DIRECT:
            return range(1, size)
        case Algorithm.HALVING_DOUBLING:
            return [1 << level for level in range((size - 1).bit_length())]
        case Algorithm.DOUBLE_BINARY_TREE:
            return ()
        case _:
            assert_never(algorithm)


def _pairs(algorithm: Algorithm, group: Group, distance: int) -> Iterator[tuple[int, int]]:
    """Yield the members that speak to each other: around the list, or within its blocks."""
    size = len(group)
    if algorithm is not Algorithm.HALVING_DOUBLING:
        yield from ((group[i], group[(i + distance) % size]) for i in range(size))
        return
    for index in range(size - distance):
        if index // distance % 2 == 0:
            yield group[index], group[index + distance]


def _common_route(system: System, pairs: Iterable[tuple[int, int]]) -> Route | None:
    found: Route | None = None
    for source, target in pairs:
        way = route(system, source, target)
        if found not in (None, way):
            return None
        found = way
    return found
