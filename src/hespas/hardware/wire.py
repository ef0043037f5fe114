"""The files of a preset key by key, as msgspec structs.

``system.json``, ``network.yml`` and ``remote_memory.json`` have the keys that ASTRA-sim's
analytical simulators read or are known to ignore; ``node.json`` is our own.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from hespas.hardware.system import RemoteMemoryKind, Topology

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Switch: TypeAlias = Annotated[int, Meta(ge=0, le=1)]
Whole: TypeAlias = Annotated[int, Meta(ge=0)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Rate: TypeAlias = Annotated[float, Meta(gt=0)]
PerDimension: TypeAlias = Annotated[list[Text], Meta(min_length=1)]
OnePath: TypeAlias = Annotated[list[Text], Meta(min_length=1, max_length=1)]


class NetworkWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``network.yml``: one entry per dimension in each list."""

    topology: Annotated[list[Topology], Meta(min_length=1)]
    npus_count: list[Count]
    bandwidth: list[Rate]
    latency: list[Amount]


class SystemWire(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="kebab",
):
    """``system.json``: what `hespas.hardware.system.System` has fields for, then the options."""

    preferred_dataset_splits: Count
    # ASTRA-sim's own defaults.
    endpoint_delay: Whole = 10
    active_chunks_per_dimension: Count = 1
    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] = "LIFO"
    collective_optimization: Literal["localBWAware", "baseline"] | None = None
    local_mem_bw: Rate | None = None
    all_reduce_implementation: PerDimension | None = None
    all_gather_implementation: PerDimension | None = None
    reduce_scatter_implementation: PerDimension | None = None
    all_to_all_implementation: PerDimension | None = None
    # The rest goes into ``options``, as read.
    all_reduce_implementation_custom: OnePath | None = None
    all_gather_implementation_custom: OnePath | None = None
    reduce_scatter_implementation_custom: OnePath | None = None
    all_to_all_implementation_custom: OnePath | None = None
    per_node_custom_implementation: Text | None = None
    peak_perf: Rate | None = None
    roofline_enabled: Switch | None = None
    replay_only: Switch | None = None
    trace_enabled: Switch | None = None
    boost_mode: Switch | None = None
    local_reduction_delay: Whole | None = None
    model_shared_bus: Switch | None = None
    shared_bus_latency: Amount | None = field(name="L", default=None)
    shared_bus_overhead: Amount | None = field(name="o", default=None)
    shared_bus_gap: Amount | None = field(name="g", default=None)
    shared_bus_gap_per_byte: Amount | None = field(name="G", default=None)


class RemoteMemoryWire(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """``remote_memory.json``."""

    memory_type: RemoteMemoryKind
    remote_mem_latency: Amount | None = None
    remote_mem_bw: Rate | None = None
    num_nodes: Count | None = None
    num_npus_per_node: Count | None = None


class NodeWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``node.json``: what the documented configuration has no key for."""

    full_name: Text
    memory_capacity_bytes: Count
    launch_overhead_s: Amount | None = None
    clock_hz: Rate | None = None
    target: Text | None = None
    tables: Text | None = None
    calibration: dict[str, Rate] = {}
    aliases: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    sources: dict[str, Text] = {}
