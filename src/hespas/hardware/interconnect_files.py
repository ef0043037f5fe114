"""Read the network of a system for hespas' own model: ``hespas/network.json``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hespas.config.decode import decode
from hespas.config.files import read_json
from hespas.errors import HardwareError
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    Edge,
    Fabric,
    Graph,
    Interconnect,
    Shape,
)
from hespas.hardware.link_wire import (
    DimensionWire,
    DragonflyWire,
    GraphWire,
    InterconnectWire,
    ParametersWire,
)
from hespas.hardware.links import Link, LinkParameters, link_names, link_parameters, load_link


def read_interconnect(path: Path, *, name: str) -> Interconnect:
    """Return the network that a ``network.json`` describes.

    Paths in it are relative to it. Raises `ConfigError` for what the file may not hold,
    `HardwareError` for figures that are missing or contradict each other.
    """
    location = str(path)
    wire = decode(read_json(path), InterconnectWire, location=location)
    return Interconnect(
        name=name,
        fabric=_fabric(wire, path),
        algorithms={
            kind: (names,) if isinstance(names, str) else tuple(names)
            for kind, names in wire.algorithms.items()
        },
        endpoint_delay_s=wire.endpoint_delay_s,
        memory_bytes_per_s=wire.memory_bytes_per_s,
    )


def _fabric(wire: InterconnectWire, path: Path) -> Fabric:
    given = [wire.dimensions is not None, wire.dragonfly is not None, wire.graph is not None]
    if given.count(True) != 1:
        hint = "give one of dimensions, dragonfly and graph"
        raise HardwareError(
            f"{given.count(True)} networks are given", location=str(path), hint=hint
        )
    try:
        if wire.dimensions is not None:
            dimensions = [_dimension(one, path) for one in wire.dimensions]
            return Dimensions(dimensions=tuple(dimensions))
        if wire.dragonfly is not None:
            return _dragonfly(wire.dragonfly, path)
        if wire.graph is not None:
            return _graph(_graph_wire(wire.graph, path), path)
    except HardwareError as error:
        location = error.location or str(path)
        raise HardwareError(error.message, location=location, hint=error.hint) from error
    raise AssertionError


def _dimension(wire: DimensionWire, path: Path) -> Dimension:
    link = _link(wire.link, path)
    parameters = _parameters(wire.link, link, path)
    if wire.latency_s is not None:
        parameters = replace(parameters, latency_s=wire.latency_s)
    if wire.reduces_in_switch is not None:
        parameters = replace(parameters, reduces_in_switch=wire.reduces_in_switch)
    return Dimension(
        shape=Shape(wire.topology),
        size=wire.size,
        parameters=parameters,
        leaf_size=wire.leaf_size,
        oversubscription=wire.oversubscription,
        measured=link if link is not None and link.collectives else None,
    )


def _link(given: str | ParametersWire, path: Path) -> Link | None:
    if isinstance(given, ParametersWire):
        return None
    return load_link(given if given in link_names() else path.parent / given)


def _parameters(given: str | ParametersWire, link: Link | None, path: Path) -> LinkParameters:
    if isinstance(given, ParametersWire):
        return link_parameters(given, str(path))
    if link is None or link.parameters is None:
        hint = "add the key link to its file"
        raise HardwareError(f"the link {given} has no parameters", location=str(path), hint=hint)
    return link.parameters


def _dragonfly(wire: DragonflyWire, path: Path) -> Dragonfly:
    def parameters(given: str | ParametersWire) -> LinkParameters:
        return _parameters(given, _link(given, path), path)

    return Dragonfly(
        groups=wire.groups,
        routers_per_group=wire.routers_per_group,
        devices_per_router=wire.devices_per_router,
        device_link=parameters(wire.device_link),
        local_link=parameters(wire.local_link),
        global_link=parameters(wire.global_link),
    )


def _graph_wire(given: str | GraphWire, path: Path) -> GraphWire:
    if isinstance(given, GraphWire):
        return given
    file = path.parent / given
    return decode(read_json(file), GraphWire, location=str(file))


def _graph(wire: GraphWire, path: Path) -> Graph:
    nodes = [*wire.devices, *wire.switches]
    twice = next((node for node in nodes if nodes.count(node) > 1), None)
    if twice is not None:
        raise HardwareError(f"the node {twice!r} is listed twice", location=str(path))
    edges: list[Edge] = []
    for link in wire.links:
        absent = next((end for end in (link.source, link.target) if end not in nodes), None)
        if absent is not None or link.source == link.target:
            message = f"a link goes from {link.source!r} to {link.target!r}"
            hint = "name two nodes of devices and switches"
            raise HardwareError(message, location=str(path), hint=hint)
        ends = [(link.source, link.target)]
        if link.both_ways:
            ends.append((link.target, link.source))
        edges += [
            Edge(
                source=source,
                target=target,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                latency_s=link.latency_s,
            )
            for source, target in ends
        ]
    return Graph(devices=tuple(wire.devices), switches=tuple(wire.switches), edges=tuple(edges))
