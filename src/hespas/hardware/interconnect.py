"""What connects devices, for hespas' own network model: shapes of links, and how they behave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from types import MappingProxyType

from hespas.errors import HardwareError
from hespas.hardware.links import Link, LinkParameters
from hespas.hardware.system import CollectiveKind, System, Topology


class Shape(Enum):
    """How the devices along one dimension are wired."""

    RING = "ring"
    FULLY_CONNECTED = "fully_connected"
    SWITCH = "switch"
    FAT_TREE = "fat_tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """``size`` devices along one dimension, each with links of its own there.

    A fat tree has leaf switches of ``leaf_size`` devices, whose links upwards together have
    ``leaf_size / oversubscription`` times the bandwidth of one device's. ``measured`` holds times
    of collectives along this dimension. Raises `HardwareError` for impossible figures.
    """

    shape: Shape
    size: int
    parameters: LinkParameters
    leaf_size: int | None = None
    oversubscription: float = 1.0
    measured: Link | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise HardwareError(f"a dimension has {self.size} devices", hint="give 1 or more")
        is_tree = self.shape is Shape.FAT_TREE
        if is_tree != (self.leaf_size is not None):
            hint = "give it, or use fat_tree"
            raise HardwareError("leaf_size and fat_tree belong together", hint=hint)
        if self.leaf_size is not None and (self.leaf_size < 1 or self.size % self.leaf_size):
            message = f"leaf switches of {self.leaf_size} devices don't divide {self.size}"
            raise HardwareError(message)
        if self.oversubscription <= 0 or (not is_tree and self.oversubscription != 1.0):
            raise HardwareError(f"oversubscription is {self.oversubscription}", hint="use fat_tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Devices numbered along dimensions, the first fastest.

    Two or three rings make a torus; a switch inside the node and one a rail across nodes make a
    rail-optimised cluster. A message goes along the dimensions in which its ends differ, the
    first one first.
    """

    dimensions: tuple[Dimension, ...]

    @property
    def device_count(self) -> int:
        """The number of devices: the product over the dimensions."""
        return prod(one.size for one in self.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dragonfly:
    """Groups of routers, all connected to each other within a group; one wire between two groups.

    A message takes the shortest way: at most one wire between groups. Source: J. Kim et al.,
    Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA 2008, with minimal routing.
    """

    groups: int
    routers_per_group: int
    devices_per_router: int
    device_link: LinkParameters
    local_link: LinkParameters
    global_link: LinkParameters

    def __post_init__(self) -> None:
        for name in ("groups", "routers_per_group", "devices_per_router"):
            if getattr(self, name) < 1:
                raise HardwareError(f"{name} is {getattr(self, name)}", hint="give 1 or more")

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.groups * self.routers_per_group * self.devices_per_router


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A wire from one node to another, by their names; one direction."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Devices and switches by name, and wires between them. Devices are numbered as listed.

    A message takes a way of fewest wires; of several, the same always for the same two ends.
    """

    devices: tuple[str, ...]
    switches: tuple[str, ...]
    edges: tuple[Edge, ...]

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.devices)


Fabric = Dimensions | Dragonfly | Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The network of a cluster.

    ``algorithms`` tells the algorithm of a collective (by its kind, as ``all_reduce``): one name,
    or one for each dimension; kinds that aren't there take the cheapest. ``endpoint_delay_s`` is
    what a device waits before each step of a collective. A reduction reads twice and writes once
    at ``memory_bytes_per_s`` (None: it costs nothing). Durations of messages and of passes over
    memory are rounded down to ``rounding_ps``.
    """

    name: str
    fabric: Fabric
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    endpoint_delay_s: float = 0.0
    memory_bytes_per_s: float | None = None
    rounding_ps: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithms", MappingProxyType(dict(self.algorithms)))

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.fabric.device_count


def switched(devices: int, *, bandwidth_bytes_per_s: float, latency_s: float) -> Interconnect:
    """Return devices around one switch, by the figures of one direction of a device's wire."""
    wire = LinkParameters(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)
    dimension = Dimension(shape=Shape.SWITCH, size=devices, parameters=wire)
    return Interconnect(name="switch", fabric=Dimensions(dimensions=(dimension,)))


_SHAPES = {
    Topology.RING: Shape.RING,
    Topology.FULLY_CONNECTED: Shape.FULLY_CONNECTED,
    Topology.SWITCH: Shape.SWITCH,
}
_KINDS = {kind: kind.value.replace("-", "_") for kind in CollectiveKind}


def interconnect_of(system: System) -> Interconnect:
    """Return a system's network: its own description, or that of its files for ASTRA-sim.

    With the latter, collectives run as system.json tells, where it does, and messages and
    reductions are rounded down to ns, as in ASTRA-sim.
    """
    if system.interconnect is not None:
        return system.interconnect
    dimensions = [
        Dimension(
            shape=_SHAPES[one.topology],
            size=one.npus_count,
            parameters=LinkParameters(
                bandwidth_bytes_per_s=one.bandwidth_bytes_per_s,
                latency_s=one.latency_s,
            ),
        )
        for one in system.dimensions
    ]
    return Interconnect(
        name=system.name,
        fabric=Dimensions(dimensions=tuple(dimensions)),
        algorithms={_KINDS[kind]: names for kind, names in system.implementations.items()},
        endpoint_delay_s=system.endpoint_delay_s,
        memory_bytes_per_s=system.local_memory_bandwidth_bytes_per_s,
        rounding_ps=1000,
    )
