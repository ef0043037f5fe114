"""The files of our own network model key by key, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from hespas.hardware.wire import Amount, Count, Rate, Text

MeasuredKind: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"
]
Fraction: TypeAlias = Annotated[float, Meta(gt=0, le=1)]


class ProtocolWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``link.protocols``."""

    name: Text
    up_to_bytes: Count | None
    overhead_s: Amount = 0.0
    bandwidth_fraction: Fraction = 1.0
    waits_for_receiver: bool = False


class ParametersWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``link``: one direction of a wire."""

    bandwidth_bytes_per_s: Rate
    latency_s: Amount
    step_overhead_s: Amount = 0.0
    protocols: list[ProtocolWire] = []
    reduces_in_switch: bool = False
    pipeline_bytes: Count | None = None


class MeasuredWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fit to measured times of one collective, among groups of one size."""

    algorithm: Text
    protocol: Text
    up_to_bytes: Count | None
    latency_s: Amount
    bandwidth_bytes_per_s: Rate


class LinkWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``configs/links/<NAME>.json``."""

    name: Text
    source: Text
    link: ParametersWire | None = None
    collectives: dict[MeasuredKind, dict[str, list[MeasuredWire]]] = {}


class DimensionWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``dimensions``; ``link`` is a preset's name, a path, or parameters.

    ``latency_s`` and ``reduces_in_switch`` take the place of the link's own.
    """

    topology: Literal["ring", "fully_connected", "switch", "fat_tree"]
    size: Count
    link: Text | ParametersWire
    latency_s: Amount | None = None
    reduces_in_switch: bool | None = None
    leaf_size: Count | None = None
    oversubscription: Rate = 1.0


class DragonflyWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``dragonfly``."""

    groups: Count
    routers_per_group: Count
    devices_per_router: Count
    device_link: Text | ParametersWire
    local_link: Text | ParametersWire
    global_link: Text | ParametersWire


class GraphLinkWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``links`` of a graph."""

    source: Text = field(name="from")
    target: Text = field(name="to")
    bandwidth_bytes_per_s: Rate
    latency_s: Amount = 0.0
    both_ways: bool = True


class GraphWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``graph``, or the file that it names."""

    devices: Annotated[list[Text], Meta(min_length=1)]
    switches: list[Text] = []
    links: list[GraphLinkWire]


Kind: TypeAlias = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
]


class InterconnectWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hespas/network.json``."""

    source: Text | None = None
    dimensions: Annotated[list[DimensionWire], Meta(min_length=1)] | None = None
    dragonfly: DragonflyWire | None = None
    graph: Text | GraphWire | None = None
    algorithms: dict[Kind, Text | Annotated[list[Text], Meta(min_length=1)]] = {}
    endpoint_delay_s: Amount = 0.0
    memory_bytes_per_s: Rate | None = None
