"""Read a system from the three files that ASTRA-sim reads.

The files count time in ns, bandwidth in GiB/s (network.yml) or GB/s (the others); a `System` has s
and bytes/s. GiB/s become bytes/s exactly. `hespas.units.to_ns` and `to_gb_per_s` return the figures
of the other two exactly, up to 15 significant digits.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from hespas.config.decode import decode
from hespas.config.files import read_json, read_yaml
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.system import (
    CollectiveKind,
    NetworkDimension,
    RemoteMemory,
    RemoteMemoryKind,
    System,
)
from hespas.hardware.wire import NetworkWire, RemoteMemoryWire, SystemWire
from hespas.units import GIB

if TYPE_CHECKING:
    from hespas.hardware.wire import NetworkWire, SystemWire

_FIELD_KEYS = frozenset(
    (
        "preferred-dataset-splits",
        "endpoint-delay",
        "active-chunks-per-dimension",
        "scheduling-policy",
        "collective-optimization",
        "local-mem-bw",
        *(f"{kind.value}-implementation" for kind in CollectiveKind),
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
    wire = decode(data, SystemWire, location=location)
    gb_per_s = wire.local_mem_bw
    raw = cast("dict[str, object]", data)
    options = {key: value for key, value in raw.items() if key not in _FIELD_KEYS}
    return System(
        name=name,
        dimensions=dimensions,
        implementations=_implementations(wire, len(dimensions), location),
        endpoint_delay_s=wire.endpoint_delay / 1e9,
        preferred_dataset_splits=wire.preferred_dataset_splits,
        active_chunks_per_dimension=wire.active_chunks_per_dimension,
        collective_optimization=_optimization(wire, len(dimensions), location),
        scheduling_policy=wire.scheduling_policy,
        local_memory_bandwidth_bytes_per_s=None if gb_per_s is None else gb_per_s * 1e9,
        remote_memory=remote_memory,
        options=MappingProxyType(options),
    )


def read_network(path: Path) -> tuple[NetworkDimension, ...]:
    """Return the dimensions that a ``network.yml`` lists.

    Raises `ConfigError` for what the file may not hold, `HardwareError` for lists of unequal
    length.
    """
    wire = decode(read_yaml(path), NetworkWire, location=str(path))
    _refuse_unequal_lengths(wire, str(path))
    rows = zip(wire.topology, wire.npus_count, wire.bandwidth, wire.latency, strict=True)
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
    wire = decode(read_json(path), RemoteMemoryWire, location=str(path))
    needed: dict[str, object] = {}
    if wire.memory_type is not RemoteMemoryKind.NO_MEMORY_EXPANSION:
        needed = {
            "remote-mem-latency": wire.remote_mem_latency,
            "remote-mem-bw": wire.remote_mem_bw,
        }
    if wire.memory_type is RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION:
        needed |= {"num-nodes": wire.num_nodes, "num-npus-per-node": wire.num_npus_per_node}
    for key in (key for key, value in needed.items() if value is None):
        message = f"$ lacks {key!r}, which {wire.memory_type.value} needs"
        raise ConfigError(message, location=str(path), hint="add it")
    latency_ns, gb_per_s = wire.remote_mem_latency, wire.remote_mem_bw
    return RemoteMemory(
        kind=wire.memory_type,
        latency_s=None if latency_ns is None else latency_ns / 1e9,
        bandwidth_bytes_per_s=None if gb_per_s is None else gb_per_s * 1e9,
        nodes=wire.num_nodes,
        npus_per_node=wire.num_npus_per_node,
    )


def _refuse_unequal_lengths(wire: NetworkWire, location: str) -> None:
    lengths = {
        "npus_count": len(wire.npus_count),
        "bandwidth": len(wire.bandwidth),
        "latency": len(wire.latency),
    }
    for key, length in lengths.items():
        if length != len(wire.topology):
            raise HardwareError(
                f"$.{key} has {length} entries and $.topology {len(wire.topology)}",
                location=location,
                hint="give one entry per dimension",
            )


def _implementations(
    wire: SystemWire, dimension_count: int, location: str
) -> MappingProxyType[CollectiveKind, tuple[str, ...]]:
    given = {
        CollectiveKind.ALL_REDUCE: wire.all_reduce_implementation,
        CollectiveKind.ALL_GATHER: wire.all_gather_implementation,
        CollectiveKind.REDUCE_SCATTER: wire.reduce_scatter_implementation,
        CollectiveKind.ALL_TO_ALL: wire.all_to_all_implementation,
    }
    # A list shorter than the dimensions is ASTRA-sim's way to leave the later ones out.
    for kind, names in given.items():
        if names is not None and len(names) > dimension_count:
            raise HardwareError(
                f"$.{kind.value}-implementation has {len(names)} entries "
                f"for {dimension_count} dimensions",
                location=location,
                hint="give at most one entry per dimension of network.yml",
            )
    return MappingProxyType({kind: tuple(names) for kind, names in given.items() if names})


def _optimization(wire: SystemWire, dimension_count: int, location: str) -> str:
    if wire.collective_optimization is not None:
        return wire.collective_optimization
    # In one dimension the two ways to run an all-reduce are the same.
    if dimension_count == 1:
        return "baseline"
    raise HardwareError(
        f"$ lacks 'collective-optimization', which {dimension_count} dimensions need",
        location=location,
        hint="add localBWAware or baseline",
    )
