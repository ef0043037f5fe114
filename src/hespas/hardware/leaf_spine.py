"""Leaf and spine switches: devices on leaves, each leaf with one uplink to each spine."""

from __future__ import annotations

from enum import Enum

from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge, Graph


class Routing(Enum):
    """How messages between leaves spread over the spines.

    ``ECMP``: a hash of both ends chooses one, so that messages collide. ``SPRAYING``: packets go
    over all of them, as if the uplinks were one.
    """

    ECMP = "ecmp"
    SPRAYING = "spraying"


def leaf_spine_graph(
    *,
    leaves: int,
    devices_per_leaf: int,
    spines: int,
    device_link: LinkParameters,
    spine_link: LinkParameters,
    routing: Routing = Routing.ECMP,
    seed: int = 0,
) -> Graph:
    """Return the network; ``seed`` is that of the hash. Devices are numbered leaf by leaf.

    >>> link = LinkParameters(bandwidth_bytes_per_s=50e9, latency_s=1e-6)
    >>> graph = leaf_spine_graph(
    ...     leaves=2, devices_per_leaf=4, spines=2, device_link=link, spine_link=link
    ... )
    >>> graph.device_count, graph.switches
    (8, ('leaf0', 'leaf1', 'spine0', 'spine1'))
    """
    uplink = spine_link.bandwidth_bytes_per_s
    if routing is Routing.SPRAYING:
        uplink, spines = uplink * spines, 1
    edges: list[Edge] = []

    def connect(one: str, other: str, bandwidth_bytes_per_s: float, latency_s: float) -> None:
        edge = Edge(one, other, bandwidth_bytes_per_s, latency_s)
        edges.extend((edge, edge.reversed))

    devices = [f"d{number}" for number in range(leaves * devices_per_leaf)]
    for number, device in enumerate(devices):
        leaf = f"leaf{number // devices_per_leaf}"
        connect(device, leaf, device_link.bandwidth_bytes_per_s, device_link.latency_s)
    for leaf in range(leaves):
        for spine in range(spines):
            connect(f"leaf{leaf}", f"spine{spine}", uplink, spine_link.latency_s)
    switches = (
        *(f"leaf{leaf}" for leaf in range(leaves)),
        *(f"spine{spine}" for spine in range(spines)),
    )
    return Graph(devices=tuple(devices), switches=switches, edges=tuple(edges), seed=seed)
