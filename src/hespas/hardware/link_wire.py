"""The files of our own network model key by key, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

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
