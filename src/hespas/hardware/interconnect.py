"""The network between devices, for hespas' own network model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from math import isfinite, prod
from types import MappingProxyType

from msgspec import Struct

from hespas.base.figures import Count, NotNegative, Positive
from hespas.base.frozen import frozen
from hespas.errors import HardwareError
from hespas.hardware.links import Link, LinkParameters
from hespas.hardware.machine_links import Graph
from hespas.hardware.scales import check_latency, check_link_rate

_MOST_LINKS = 1 << 20


class Shape(Enum):
    """How the devices along one dimension are connected."""

    RING = "ring"
    LINE = "line"
    FULLY_CONNECTED = "fully_connected"
    SWITCH = "switch"
    FAT_TREE = "fat_tree"


class Routing(Enum):
    """How messages between leaf switches spread over the spines.

    ``ECMP``: a hash of both ends chooses one, so that messages collide. ``SPRAYING``: packets go
    over all of them in turn; ``ADAPTIVE``: each where its queue is shortest. To rates of flows both
    are as if the uplinks were one.
    """

    ECMP = "ecmp"
    SPRAYING = "spraying"
    ADAPTIVE = "adaptive"


@frozen
class Dimension:
    """``size`` devices along one dimension, each with own links.

    A line is a ring without the link that would close it. A fat tree has leaf switches of
    ``leaf_size`` devices; the uplinks of one together have ``leaf_size / oversubscription`` times
    the bandwidth of one device's link. They are as one link, or lead to ``spines`` switches, of
    which a hash with ``seed`` chooses one for the messages between two devices. ``measured`` holds
    times of collectives along this dimension. Raises `HardwareError` for impossible figures.
    """

    shape: Shape
    size: int
    parameters: LinkParameters
    leaf_size: int | None = None
    oversubscription: float = 1.0
    spines: int | None = None
    seed: int = 0
    measured: Link | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise HardwareError(f"a dimension has {self.size} devices", hint="give 1 or more")
        bandwidth, latency_s = self.bandwidth_bytes_per_s, self.latency_s
        if not (isfinite(bandwidth) and bandwidth > 0):
            raise HardwareError(f"bandwidth is {bandwidth}", hint="give a positive number")
        if not (isfinite(latency_s) and latency_s >= 0):
            raise HardwareError(f"latency is {latency_s}", hint="give 0 or more")
        is_tree = self.shape is Shape.FAT_TREE
        if is_tree != (self.leaf_size is not None):
            hint = "give it, or use fat_tree"
            raise HardwareError("leaf_size and fat_tree belong together", hint=hint)
        if self.leaf_size is not None and (self.leaf_size < 1 or self.size % self.leaf_size):
            message = f"leaf switches of {self.leaf_size} devices don't divide {self.size}"
            raise HardwareError(message)
        if self.oversubscription <= 0 or (not is_tree and self.oversubscription != 1.0):
            raise HardwareError(f"oversubscription is {self.oversubscription}", hint="use fat_tree")
        if self.spines is not None and not is_tree:
            raise HardwareError(f"{self.spines} spines are given", hint="use fat_tree")
        leaves = self.size // (self.leaf_size or self.size)
        if leaves * (self.spines or 1) > _MOST_LINKS:
            message = f"{leaves} leaves have {self.spines} uplinks each"
            raise HardwareError(message, hint=f"describe at most {_MOST_LINKS} links")

    @property
    def is_hashed(self) -> bool:
        """Whether messages of other devices may take another spine."""
        return self.spines is not None and self.spines > 1

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """One direction of one link."""
        return self.parameters.bandwidth_bytes_per_s

    @property
    def latency_s(self) -> float:
        """The time of one hop."""
        return self.parameters.latency_s


def dimension_of(shape: Shape, size: int, bandwidth: float, latency_s: float) -> Dimension:
    """Return a dimension of links, with bandwidth in bytes/s."""
    link = LinkParameters(bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)
    return Dimension(shape=shape, size=size, parameters=link)


@frozen
class Dimensions:
    """Devices numbered along dimensions, the first fastest.

    Two or three rings make a torus; a switch in each node and one per rail across nodes make a
    rail-optimised cluster. A message crosses the dimensions in which its ends differ, in order.
    """

    dimensions: tuple[Dimension, ...]

    @property
    def device_count(self) -> int:
        """The number of devices: the product over the dimensions."""
        return prod(dimension.size for dimension in self.dimensions)


class DragonflyRouting(Enum):
    """The groups that a message passes.

    ``MINIMAL``: those of its ends. ``VALIANT``: a hash of both ends and a seed chooses a group
    between, so that the messages of two groups spread over all links. Source: J. Kim et al.,
    Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA 2008.
    """

    MINIMAL = "minimal"
    VALIANT = "valiant"


@frozen
class Dragonfly:
    """Connected groups of connected routers, one link between groups.

    `DragonflyRouting.VALIANT` hashes with ``seed``.
    """

    groups: int
    routers_per_group: int
    devices_per_router: int
    device_link: LinkParameters
    local_link: LinkParameters
    global_link: LinkParameters
    routing: DragonflyRouting = DragonflyRouting.MINIMAL
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("groups", "routers_per_group", "devices_per_router"):
            if getattr(self, name) < 1:
                raise HardwareError(f"{name} is {getattr(self, name)}", hint="give 1 or more")

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.groups * self.routers_per_group * self.devices_per_router


Fabric = Dimensions | Dragonfly | Graph


@frozen
class Interconnect:
    """The network of a cluster.

    ``algorithms`` names the algorithm of a kind of collective, such as ``all_reduce``: one name, or
    one per dimension; other kinds take the fastest algorithm. A device waits ``endpoint_delay_s``
    before each step of a collective. A reduction reads twice and writes once at
    ``memory_bytes_per_s`` (None: it takes no time). Durations of messages and of passes over memory
    are rounded down to ``rounding_ps``. ``source`` names the source of the figures; its first
    clause describes the links.
    """

    name: str
    fabric: Fabric
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    endpoint_delay_s: float = 0.0
    memory_bytes_per_s: float | None = None
    rounding_ps: int = 1
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithms", MappingProxyType(dict(self.algorithms)))

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.fabric.device_count

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions that devices are numbered along, if any."""
        return self.fabric.dimensions if isinstance(self.fabric, Dimensions) else ()


def without_collisions(interconnect: Interconnect) -> Interconnect:
    """Return the network with each leaf's uplinks merged."""
    if not any(dimension.is_hashed for dimension in interconnect.dimensions):
        return interconnect
    merged = [replace(dimension, spines=None) for dimension in interconnect.dimensions]
    return replace(interconnect, fabric=Dimensions(dimensions=tuple(merged)))


def switched(devices: int, *, bandwidth_bytes_per_s: float, latency_s: float) -> Interconnect:
    """Return devices around one switch, by one direction's figures."""
    dimension = dimension_of(Shape.SWITCH, devices, bandwidth_bytes_per_s, latency_s)
    return Interconnect(name="switch", fabric=Dimensions(dimensions=(dimension,)))


_MULTI_AXIS, _LOOP = "multi-axis-rings", "hamiltonian-ring"


class Slice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``slice`` of ``node.json``: a TPU's links, in bytes/s and direction.

    An axis closes to a ring where its length is a multiple of ``closed_axis``, or (``cube``) all
    lengths are multiples of ``cube``. ``on_chip_bandwidth`` joins the devices of one chip, where it
    has several. ``dcn_bandwidth`` is a device's share of its host's cards, ``dcn_latency_s`` the
    time of a message between slices.
    """

    link_bandwidth: Positive
    link_latency_s: NotNegative
    closed_axis: Count | None = None
    cube: Count | None = None
    on_chip_bandwidth: Positive | None = None
    dcn_bandwidth: Positive
    dcn_latency_s: NotNegative

    def __post_init__(self) -> None:
        for name in ("link_bandwidth", "on_chip_bandwidth", "dcn_bandwidth"):
            check_link_rate(getattr(self, name), path=f"slice.{name}")
        for name in ("link_latency_s", "dcn_latency_s"):
            check_latency(getattr(self, name), path=f"slice.{name}")

    def axis_shapes(self, sides: Sequence[int]) -> tuple[Shape, ...]:
        """Return which axes of a slice close to rings.

        >>> part = Slice(
        ...     link_bandwidth=5e10, link_latency_s=1e-6, closed_axis=16, dcn_bandwidth=1e9,
        ...     dcn_latency_s=1e-5,
        ... )
        >>> [shape.value for shape in part.axis_shapes([8, 16])]
        ['line', 'ring']
        """
        is_of_cubes = self.cube is not None and all(side % self.cube == 0 for side in sides)
        return tuple(
            Shape.RING
            if is_of_cubes or (self.closed_axis is not None and side % self.closed_axis == 0)
            else Shape.LINE
            for side in sides
        )


def slice_network(
    part: Slice, sides: Sequence[int], *, name: str, on_chip: int = 1
) -> Interconnect:
    """Return the network of a slice, ``sides`` in chips.

    Devices are numbered along the devices of a chip, then the axes.
    """
    latency_s = part.link_latency_s
    dimensions = [
        dimension_of(shape, side, part.link_bandwidth, latency_s)
        for side, shape in zip(sides, part.axis_shapes(sides), strict=True)
        if side > 1
    ]
    if on_chip > 1:
        bandwidth = part.on_chip_bandwidth or part.link_bandwidth
        chip = dimension_of(Shape.FULLY_CONNECTED, on_chip, bandwidth, latency_s)
        dimensions.insert(0, chip)
    if not dimensions:
        dimensions = [dimension_of(Shape.RING, 1, part.link_bandwidth, latency_s)]
    # libtpu takes one loop through slices as narrow as two chips of a generation with two axes.
    is_narrow = len(sides) == 2 and min(sides) <= 2
    return Interconnect(
        name=name,
        fabric=Dimensions(dimensions=tuple(dimensions)),
        algorithms={
            "all_reduce": (_LOOP if is_narrow else _MULTI_AXIS,),
            "all_gather": (_LOOP,),
            "reduce_scatter": (_LOOP,),
        },
    )
