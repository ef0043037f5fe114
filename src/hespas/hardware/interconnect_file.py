"""Read the network of hespas' own model from ``hespas/network.json``.

docs/reference/network-models.md describes the keys of the file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
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
    check_rate,
)
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    DragonflyRouting,
    Fabric,
    Interconnect,
    Routing,
    Shape,
)
from hespas.hardware.links import (
    Link,
    LinkParameters,
    check_link,
    check_protocols,
    link_names,
    load_link,
)
from hespas.hardware.machine_links import Edge, Graph, MachineFile, read_machine_links
from hespas.hardware.scales import check_latency, check_link_rate


class _DimensionFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``dimensions``; ``link`` has parameters, or names them.

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
    seed: CountOrZero | None = None


class _LeafSpineFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leaf switches and spines; ``oversubscription`` is a leaf's."""

    leaves: DeviceCount
    devices_per_leaf: DeviceCount
    spines: DeviceCount
    device_link: Text | LinkParameters
    oversubscription: Positive = 1.0
    routing: Routing = Routing.ECMP
    seed: CountOrZero | None = None


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
    """Return the network that a ``network.json`` describes.

    Paths in it are relative to it. Raises `ConfigError` for an invalid file, `HardwareError` for
    figures that are missing or contradict each other.
    """
    file = decode(read_json(path), _NetworkFile, location=str(path))
    fabric = _fabric(file, path)
    if fabric.device_count > MOST_DEVICES:
        message = f"the network has {fabric.device_count} devices"
        hint = f"describe at most {MOST_DEVICES}"
        raise HardwareError(message, location=str(path), hint=hint)
    if isinstance(fabric, Dimensions):
        _check_algorithms(file, len(fabric.dimensions), str(path))
    try:
        _check_units(fabric)
        check_latency(file.endpoint_delay_s, path="$.endpoint_delay_s")
        check_rate(file.memory_bytes_per_s, "B/s", path="$.memory_bytes_per_s")
    except ConfigError as error:
        error.location = str(path)
        raise
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


def _check_units(fabric: Fabric) -> None:
    """Raise `ConfigError` for a link whose figures are in other units."""
    match fabric:
        case Dimensions(dimensions=dimensions):
            links = [
                (f"$.dimensions[{n}].link", each.parameters) for n, each in enumerate(dimensions)
            ]
        case Dragonfly():
            names = ("device_link", "local_link", "global_link")
            links = [(f"$.dragonfly.{name}", getattr(fabric, name)) for name in names]
        case Graph(edges=edges):
            for edge in edges:
                ends = f"the link from {edge.source!r} to {edge.target!r}"
                check_link_rate(edge.bandwidth_bytes_per_s, path=f"{ends}: bandwidth_bytes_per_s")
                check_latency(edge.latency_s, path=f"{ends}: latency_s")
            return
    for name, link in links:
        check_link(link, path=name)


def _check_algorithms(file: _NetworkFile, dimensions: int, location: str) -> None:
    for kind, names in file.algorithms.items():
        if isinstance(names, tuple) and len(names) not in {1, dimensions}:
            raise HardwareError(
                f"{kind} has {len(names)} algorithms, and the network {dimensions} dimensions",
                location=location,
                hint="give one, or one for each dimension",
            )


def _fabric(file: _NetworkFile, path: Path) -> Fabric:
    forms = (file.dimensions, file.dragonfly, file.leaf_spine, file.graph, file.machine)
    networks = [form for form in forms if form is not None]
    if len(networks) != 1:
        hint = "give one of dimensions, dragonfly, leaf_spine, graph and machine"
        raise HardwareError(f"{len(networks)} networks are given", location=str(path), hint=hint)
    try:
        match networks[0]:
            case list() as entries:
                return Dimensions(dimensions=tuple([_dimension(entry, path) for entry in entries]))
            case _DragonflyFile() as dragonfly:
                if dragonfly.routing is DragonflyRouting.MINIMAL:
                    _refuse_seed(dragonfly.seed, "valiant")
                return Dragonfly(
                    groups=dragonfly.groups,
                    routers_per_group=dragonfly.routers_per_group,
                    devices_per_router=dragonfly.devices_per_router,
                    device_link=_link(dragonfly.device_link, path)[1],
                    local_link=_link(dragonfly.local_link, path)[1],
                    global_link=_link(dragonfly.global_link, path)[1],
                    routing=dragonfly.routing,
                    seed=dragonfly.seed or 0,
                )
            case _LeafSpineFile() as leaf_spine:
                return _leaf_spine(leaf_spine, path)
            case MachineFile() as machine:
                described = path.parent / machine.file
                if described.suffix not in _INFRAGRAPH_SUFFIXES:
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
        # A preset states the bandwidth of all links of a device; here each goes to one device.
        bandwidth = parameters.bandwidth_bytes_per_s / (file.size - 1)
        parameters = msgspec.structs.replace(parameters, bandwidth_bytes_per_s=bandwidth)
    if file.spines is None and (file.routing is not None or file.seed is not None):
        message = "routing and seed have no effect without spines"
        raise HardwareError(message, location=str(path), hint="add spines: 8")
    is_hashed = file.routing in {None, Routing.ECMP}
    if not is_hashed:
        _refuse_seed(file.seed, "ecmp")
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


def _refuse_seed(seed: int | None, routing: str) -> None:
    """Refuse a seed where no hash chooses a path."""
    if seed is not None:
        raise HardwareError(
            f"seed is {seed}, and no hash chooses the path of a message",
            hint=f"drop it, or give routing: {routing}",
        )


def _link(entry: str | LinkParameters, path: Path) -> tuple[Link | None, LinkParameters]:
    """Return the link that an entry names, and its parameters."""
    if isinstance(entry, LinkParameters):
        check_protocols(entry, str(path))
        return None, entry
    named, presets = path.parent / entry, link_names()
    if entry not in presets and not named.suffix and not named.exists():
        message = f"no link preset or file is named {entry!r}"
        raise HardwareError(message, location=str(path), hint=suggestion(entry, presets))
    link = load_link(entry if entry in presets else named)
    if link.parameters is None:
        hint = "add the key link to its file"
        raise HardwareError(f"the link {entry} has no parameters", location=str(path), hint=hint)
    return link, link.parameters


def _graph(file: _GraphFile, path: Path) -> Graph:
    nodes = Counter([*file.devices, *file.switches])
    repeated = next((node for node, count in nodes.items() if count > 1), None)
    if repeated is not None:
        raise HardwareError(f"the node {repeated!r} is listed twice", location=str(path))
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
    between = Counter((edge.source, edge.target) for edge in edges)
    parallel = next((ends for ends, count in between.items() if count > 1), None)
    if parallel is not None:
        message = f"two links go from {parallel[0]!r} to {parallel[1]!r}"
        hint = "give one, of their bandwidth together; both_ways: false is for one direction"
        raise HardwareError(message, location=str(path), hint=hint)
    return Graph(devices=file.devices, switches=file.switches, edges=tuple(edges))


_INFRAGRAPH_SUFFIXES = (".yml", ".yaml", ".json")
