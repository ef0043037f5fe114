"""The cluster file key by key, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from hespas.hardware.wire import Amount, Rate, Text, Whole


class NodeTypeWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``node_types``."""

    compute_scale: Rate


class DevicesWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``devices``."""

    devices: Whole | Text | list[Whole]
    compute_scale: Rate = 1.0
    delay_s: Amount = 0.0
    node_type: Text | None = None


class LinkOverrideWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``links``."""

    link: Text
    bandwidth_scale: Rate = 1.0
    bandwidth_bytes_per_s: Rate | None = None
    extra_latency_s: Amount = 0.0


class JitterWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``jitter``."""

    seed: int
    sigma: Annotated[float, Meta(gt=0, lt=1)]
    distribution: Literal["lognormal", "uniform", "exponential"] = "lognormal"


class ProgramWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``programs``."""

    traces: Text
    devices: Whole | Text | list[Whole]


class ClusterWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cluster file."""

    node_types: dict[str, NodeTypeWire] = {}
    devices: list[DevicesWire] = []
    links: list[LinkOverrideWire] = []
    jitter: JitterWire | None = None
    programs: list[ProgramWire] = []
