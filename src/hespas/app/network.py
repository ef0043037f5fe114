"""A system as a picture, with links to mark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import yaml

from hespas.app.state import State, options_of
from hespas.base.units import format_quantity, format_time
from hespas.errors import ConfigError
from hespas.hardware.interconnect import Dimension, Dimensions, Dragonfly, Fabric, Graph, Shape
from hespas.hardware.machine_links import Edge
from hespas.hardware.system import interconnect_of
from hespas.prediction.machines import system_of
from hespas.report.drawing import SHAPE_NAMES, drawing
from hespas.simulate.flow.graph_links import dragonfly_graph

_PARTS = {
    Shape.SWITCH: ("up", "down"),
    Shape.FAT_TREE: ("up", "down"),
    Shape.RING: ("next", "previous"),
    Shape.LINE: ("next", "previous"),
    Shape.FULLY_CONNECTED: ("to",),
}
"""The links that a device has along a dimension, as files of imperfections name them."""


def network_of(state: State) -> dict[str, Any]:
    """Return the picture of a state's cluster, else raise `ConfigError`."""
    system = system_of(options_of({"model": "gemm", "cluster": state.get("cluster")}).network)
    if system is None:
        raise ConfigError("no cluster is given", hint="choose a part and a count")
    fabric = interconnect_of(system).fabric
    dimensions: Sequence[Dimension] = fabric.dimensions if isinstance(fabric, Dimensions) else ()
    sizes = [dimension.size for dimension in dimensions]
    return {
        "graph": _graph(fabric),
        "lines": drawing(system),
        "name": system.name,
        "devices": system.device_count,
        "node": sizes[0] if sizes else system.device_count,
        "nodes": prod(sizes[1:]),
        "dimensions": [
            _row(number, dimension, stride=prod(sizes[:number]))
            for number, dimension in enumerate(dimensions)
        ],
        "assumptions": list(system.assumptions),
    }


_MOST_WIRES = 256
"""The most wires that the page draws; a reader cannot tell more of them apart."""


def _graph(fabric: Fabric) -> dict[str, Any] | None:
    """Return devices, tiers of switches and wires, if drawable.

    Dimensions and too many wires are not. A switch's tier is how many links it is from the nearest
    device. A wire is its links in both directions.
    """
    match fabric:
        case Graph():
            graph = fabric
        case Dragonfly():
            graph = dragonfly_graph(fabric)
        case Dimensions():
            return None
    wires: dict[frozenset[str], list[Edge]] = defaultdict(list)
    for edge in graph.edges:
        wires[frozenset((edge.source, edge.target))].append(edge)
    if len(wires) > _MOST_WIRES:
        return None
    tiers = [list(graph.devices)]
    unplaced = set(graph.switches)
    while unplaced:
        adjacent = {name for wire in wires if wire & set(tiers[-1]) for name in wire} & unplaced
        # Switches that no device reaches stand above all others.
        tiers.append(sorted(adjacent or unplaced))
        unplaced -= set(tiers[-1])
    return {
        "tiers": tiers,
        "wires": [
            {
                "ends": [edges[0].source, edges[0].target],
                "links": [f"{edge.source}->{edge.target}" for edge in edges],
                "bandwidth": format_quantity(edges[0].bandwidth_bytes_per_s, "B/s"),
            }
            for edges in wires.values()
        ],
    }


def _row(number: int, dimension: Dimension, *, stride: int) -> dict[str, Any]:
    return {
        "number": number,
        "shape": SHAPE_NAMES[dimension.shape],
        "size": dimension.size,
        "bandwidth": format_quantity(dimension.bandwidth_bytes_per_s, "B/s"),
        "latency": format_time(dimension.latency_s),
        "stride": stride,
        "links": [f"dim{number}.{part}." for part in _PARTS[dimension.shape]],
        "is_lined": dimension.shape in {Shape.RING, Shape.LINE},
        "is_of_pairs": dimension.shape is Shape.FULLY_CONNECTED,
    }


def imperfections_text(marks: Mapping[str, Any]) -> str:
    """Return marks of the page as a file of ``--imperfect``.

    ``devices`` are factors on computations by device, ``links`` factors on bandwidths by link.

    >>> print(imperfections_text({"devices": {"3": 1.5}, "links": {"dim0.up.3": 0.5}}).rstrip())
    devices:
    - devices:
      - 3
      compute_scale: 1.5
    links:
    - link: dim0.up.3
      bandwidth_scale: 0.5
    """
    devices = [
        {"devices": [int(device)], "compute_scale": float(scale)}
        for device, scale in sorted(marks.get("devices", {}).items(), key=lambda pair: int(pair[0]))
    ]
    links = [
        {"link": str(link), "bandwidth_scale": float(scale)}
        for link, scale in sorted(marks.get("links", {}).items())
    ]
    lists = {"devices": devices, "links": links}
    content = {name: entries for name, entries in lists.items() if entries}
    return yaml.safe_dump(content, sort_keys=False) if content else ""
