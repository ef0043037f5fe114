"""Messages between devices, without congestion: each has every link to itself.

Source of the rules: ASTRA-sim's analytical back end, congestion-unaware.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from hespas.base.suggest import choice
from hespas.base.units import to_ns
from hespas.hardware.system import NetworkDimension, System, Topology

_NS_PER_S = 1_000_000_000


class ContentionModel(Enum):
    """How messages share links."""

    CONGESTION_UNAWARE = "congestion-unaware"
    CONGESTION_AWARE = "congestion-aware"


def contention_model_named(name: str) -> ContentionModel:
    """Return the network of a name; `ConfigError` for any other.

    >>> contention_model_named("congestion-unaware")
    <ContentionModel.CONGESTION_UNAWARE: 'congestion-unaware'>
    """
    return choice(name, ContentionModel, what="network")


@dataclass(frozen=True, slots=True)
class Route:
    """What a message crosses: some links of one dimension of the network."""

    dimension: int
    hops: int


def bytes_per_ns(dimension: NetworkDimension) -> float:
    """Return a link's bandwidth."""
    return dimension.bandwidth_bytes_per_s / _NS_PER_S


def endpoint_ns(system: System) -> int:
    """Return what a device waits before each message of a collective."""
    return round(to_ns(system.endpoint_delay_s))


def hops(dimension: NetworkDimension, distance: int) -> int:
    """Return the links between two devices that are ``distance`` apart in one dimension.

    Fully connected: 1. Through a switch: 2. In a ring, with links in both directions: the fewer.
    """
    match dimension.topology:
        case Topology.FULLY_CONNECTED:
            return 1
        case Topology.SWITCH:
            return 2
        case Topology.RING:
            distance %= dimension.npus_count
            return min(distance, dimension.npus_count - distance)
        case _:
            assert_never(dimension.topology)


def route(system: System, source: int, target: int) -> Route:
    """Return the route between two different devices.

    Only the first dimension in which they differ counts; the others are free of charge.
    """
    for index, dimension in enumerate(system.dimensions):
        distance = target % dimension.npus_count - source % dimension.npus_count
        if distance:
            return Route(index, hops(dimension, distance))
        source //= dimension.npus_count
        target //= dimension.npus_count
    message = "a device has no route to itself"
    raise ValueError(message)


def delay_ns(system: System, route: Route, size_bytes: int) -> int:
    """Return how long a message takes: ``floor(hops * latency + size / bandwidth)``, in ns."""
    dimension = system.dimensions[route.dimension]
    return int(route.hops * to_ns(dimension.latency_s) + size_bytes / bytes_per_ns(dimension))


def reduce_ns(system: System, size_bytes: int) -> int:
    """Return how long a reduction takes: two reads and a write of local memory.

    Each is rounded down to whole ns, as in ASTRA-sim.
    """
    bandwidth_bytes_per_s = system.local_memory_bandwidth_bytes_per_s
    if bandwidth_bytes_per_s is None:
        return 0
    return 3 * int(size_bytes / bandwidth_bytes_per_s * 1e9)
