"""Read the three files that describe a system to ASTRA-sim.

The files count time in ns, bandwidth in GiB/s (network.yml) or GB/s (the others); a `System` has s
and bytes/s. GiB/s become bytes/s exactly. `hespas.base.units.to_ns` and `to_gb_per_s` return the
figures of the other two exactly, up to 15 significant digits.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, cast

from msgspec import Meta, Struct, field

from hespas.base.config_files import read_json, read_yaml
from hespas.base.decode import decode
from hespas.base.figures import Count, CountOrZero, DeviceCount, NotNegative, Positive, Text
from hespas.base.limits import MOST_CHUNKS, MOST_DEVICES
from hespas.base.units import GIB
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.system import (
    NetworkDimension,
    RemoteMemory,
    RemoteMemoryKind,
    System,
    Topology,
)
from hespas.program.collectives import COMMON_KINDS, CollectiveKind

_Names = Annotated[tuple[Text, ...], Meta(min_length=1)]
_Flag = Annotated[int, Meta(ge=0, le=1)]
_Path = Annotated[list[Text], Meta(min_length=1, max_length=1)]


# The files have ASTRA-sim's names and units, and a list of all dimensions for each figure, where a
# `System` has a value for each dimension.


class _NetworkFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``network.yml``: one entry per dimension in each list."""

    topology: Annotated[list[Topology], Meta(min_length=1)]
    npus_count: list[DeviceCount]
    bandwidth: list[Positive]
    latency: list[NotNegative]


class _SystemFile(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="kebab",
):
    """``system.json``: first the keys that a `System` has fields for, then its options."""

    preferred_dataset_splits: Annotated[int, Meta(ge=1, le=MOST_CHUNKS)]
    # ASTRA-sim's own defaults.
    endpoint_delay: CountOrZero = 10
    active_chunks_per_dimension: Count = 1
    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] = "LIFO"
    collective_optimization: Literal["localBWAware", "baseline"] | None = None
    local_mem_bw: Positive | None = None
    all_reduce_implementation: _Names | None = None
    all_gather_implementation: _Names | None = None
    reduce_scatter_implementation: _Names | None = None
    all_to_all_implementation: _Names | None = None
    # The other keys go into ``options``, as read.
    all_reduce_implementation_custom: _Path | None = None
    all_gather_implementation_custom: _Path | None = None
    reduce_scatter_implementation_custom: _Path | None = None
    all_to_all_implementation_custom: _Path | None = None
    per_node_custom_implementation: Text | None = None
    peak_perf: Positive | None = None
    roofline_enabled: _Flag | None = None
    replay_only: _Flag | None = None
    trace_enabled: _Flag | None = None
    boost_mode: _Flag | None = None
    local_reduction_delay: CountOrZero | None = None
    model_shared_bus: _Flag | None = None
    shared_bus_latency: NotNegative | None = field(name="L", default=None)
    shared_bus_overhead: NotNegative | None = field(name="o", default=None)
    shared_bus_gap: NotNegative | None = field(name="g", default=None)
    shared_bus_gap_per_byte: NotNegative | None = field(name="G", default=None)


class _RemoteMemoryFile(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """``remote_memory.json``."""

    memory_type: RemoteMemoryKind
    remote_mem_latency: NotNegative | None = None
    remote_mem_bw: Positive | None = None
    num_nodes: Count | None = None
    num_npus_per_node: Count | None = None


_FIELD_KEYS = frozenset(
    (
        "preferred-dataset-splits",
        "endpoint-delay",
        "active-chunks-per-dimension",
        "scheduling-policy",
        "collective-optimization",
        "local-mem-bw",
        *(f"{kind.option}-implementation" for kind in COMMON_KINDS),
    )
)


def read_system(
    *, name: str, system_file: Path, network_file: Path, remote_memory_file: Path | None = None
) -> System:
    """Return the system that ``system.json``, ``network.yml`` and ``remote_memory.json`` hold.

    Without a remote memory file there is no remote memory. Raises `ConfigError` with the file
    and the key for what a file may not hold, `HardwareError` for files that disagree.
    """
    location = str(system_file)
    dimensions = read_network(network_file)
    remote_memory = read_remote_memory(remote_memory_file)
    data = read_json(system_file)
    file = decode(data, _SystemFile, location=location)
    gb_per_s = file.local_mem_bw
    raw = cast("dict[str, object]", data)
    options = {key: value for key, value in raw.items() if key not in _FIELD_KEYS}
    return System(
        name=name,
        dimensions=dimensions,
        implementations=_implementations(file, len(dimensions), location),
        endpoint_delay_s=file.endpoint_delay / 1e9,
        preferred_dataset_splits=file.preferred_dataset_splits,
        active_chunks_per_dimension=file.active_chunks_per_dimension,
        collective_optimization=_optimization(file, len(dimensions), location),
        scheduling_policy=file.scheduling_policy,
        local_memory_bandwidth_bytes_per_s=None if gb_per_s is None else gb_per_s * 1e9,
        remote_memory=remote_memory,
        options=MappingProxyType(options),
    )


def read_network(path: Path) -> tuple[NetworkDimension, ...]:
    """Return the dimensions that a ``network.yml`` lists.

    Raises `ConfigError` for what the file may not hold, `HardwareError` for lists of unequal
    length and more than ``MOST_DEVICES``.
    """
    file = decode(read_yaml(path), _NetworkFile, location=str(path))
    _refuse_unequal_lengths(file, str(path))
    if prod(file.npus_count) > MOST_DEVICES:
        raise HardwareError(
            f"$.npus_count makes {prod(file.npus_count)} devices",
            location=str(path),
            hint=f"describe at most {MOST_DEVICES}",
        )
    rows = zip(file.topology, file.npus_count, file.bandwidth, file.latency, strict=True)
    return tuple(
        NetworkDimension(
            topology=topology,
            npus_count=npus_count,
            bandwidth_bytes_per_s=bandwidth * GIB,
            latency_s=latency / 1e9,
        )
        for topology, npus_count, bandwidth, latency in rows
    )


def read_remote_memory(path: Path | None) -> RemoteMemory:
    """Return the remote memory that ``path`` describes; none at all for None.

    Raises `ConfigError` for what the file may not hold, and for a figure that its
    ``memory-type`` needs and the file lacks.
    """
    if path is None:
        return RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION)
    file = decode(read_json(path), _RemoteMemoryFile, location=str(path))
    needed: dict[str, object] = {}
    if file.memory_type is not RemoteMemoryKind.NO_MEMORY_EXPANSION:
        needed = {
            "remote-mem-latency": file.remote_mem_latency,
            "remote-mem-bw": file.remote_mem_bw,
        }
    if file.memory_type is RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION:
        needed |= {"num-nodes": file.num_nodes, "num-npus-per-node": file.num_npus_per_node}
    for key in (key for key, value in needed.items() if value is None):
        message = f"$ lacks {key!r}, which {file.memory_type.value} needs"
        raise ConfigError(message, location=str(path), hint="add it")
    latency_ns, gb_per_s = file.remote_mem_latency, file.remote_mem_bw
    return RemoteMemory(
        kind=file.memory_type,
        latency_s=None if latency_ns is None else latency_ns / 1e9,
        bandwidth_bytes_per_s=None if gb_per_s is None else gb_per_s * 1e9,
        nodes=file.num_nodes,
        npus_per_node=file.num_npus_per_node,
    )


def _refuse_unequal_lengths(file: _NetworkFile, location: str) -> None:
    lengths = {
        "npus_count": len(file.npus_count),
        "bandwidth": len(file.bandwidth),
        "latency": len(file.latency),
    }
    for key, length in lengths.items():
        if length != len(file.topology):
            raise HardwareError(
                f"$.{key} has {length} entries and $.topology {len(file.topology)}",
                location=location,
                hint="give one entry per dimension",
            )


def _implementations(
    file: _SystemFile, dimension_count: int, location: str
) -> MappingProxyType[CollectiveKind, tuple[str, ...]]:
    names_of = {
        CollectiveKind.ALL_REDUCE: file.all_reduce_implementation,
        CollectiveKind.ALL_GATHER: file.all_gather_implementation,
        CollectiveKind.REDUCE_SCATTER: file.reduce_scatter_implementation,
        CollectiveKind.ALL_TO_ALL: file.all_to_all_implementation,
    }
    # ASTRA-sim reads a list shorter than the dimensions as one that leaves the later ones out.
    for kind, names in names_of.items():
        if names is not None and len(names) > dimension_count:
            raise HardwareError(
                f"$.{kind.option}-implementation has {len(names)} entries "
                f"for {dimension_count} dimensions",
                location=location,
                hint="give at most one entry per dimension of network.yml",
            )
    return MappingProxyType({kind: names for kind, names in names_of.items() if names})


def _optimization(file: _SystemFile, dimension_count: int, location: str) -> str:
    if file.collective_optimization is not None:
        return file.collective_optimization
    # In one dimension the two ways to run an all-reduce are the same.
    if dimension_count == 1:
        return "baseline"
    raise HardwareError(
        f"$ lacks 'collective-optimization', which {dimension_count} dimensions need",
        location=location,
        hint="add localBWAware or baseline",
    )
