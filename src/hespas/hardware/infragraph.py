"""Read how devices are wired from infragraph's YAML or JSON.

infragraph (MIT, infragraph.dev) describes devices with components, instances of devices, and edges
between them by slices of their names. `read_infragraph` reads version 3.1.0 of its files without
its package, and expands them as that does: nodes are ``instance.0.component.0``, an edge goes both
ways, and there is one between two nodes, the last that is described. Components of kind ``xpu`` are
devices, all others pass messages on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hespas.base.decode import decode, read_document
from hespas.base.figures import CountOrZero, NotNegative, Positive, Text
from hespas.errors import HardwareError, UnsupportedError
from hespas.hardware.machine_links import Edge, Graph, MachineFile

_MOST_NODES = 1 << 18
_MOST_EDGES = 1 << 20
_PART = re.compile(r"([^.\[\]]+)(?:\[([-0-9:]*)\])?")
_SLICE = re.compile(r"(-?[0-9]{1,9})?(?::(-?[0-9]{1,9})?(?::(-?[1-9][0-9]{0,8})?)?)?")


class _Bandwidth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    choice: str | None = None
    gigabits_per_second: Positive | None = None
    gigabytes_per_second: Positive | None = None
    gigatransfers_per_second: Positive | None = None


class _Latency(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    choice: str | None = None
    ms: NotNegative | None = None
    us: NotNegative | None = None
    ns: NotNegative | None = None


class _Physical(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bandwidth: _Bandwidth = _Bandwidth()
    latency: _Latency = _Latency()


class _Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Text
    description: str = ""
    physical: _Physical = _Physical()


class _Component(Struct, frozen=True, kw_only=True):
    """A component; its other keys say nothing of its connections."""

    name: Text
    count: CountOrZero
    choice: Text


class _Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    component: Text
    device: Text | None = None
    instance: Text | None = None


class _EdgeFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ep1: _Endpoint
    ep2: _Endpoint
    link: Text
    scheme: Literal["one2one", "many2many", "ring"]


class _Device(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Text
    description: str = ""
    components: tuple[_Component, ...] = ()
    links: tuple[_Link, ...] = ()
    edges: tuple[_EdgeFile, ...] = ()


class _Instance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Text
    device: Text
    count: CountOrZero
    description: str = ""


class _Infrastructure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    description: str = ""
    devices: tuple[_Device, ...] = ()
    links: tuple[_Link, ...] = ()
    instances: tuple[_Instance, ...] = ()
    edges: tuple[_EdgeFile, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Expanded:
    """The nodes with their kinds, and links by ends."""

    location: str
    devices: Mapping[str, _Device]
    nodes: dict[str, str] = field(default_factory=dict[str, str])
    edges: dict[tuple[str, str], _Link] = field(default_factory=dict[tuple[str, str], _Link])

    def error(self, message: str, hint: str) -> HardwareError:
        return HardwareError(message, location=self.location, hint=hint)


def read_infragraph(path: Path, figures: MachineFile) -> Graph:
    """Return the network of an infrastructure's devices.

    Raises `ConfigError` for a file that is no infrastructure, `HardwareError` for undefined names,
    missing figures, and figures without effect.
    """
    unused = ("nvlink_bandwidth_bytes_per_s", "socket_bandwidth_bytes_per_s")
    for name in unused:
        if getattr(figures, name) is not None:
            message = f"{name} has no effect on links that have names"
            raise HardwareError(message, location=str(path), hint="give it in links")
    file = decode(read_document(path), _Infrastructure, location=str(path))
    devices = {device.name: device for device in file.devices}
    graph = _Expanded(location=str(path), devices=devices)
    counts = {instance.name: instance.count for instance in file.instances}
    device_of = {instance.name: _device(instance.device, graph) for instance in file.instances}
    for instance in file.instances:
        _check_count(instance.count, instance.name, graph)
        for index in range(instance.count):
            _add_device(f"{instance.name}.{index}", device_of[instance.name], graph, within=())
    links = {link.name: link for link in file.links}
    for edge in file.edges:
        sources = _instance_nodes(edge.ep1, counts, device_of, graph)
        targets = _instance_nodes(edge.ep2, counts, device_of, graph)
        _connect(sources, targets, edge, links, graph)
    return _graph_of(graph, figures)


def _device(name: str, graph: _Expanded) -> _Device:
    if name not in graph.devices:
        raise graph.error(f"there is no device {name!r}", "describe it under devices")
    return graph.devices[name]


def _check_count(count: int, name: str, graph: _Expanded) -> None:
    if len(graph.nodes) + count > _MOST_NODES:
        raise graph.error(
            f"with {count} x {name!r} there are too many nodes", f"describe at most {_MOST_NODES}"
        )


def _add_device(prefix: str, device: _Device, graph: _Expanded, *, within: tuple[str, ...]) -> None:
    if device.name in within:
        raise graph.error(f"the device {device.name!r} contains itself", "leave one of them out")
    for component in device.components:
        _check_count(component.count, component.name, graph)
        for index in range(component.count):
            name = f"{prefix}.{component.name}.{index}"
            if component.choice == "device":
                inner = _device(component.name, graph)
                _add_device(name, inner, graph, within=(*within, device.name))
            else:
                graph.nodes[name] = component.choice
    links = {link.name: link for link in device.links}
    for edge in device.edges:
        sources = _component_nodes(prefix, device, edge.ep1, graph)
        targets = _component_nodes(prefix, device, edge.ep2, graph)
        _connect(sources, targets, edge, links, graph)


def _component_nodes(prefix: str, device: _Device, end: _Endpoint, graph: _Expanded) -> list[str]:
    """Return the nodes of an end such as ``nic[0:2].port[0]``."""
    text = end.component if end.device is None else f"{end.device}.{end.component}"
    names = [prefix]
    inner: _Device | None = device
    for part in text.split("."):
        components = () if inner is None else inner.components
        counts = {component.name: component.count for component in components}
        choices = {component.name: component.choice for component in components}
        name, indices = _indices(part, counts, graph)
        names = [f"{outer}.{name}.{index}" for outer in names for index in indices]
        inner = _device(name, graph) if choices[name] == "device" else None
    return names


def _instance_nodes(
    end: _Endpoint,
    counts: Mapping[str, int],
    device_of: Mapping[str, _Device],
    graph: _Expanded,
) -> list[str]:
    if end.instance is None:
        raise graph.error("an end of an edge names no instance", "give instance and component")
    name, indices = _indices(end.instance, counts, graph)
    return [
        node
        for index in indices
        for node in _component_nodes(f"{name}.{index}", device_of[name], end, graph)
    ]


def _indices(text: str, counts: Mapping[str, int], graph: _Expanded) -> tuple[str, range]:
    """Return name and numbers of ``xpu``, ``xpu[3]`` or ``xpu[0:4]``."""
    part = _PART.fullmatch(text)
    if part is None or part[1] not in counts:
        raise graph.error(f"an edge goes to {text!r}, which is not there", "name a component of it")
    name, numbers = part[1], part[2] or ":"
    match = _SLICE.fullmatch(numbers)
    if match is None:
        raise graph.error(f"{text!r} has no slice of numbers", "give one number, or start:stop")
    start, stop, step = (None if bound is None else int(bound) for bound in match.groups())
    count = counts[name]
    if ":" in numbers:
        return name, range(count)[slice(start, stop, step)]
    if start is None or not -count <= start < count:
        raise graph.error(f"an edge goes to {text!r}, of which there are {count}", "count from 0")
    return name, range(start % count, start % count + 1)


def _connect(
    sources: Sequence[str],
    targets: Sequence[str],
    edge: _EdgeFile,
    links: Mapping[str, _Link],
    graph: _Expanded,
) -> None:
    if edge.link not in links:
        raise graph.error(
            f"an edge is of link {edge.link!r}, which is not there", "add it to links"
        )
    for name in (*sources, *targets):
        if name not in graph.nodes:
            raise graph.error(f"an edge goes to {name}, a device", "name a component of it")
    for source, target in _pairs(sources, targets, edge, graph):
        if source != target:
            graph.edges[min(source, target), max(source, target)] = links[edge.link]
    if len(graph.edges) > _MOST_EDGES:
        raise graph.error("there are too many edges", f"describe at most {_MOST_EDGES}")


def _pairs(
    sources: Sequence[str], targets: Sequence[str], edge: _EdgeFile, graph: _Expanded
) -> Iterable[tuple[str, str]]:
    match edge.scheme:
        case "one2one":
            return zip(sources, targets, strict=False)
        case "many2many":
            if len(sources) * len(targets) > _MOST_EDGES:
                raise graph.error("an edge has too many ends", f"give at most {_MOST_EDGES}")
            return product(sources, targets)
        case "ring":
            raise UnsupportedError(
                "an edge has the scheme ring, which infragraph 3.1.0 does not expand",
                location=graph.location,
                hint="write its edges as one2one",
            )


def _graph_of(graph: _Expanded, figures: MachineFile) -> Graph:
    devices = tuple([name for name, kind in graph.nodes.items() if kind == "xpu"])
    if not devices:
        raise graph.error("it has no component of choice xpu", "describe the accelerators")
    names = {link.name for link in graph.edges.values()}
    for name in (*figures.links, *figures.leave_out_links):
        if name not in names:
            raise graph.error(f"no edge is of link {name!r}", "name a link of it")
    edges = _without_dead_ends(
        {
            ends: link
            for ends, link in graph.edges.items()
            if link.name not in figures.leave_out_links
        },
        devices,
    )
    pairs = ((edge, edge.reversed) for edge in _rated_edges(edges, graph, figures))
    directed = tuple([edge for pair in pairs for edge in pair])
    switches = {edge.source for edge in directed} - {*devices}
    return Graph(
        devices=devices,
        switches=tuple([name for name in graph.nodes if name in switches]),
        edges=directed,
    )


def _without_dead_ends(
    edges: Mapping[tuple[str, str], _Link], devices: Sequence[str]
) -> dict[tuple[str, str], _Link]:
    """Leave out links that lead nowhere, as to memory."""
    neighbours: dict[str, set[str]] = {}
    for source, target in edges:
        neighbours.setdefault(source, set()).add(target)
        neighbours.setdefault(target, set()).add(source)
    ends = {*devices}
    pending = [name for name, near_names in neighbours.items() if len(near_names) == 1]
    while pending:
        name = pending.pop()
        if name in ends:
            continue
        for neighbour in neighbours.pop(name):
            neighbours[neighbour].discard(name)
            if len(neighbours[neighbour]) == 1:
                pending.append(neighbour)
    return {ends: link for ends, link in edges.items() if all(end in neighbours for end in ends)}


def _rated_edges(
    edges: Mapping[tuple[str, str], _Link], graph: _Expanded, figures: MachineFile
) -> Iterator[Edge]:
    """Yield edges with their bandwidths and latencies."""
    is_latency_used = False
    for ends, link in edges.items():
        override = figures.links.get(link.name)
        bandwidth = _bandwidth(link) if override is None else override.bandwidth_bytes_per_s
        if bandwidth is None:
            hint = f'give it in links: {{"{link.name}": {{"bandwidth_bytes_per_s": ..}}}}'
            raise graph.error(f"it does not say how fast the link {link.name!r} is", hint)
        latency_s = None if override is None else override.latency_s
        latency_s = _latency_s(link) if latency_s is None else latency_s
        if latency_s is None:
            latency_s, is_latency_used = figures.link_latency_s, True
        if latency_s is None:
            message = f"it does not say the latency of the link {link.name!r}"
            raise graph.error(message, "give link_latency_s, that of links without one")
        yield Edge(*ends, bandwidth, latency_s)
    if figures.link_latency_s is not None and not is_latency_used:
        raise graph.error("link_latency_s has no effect: all links have a latency", "drop it")


def _bandwidth(link: _Link) -> float | None:
    """Return bytes/s in one direction; transfers lack a width."""
    bandwidth = link.physical.bandwidth
    if bandwidth.gigabits_per_second is not None:
        return bandwidth.gigabits_per_second * 1e9 / 8
    gigabytes = bandwidth.gigabytes_per_second
    return None if gigabytes is None else gigabytes * 1e9


def _latency_s(link: _Link) -> float | None:
    latency = link.physical.latency
    scaled = ((latency.ms, 1e-3), (latency.us, 1e-6), (latency.ns, 1e-9))
    return next((value * unit for value, unit in scaled if value is not None), None)
