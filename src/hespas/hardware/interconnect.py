"""The network between devices as hespas' network model sees it, and ``hespas/network.json``.

docs/reference/network-models.md describes the keys of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from math import isfinite, prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from hespas.base.decode import decode, read_json
from hespas.base.figures import (
    MOST_DEVICES,
    Count,
    CountOrZero,
    DeviceCount,
    NotNegative,
    Positive,
    Text,
)
from hespas.base.frozen import frozen
from hespas.errors import HardwareError
from hespas.hardware.links import Link, LinkParameters, check_protocols, link_names, load_link
from hespas.hardware.machine_links import Edge, Graph, MachineFile, read_machine_links

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
    """``size`` devices along one dimension, in which each has its own links.

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
    """Return a dimension whose links have a bandwidth, in bytes/s, and a latency."""
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
    """Which groups a message passes: those of its ends, or one more.

    ``VALIANT``: a hash of both ends and a seed chooses a group between, so that the messages of two
    groups spread over all links. Source: J. Kim et al., Technology-Driven, Highly-Scalable
    Dragonfly Topology, ISCA 2008.
    """

    MINIMAL = "minimal"
    VALIANT = "valiant"


@frozen
class Dragonfly:
    """Groups of routers: all connected inside, one link between two groups.

    ``seed`` is that of the hash of `DragonflyRouting.VALIANT`.
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
    are rounded down to ``rounding_ps``. ``source`` is where the figures are from; its first clause
    says what the links are.
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
        """The dimensions that devices are numbered along; none where it has another form."""
        return self.fabric.dimensions if isinstance(self.fabric, Dimensions) else ()


def without_collisions(interconnect: Interconnect) -> Interconnect:
    """Return the network with each leaf's hashed uplinks merged into one."""
    if not any(dimension.is_hashed for dimension in interconnect.dimensions):
        return interconnect
    one = [replace(dimension, spines=None) for dimension in interconnect.dimensions]
    return replace(interconnect, fabric=Dimensions(dimensions=tuple(one)))


def switched(devices: int, *, bandwidth_bytes_per_s: float, latency_s: float) -> Interconnect:
    """Return devices around one switch, given a link's figures in one direction."""
    dimension = dimension_of(Shape.SWITCH, devices, bandwidth_bytes_per_s, latency_s)
    return Interconnect(name="switch", fabric=Dimensions(dimensions=(dimension,)))


# The file names links where the values above hold their figures, so its form is a separate one.


class _DimensionFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``dimensions``; ``link`` is a preset's name, a path, or parameters.

    ``latency_s`` and ``reduces_in_switch`` replace those of the link. With ``spines`` a leaf has
    an uplink to each, and ``routing`` and ``seed`` choose the one that a message takes.
    """

    topology: Shape
    size: DeviceCount
    link: Text | LinkParameters
    latency_s: NotNegative | None = None
    reduces_in_switch: bool | None = None
    leaf_size: Count | None = None
    oversubscription: Positive = 1.0
    spines: DeviceCount | None = None
    routing: Routing | None = None
    seed: CountOrZero | None = None


class _DragonflyFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    groups: DeviceCount
    routers_per_group: DeviceCount
    devices_per_router: DeviceCount
    device_link: Text | LinkParameters
    local_link: Text | LinkParameters
    global_link: Text | LinkParameters
    routing: DragonflyRouting = DragonflyRouting.MINIMAL
    seed: CountOrZero = 0


class _LeafSpineFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``oversubscription`` is that of a leaf, and says the bandwidth of its uplinks."""

    leaves: DeviceCount
    devices_per_leaf: DeviceCount
    spines: DeviceCount
    device_link: Text | LinkParameters
    oversubscription: Positive = 1.0
    routing: Routing = Routing.ECMP
    seed: CountOrZero = 0


class _EdgeFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Text = msgspec.field(name="from")
    target: Text = msgspec.field(name="to")
    bandwidth_bytes_per_s: Positive
    latency_s: NotNegative = 0.0
    both_ways: bool = True


class _GraphFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``graph``, or the file that it names."""

    devices: Annotated[tuple[Text, ...], Meta(min_length=1)]
    switches: tuple[Text, ...] = ()
    links: list[_EdgeFile]


_Kind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
    "scatter", "barrier",
]  # fmt: skip


class _NetworkFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Text | None = None
    dimensions: Annotated[list[_DimensionFile], Meta(min_length=1)] | None = None
    dragonfly: _DragonflyFile | None = None
    leaf_spine: _LeafSpineFile | None = None
    graph: Text | _GraphFile | None = None
    machine: MachineFile | None = None
    algorithms: dict[_Kind, Text | Annotated[tuple[Text, ...], Meta(min_length=1)]] = {}
    endpoint_delay_s: NotNegative = 0.0
    memory_bytes_per_s: Positive | None = None


def read_interconnect(path: Path, *, name: str) -> Interconnect:
    """Return the network that a ``network.json`` describes; paths in it are relative to it.

    Raises `ConfigError` for an invalid file, `HardwareError` for figures that are missing or
    contradict each other.
    """
    file = decode(read_json(path), _NetworkFile, location=str(path))
    fabric = _fabric(file, path)
    if fabric.device_count > MOST_DEVICES:
        message = f"the network has {fabric.device_count} devices"
        hint = f"describe at most {MOST_DEVICES}"
        raise HardwareError(message, location=str(path), hint=hint)
    return Interconnect(
        name=name,
        fabric=fabric,
        algorithms={
            kind: (names,) if isinstance(names, str) else names
            for kind, names in file.algorithms.items()
        },
        endpoint_delay_s=file.endpoint_delay_s,
        memory_bytes_per_s=file.memory_bytes_per_s,
        source=file.source or "",
    )


def _fabric(file: _NetworkFile, path: Path) -> Fabric:
    networks = (file.dimensions, file.dragonfly, file.leaf_spine, file.graph, file.machine)
    given = [network for network in networks if network is not None]
    if len(given) != 1:
        hint = "give one of dimensions, dragonfly, leaf_spine, graph and machine"
        raise HardwareError(f"{len(given)} networks are given", location=str(path), hint=hint)
    try:
        match given[0]:
            case list() as dimensions:
                return Dimensions(dimensions=tuple([_dimension(one, path) for one in dimensions]))
            case _DragonflyFile() as dragonfly:
                return Dragonfly(
                    groups=dragonfly.groups,
                    routers_per_group=dragonfly.routers_per_group,
                    devices_per_router=dragonfly.devices_per_router,
                    device_link=_link(dragonfly.device_link, path)[1],
                    local_link=_link(dragonfly.local_link, path)[1],
                    global_link=_link(dragonfly.global_link, path)[1],
                    routing=dragonfly.routing,
                    seed=dragonfly.seed,
                )
            case _LeafSpineFile() as leaf_spine:
                return _leaf_spine(leaf_spine, path)
            case MachineFile() as machine:
                described = path.parent / machine.file
                if described.suffix not in _OF_INFRAGRAPH:
                    return read_machine_links(described, machine)
                # Few networks are described so.
                from hespas.hardware.infragraph import read_infragraph  # noqa: PLC0415

                return read_infragraph(described, machine)
            case graph:
                if isinstance(graph, str):
                    graph_file = path.parent / graph
                    graph = decode(read_json(graph_file), _GraphFile, location=str(graph_file))
                return _graph(graph, path)
    except HardwareError as error:
        error.location = error.location or str(path)
        raise


def _leaf_spine(file: _LeafSpineFile, path: Path) -> Dimensions:
    """Return one dimension: a fat tree with spines."""
    tree = _DimensionFile(
        topology=Shape.FAT_TREE,
        size=file.leaves * file.devices_per_leaf,
        link=file.device_link,
        leaf_size=file.devices_per_leaf,
        oversubscription=file.oversubscription,
        spines=file.spines,
        routing=file.routing,
        seed=file.seed,
    )
    return Dimensions(dimensions=(_dimension(tree, path),))


def _dimension(file: _DimensionFile, path: Path) -> Dimension:
    link, parameters = _link(file.link, path)
    if file.latency_s is not None:
        parameters = msgspec.structs.replace(parameters, latency_s=file.latency_s)
    if file.reduces_in_switch is not None:
        parameters = msgspec.structs.replace(parameters, reduces_in_switch=file.reduces_in_switch)
    if link is not None and file.topology is Shape.FULLY_CONNECTED and file.size > 2:
        # A preset has the figures of all links of a device; here they go to so many others.
        each = parameters.bandwidth_bytes_per_s / (file.size - 1)
        parameters = msgspec.structs.replace(parameters, bandwidth_bytes_per_s=each)
    if file.spines is None and (file.routing is not None or file.seed is not None):
        message = "routing and seed have no effect without spines"
        raise HardwareError(message, location=str(path), hint="add spines: 8")
    is_hashed = file.routing in {None, Routing.ECMP}
    return Dimension(
        shape=file.topology,
        size=file.size,
        parameters=parameters,
        leaf_size=file.leaf_size,
        oversubscription=file.oversubscription,
        spines=file.spines if is_hashed else None,
        seed=file.seed or 0,
        measured=link if link is not None and link.collectives else None,
    )


def _link(given: str | LinkParameters, path: Path) -> tuple[Link | None, LinkParameters]:
    """Return the link that ``given`` names, if any, and the parameters."""
    if isinstance(given, LinkParameters):
        check_protocols(given, str(path))
        return None, given
    link = load_link(given if given in link_names() else path.parent / given)
    if link.parameters is None:
        hint = "add the key link to its file"
        raise HardwareError(f"the link {given} has no parameters", location=str(path), hint=hint)
    return link, link.parameters


def _graph(file: _GraphFile, path: Path) -> Graph:
    nodes = Counter([*file.devices, *file.switches])
    twice = next((node for node, count in nodes.items() if count > 1), None)
    if twice is not None:
        raise HardwareError(f"the node {twice!r} is listed twice", location=str(path))
    edges: list[Edge] = []
    for link in file.links:
        ends = (link.source, link.target)
        if link.source == link.target or not nodes.keys() >= {*ends}:
            message = f"a link goes from {link.source!r} to {link.target!r}"
            hint = "name two nodes of devices and switches"
            raise HardwareError(message, location=str(path), hint=hint)
        edges.append(Edge(*ends, link.bandwidth_bytes_per_s, link.latency_s))
        if link.both_ways:
            edges.append(edges[-1].reversed)
    return Graph(devices=file.devices, switches=file.switches, edges=tuple(edges))


_OF_INFRAGRAPH = (".yml", ".yaml", ".json")


_MULTI_AXIS, _LOOP = "multi-axis-rings", "hamiltonian-ring"
_TOGETHER = 2


class Slice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``slice`` of a TPU's ``node.json``: the links of one device, in bytes/s and direction.

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
    """Return the network of a slice with so many chips along each axis.

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
    is_narrow = len(sides) == _TOGETHER and min(sides) <= _TOGETHER
    return Interconnect(
        name=name,
        fabric=Dimensions(dimensions=tuple(dimensions)),
        algorithms={
            "all_reduce": (_LOOP if is_narrow else _MULTI_AXIS,),
            "all_gather": (_LOOP,),
            "reduce_scatter": (_LOOP,),
        },
    )
