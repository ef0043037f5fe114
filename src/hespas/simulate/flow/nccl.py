"""NCCL's estimates of collectives across nodes, by algorithm and protocol.

NCCL estimates what each algorithm takes under each protocol, and runs the fastest. An estimate is
a latency, by the steps within nodes and between them, and the bytes at a share of the bandwidth.
Source: NCCL 2.27.3, ``src/graph/tuning.cc``; the tables here equal those in the library's data.
NCCL takes bandwidths from tables of parts; here they are the node's measured ones and the ports'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from hespas.base.frozen import frozen
from hespas.collectives.patterns import Along, Form, Pattern
from hespas.hardware.interconnect import Dimension
from hespas.simulate.flow.groups import GroupLayout

RAILS = Pattern(Form.SHIFT, 1, 1, Along.RAILS)
"""Rings between nodes: each member sends to its counterpart in the next node."""
TREES = Pattern(Form.BOTH_TREES, line=Along.RAILS)
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
LARGE_BYTES = 1 << 33
"""The buffer size at which the bandwidth in nodes is read."""
SWITCH_GAIN = 1.25
"""All-reduces this much faster than all-gathers reduce in the node's switch (NVLS)."""


class Protocol(Enum):
    """NCCL's protocols: a flag per 8 bytes, 128 or chunk."""

    LL = "LL"
    LL128 = "LL128"
    SIMPLE = "Simple"


_BASE_US = {
    "tree": {Protocol.LL: 6.8, Protocol.LL128: 14.0, Protocol.SIMPLE: 8.4},
    "ring": {Protocol.LL: 6.6, Protocol.LL128: 14.0, Protocol.SIMPLE: 8.4},
}
_IN_NODE_US = {
    "tree": {Protocol.LL: 0.6, Protocol.LL128: 1.25, Protocol.SIMPLE: 4.0},
    "ring": {Protocol.LL: 0.6, Protocol.LL128: 1.9, Protocol.SIMPLE: 3.4},
}
"""A step over NVLink."""
_BETWEEN_US = {
    "tree": {Protocol.LL: 5.0, Protocol.LL128: 8.5, Protocol.SIMPLE: 14.0},
    "ring": {Protocol.LL: 2.7, Protocol.LL128: 4.0, Protocol.SIMPLE: 14.0},
}
"""A step over the network."""
_LEAST_STEP_US = {Protocol.LL: 1.0, Protocol.LL128: 1.0, Protocol.SIMPLE: 3.0}
"""The network proxy's time for each step of a ring, also within nodes."""
_SWITCH_US, _SWITCH_BETWEEN_US = 25.0, 14.0
_PAT_US, _PAT_BETWEEN_US, _PAT_MEMBER_US = 8.0, 4.0, 2.8
_RING_SHARE = {Protocol.LL: 0.5, Protocol.LL128: 0.92, Protocol.SIMPLE: 1.0}
_TREE_SHARE = {Protocol.LL: 0.92 / 3.8, Protocol.LL128: 0.92 * 120 / 128, Protocol.SIMPLE: 0.92}
_PAT_SHARE = 0.75
_LL_OF_RING = (0.41, 0.13, 0.1)
"""LL's share of a ring's bandwidth in one node, two and more: 141, 45, 35 GB/s on H100."""
_TREE_CORRECTION = {
    Protocol.LL: (
        1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1,
    ),
    Protocol.LL128: (
        1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1,
    ),
    Protocol.SIMPLE: (
        .9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9,
    ),
}  # fmt: skip
"""A tree's share of its bandwidth, by the binary logarithm of the size in 64 bytes."""
_NODE_CHANNELS, _SWITCH_CHANNELS, _PORT_CHANNELS = 24, 16, 2
"""Channels of rings in a node, of NVLS, and of each port to other nodes."""
_PLATEAU, _PLATEAU_BYTES = 1.4, 64 * 16
"""How much longer a ring's latency is in large all-reduces, from these bytes a member on."""


@frozen
class Nodes:
    """A group with ``members`` in each of ``count`` nodes.

    ``hop_us`` is the latency of links and sender of a message between nodes.
    ``ring_bytes_per_s`` is the bus bandwidth of a ring in the node (None for one member), and
    ``switch_bytes_per_s`` the rate of an all-reduce in the node's switch (None without).
    """

    count: int
    members: int
    hop_us: float
    ring_bytes_per_s: float | None = None
    switch_bytes_per_s: float | None = None

    @property
    def size(self) -> int:
        """The number of all members."""
        return self.count * self.members


@frozen
class Candidate:
    """One algorithm under one protocol.

    Each message of ``pattern`` has ``message_bytes``, at ``share`` of the network's bandwidth; the
    part in the nodes takes ``in_node_s`` at the same time.
    """

    algorithm: str
    protocol: Protocol
    latency_us: float
    pattern: Pattern
    message_bytes: float
    share: float
    in_node_s: float

    @property
    def name(self) -> str:
        """The algorithm and its protocol."""
        return f"NCCL's {self.algorithm} ({self.protocol.value})"


def channels_in_node(algorithm: str) -> int:
    """Return a collective's channels (thread blocks) in a node.

    Assumed: the channels that NCCL reports on nodes of eight GPUs from A100 on (``24 coll channels,
    16 nvls channels``).
    """
    return _SWITCH_CHANNELS if "NVLS" in algorithm else _NODE_CHANNELS


def channels_across(candidate: Candidate, nodes: Nodes) -> int:
    """Return a collective's channels across nodes, two per port."""
    if candidate.algorithm == "NVLS tree":
        return _SWITCH_CHANNELS
    return _PORT_CHANNELS * nodes.members


def runs(group: GroupLayout, dimensions: Sequence[Dimension], kind: str) -> bool:
    """Return whether NCCL, measured in the node, runs a collective across nodes."""
    is_between = any(line > 0 for line in group.lines)
    return is_between and kind in KINDS and dimensions[0].measured is not None


def candidates(kind: str, nodes: Nodes, buffer_bytes: int) -> Iterator[Candidate]:
    """Yield NCCL's candidates for a collective of the whole buffer.

    >>> nodes = Nodes(count=4, members=8, hop_us=2.7, ring_bytes_per_s=340e9)
    >>> [(item.name, round(item.latency_us)) for item in candidates("all_gather", nodes, 2**30)]
    [("NCCL's ring (LL)", 43), ("NCCL's ring (LL128)", 79), ("NCCL's ring (Simple)", 146)]
    """
    for protocol in Protocol:
        yield _ring(kind, nodes, buffer_bytes, protocol)
    if kind == "all_reduce":
        for protocol in Protocol:
            yield _tree(nodes, buffer_bytes, protocol)
        if nodes.switch_bytes_per_s is not None:
            yield _switch_tree(nodes, buffer_bytes, nodes.switch_bytes_per_s)
    elif nodes.members == 1:
        yield _pat(nodes, buffer_bytes)


def _between_us(nodes: Nodes, step_us: float) -> float:
    """Return a step over the network, its hop in place of NCCL's 2.7 us."""
    return nodes.hop_us + step_us - _BETWEEN_US["ring"][Protocol.LL]


def _ring(kind: str, nodes: Nodes, buffer_bytes: int, protocol: Protocol) -> Candidate:
    passes = 2 if kind == "all_reduce" else 1
    steps = passes * (nodes.size - 1)
    between = min(steps, 2 * nodes.count if passes == 2 else nodes.count - 1)
    in_node_us = _IN_NODE_US["ring"][protocol]
    if nodes.count > 1:
        in_node_us = max(in_node_us, _LEAST_STEP_US[protocol])
    latency_us = _BASE_US["ring"][protocol] + (steps - between) * in_node_us
    latency_us += between * _between_us(nodes, _BETWEEN_US["ring"][protocol])
    is_large = buffer_bytes >= _PLATEAU_BYTES * nodes.size
    if passes == 2 and protocol is Protocol.SIMPLE and is_large:
        latency_us *= _PLATEAU
    bus_bytes, share = buffer_bytes * steps / nodes.size, _RING_SHARE[protocol]
    least_share = _LL_OF_RING[min(nodes.count, len(_LL_OF_RING)) - 1]
    own_share = min(share, least_share) if protocol is Protocol.LL else share
    ring = nodes.ring_bytes_per_s
    return Candidate(
        algorithm="ring",
        protocol=protocol,
        latency_us=latency_us,
        pattern=RAILS,
        message_bytes=bus_bytes / nodes.members,
        share=share,
        in_node_s=0.0 if ring is None else bus_bytes / (ring * own_share),
    )


def _tree(nodes: Nodes, buffer_bytes: int, protocol: Protocol) -> Candidate:
    """Return a double binary tree of nodes with inner chains."""
    levels = nodes.count.bit_length() - 1
    between_us = levels * _between_us(nodes, _BETWEEN_US["tree"][protocol])
    in_node_us = (nodes.members - 1) * _IN_NODE_US["tree"][protocol]
    corrections = _TREE_CORRECTION[protocol]
    size = (buffer_bytes >> 6).bit_length() - 1
    share = _TREE_SHARE[protocol] * (corrections[size] if 0 <= size < len(corrections) else 1.0)
    ring = nodes.ring_bytes_per_s
    return Candidate(
        algorithm="tree",
        protocol=protocol,
        latency_us=_BASE_US["tree"][protocol] + 2 * (in_node_us + between_us),
        pattern=TREES,
        message_bytes=buffer_bytes / (2 * nodes.members),
        share=share,
        in_node_s=0.0 if ring is None else 2 * buffer_bytes / (ring * share),
    )


def _switch_tree(nodes: Nodes, buffer_bytes: int, bytes_per_s: float) -> Candidate:
    """Return a double binary tree of reducing switches (NVLSTree)."""
    levels = nodes.count.bit_length() - 1
    return Candidate(
        algorithm="NVLS tree",
        protocol=Protocol.SIMPLE,
        latency_us=_SWITCH_US + 2 * levels * _between_us(nodes, _SWITCH_BETWEEN_US),
        pattern=TREES,
        message_bytes=buffer_bytes / (2 * nodes.members),
        share=1.0,
        in_node_s=buffer_bytes / bytes_per_s,
    )


def _pat(nodes: Nodes, buffer_bytes: int) -> Candidate:
    """Return parallel aggregated trees (PAT), for one member a node."""
    levels = nodes.count.bit_length() - 1
    latency_us = _PAT_US + nodes.size * _PAT_MEMBER_US
    return Candidate(
        algorithm="PAT",
        protocol=Protocol.SIMPLE,
        latency_us=latency_us + levels * _between_us(nodes, _PAT_BETWEEN_US),
        pattern=RAILS,
        message_bytes=buffer_bytes * (nodes.size - 1) / nodes.size,
        share=_PAT_SHARE,
        in_node_s=0.0,
    )
