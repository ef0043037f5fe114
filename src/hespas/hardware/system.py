"""A cluster: its network and collectives, in ASTRA-sim's terms.

Source of every field and default: ASTRA-sim's analytical simulators, which read them from
``system.json``, ``network.yml`` and ``remote_memory.json``, as `read_system` does.

The files count time in ns, bandwidth in GiB/s (network.yml) or GB/s (the others); a `System` has s
and bytes/s. GiB/s become bytes/s exactly. `hespas.base.units.to_ns` and `to_gb_per_s` return the
figures of the other two exactly, up to 15 significant digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from hespas.base.decode import decode, read_json, read_yaml
from hespas.base.fields import parse_pairs
from hespas.base.figures import (
    MOST_CHUNKS,
    MOST_DEVICES,
    Count,
    CountOrZero,
    DeviceCount,
    NotNegative,
    Positive,
    Text,
    amount,
    whole_number,
)
from hespas.base.frozen import frozen
from hespas.base.units import GIB, parse_rate
from hespas.errors import ConfigError, HardwareError, option
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape, dimension_of
from hespas.hardware.jobs import ALONE, Jobs
from hespas.hardware.scales import check_latency_ns, check_link_gb_per_s
from hespas.program.collectives import COMMON_KINDS, CollectiveKind

ASTRA_SHAPES = {
    "Ring": Shape.RING,
    "FullyConnected": Shape.FULLY_CONNECTED,
    "Switch": Shape.SWITCH,
}
"""The shapes that ASTRA-sim has, by its names."""


def astra_name(shape: Shape) -> str:
    """Return ASTRA-sim's name of a shape that it has."""
    return next(name for name, astra_shape in ASTRA_SHAPES.items() if astra_shape is shape)


@frozen
class LinkBandwidth:
    """A dimension's replaced link bandwidth; dimension 0 is nearest.

    It is their own times ``factor``, or ``bytes_per_s`` in one direction of one link.

    >>> str(LinkBandwidth(dimension=1, factor=0.5))
    '1=x0.5'
    """

    dimension: int
    factor: float = 1.0
    bytes_per_s: float | None = None

    def __str__(self) -> str:
        rate = f"x{self.factor:g}" if self.bytes_per_s is None else f"{self.bytes_per_s:g}B/s"
        return f"{self.dimension}={rate}"


_LARGEST_FACTOR = 1e6
_FORM = "DIM=xFACTOR or DIM=RATE, as in 1=x0.5 or 1=25GB/s; the nearest dimension is 0"


def parse_link_bandwidths(texts: Iterable[str]) -> tuple[LinkBandwidth, ...]:
    """Read ``DIM=xFACTOR`` and ``DIM=RATE``; `ConfigError` for anything else.

    Several may stand in a text, with commas between them.

    >>> [str(change) for change in parse_link_bandwidths(["0=x2,1=25GB/s", "2=x0.5"])]
    ['0=x2', '1=2.5e+10B/s', '2=x0.5']
    """
    name = "link_bandwidth"
    changes: list[LinkBandwidth] = []
    pairs = [pair for text in texts for pair in text.split(",")]
    for key, text in parse_pairs(pairs, name=name, form=_FORM).items():
        shown, dimension = f"{option(name)} is {f'{key}={text}'[:60]!r}", whole_number(key)
        if dimension is None:
            raise ConfigError(shown, hint=f"write {_FORM}")
        if text[:1] not in {"x", "X"}:
            rate = parse_rate(text, "B/s", location=f"{option(name)} {dimension}")
            changes.append(LinkBandwidth(dimension=dimension, bytes_per_s=rate))
            continue
        factor, smallest_factor = amount(text[1:]), 1 / _LARGEST_FACTOR
        if factor is None or not smallest_factor <= factor <= _LARGEST_FACTOR:
            raise ConfigError(
                shown,
                hint=f"give a factor from {smallest_factor:g} to {_LARGEST_FACTOR:g}; dead links "
                f"are for a file, {option('imperfect')}",
            )
        changes.append(LinkBandwidth(dimension=dimension, factor=factor))
    return tuple(changes)


class RemoteMemoryKind(Enum):
    """The values of ``memory-type``."""

    NO_MEMORY_EXPANSION = "NO_MEMORY_EXPANSION"
    PER_NPU_MEMORY_EXPANSION = "PER_NPU_MEMORY_EXPANSION"
    PER_NODE_MEMORY_EXPANSION = "PER_NODE_MEMORY_EXPANSION"
    MEMORY_POOL = "MEMORY_POOL"


@frozen
class RemoteMemory:
    """Memory outside the devices."""

    kind: RemoteMemoryKind
    latency_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    nodes: int | None = None
    npus_per_node: int | None = None


@frozen
class System:
    """A cluster: network dimensions, and how its collectives run.

    ``dimensions`` come from its files for ASTRA-sim, if it has any; ``interconnect`` is the network
    for hespas' model, if a file describes it, and ``described`` the dimensions that both describe.
    ``implementations`` gives, per collective, one algorithm name per dimension. ``options`` keeps
    the remaining keys of ``system.json`` as read. ``part`` is the device preset that a system
    preset is made for; ``slices`` counts slices of TPUs, which the last dimension joins;
    ``assumptions`` are made where no file describes a system of this size. ``changed_links`` are
    bandwidths that the user gave. ``jobs`` share the network: ``device_count`` counts the devices
    of one of them.

    Raises `HardwareError` where ``described`` are others than the system's dimensions, and for a
    dimension of a shape that ASTRA-sim doesn't have.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    implementations: Mapping[CollectiveKind, tuple[str, ...]]
    endpoint_delay_s: float
    preferred_dataset_splits: int
    active_chunks_per_dimension: int
    collective_optimization: str
    scheduling_policy: str
    local_memory_bandwidth_bytes_per_s: float | None
    remote_memory: RemoteMemory
    options: Mapping[str, object]
    interconnect: Interconnect | None = None
    part: str | None = field(default=None, compare=False)
    slices: int = 1
    assumptions: tuple[str, ...] = field(default=(), compare=False)
    described: tuple[Dimension, ...] | None = field(default=None, compare=False, repr=False)
    changed_links: tuple[LinkBandwidth, ...] = ()
    jobs: Jobs = ALONE

    def __post_init__(self) -> None:
        for dimension in self.dimensions:
            if dimension.shape not in ASTRA_SHAPES.values():
                raise HardwareError(
                    f"ASTRA-sim has no dimension that is a {dimension.shape.value}",
                    location=self.name,
                    hint="describe the network as interconnect",
                )
        is_described = self.interconnect is not None and self.described is not None
        if is_described and self.dimensions != self.described:
            raise HardwareError(
                "the dimensions are changed, and interconnect still describes the ones before, "
                "which hespas' network model takes",
                location=self.name,
                hint="set interconnect=None with them, or change it too, and described",
            )

    @property
    def device_count(self) -> int:
        """The number of devices: the product over the dimensions."""
        if not self.dimensions and self.interconnect is not None:
            return self.interconnect.device_count // self.jobs.count
        return prod(dimension.size for dimension in self.dimensions) // self.jobs.count

    def with_dimensions(
        self, change: Callable[[tuple[Dimension, ...]], tuple[Dimension, ...]]
    ) -> System:
        """Return the system with other dimensions, in both descriptions."""
        interconnect, dimensions = self.interconnect, change(self.dimensions)
        if interconnect is not None and isinstance(interconnect.fabric, Dimensions):
            interconnect = replace(
                interconnect, fabric=Dimensions(dimensions=change(interconnect.fabric.dimensions))
            )
        described = None if self.described is None else dimensions
        return replace(self, dimensions=dimensions, described=described, interconnect=interconnect)


def interconnect_of(system: System) -> Interconnect:
    """Return a system's ``interconnect``, or its ASTRA-sim files' network.

    The latter rounds messages and reductions down to ns, as ASTRA-sim does.
    """
    if system.interconnect is not None:
        return system.interconnect
    return Interconnect(
        name=system.name,
        fabric=Dimensions(dimensions=system.dimensions),
        algorithms={kind.text: names for kind, names in system.implementations.items()},
        endpoint_delay_s=system.endpoint_delay_s,
        memory_bytes_per_s=system.local_memory_bandwidth_bytes_per_s,
        rounding_ps=1000,
    )


def bare_system(
    name: str,
    *,
    dimensions: tuple[Dimension, ...] = (),
    interconnect: Interconnect | None = None,
) -> System:
    """Return a system of a network and ASTRA-sim's defaults.

    >>> ring = dimension_of(Shape.RING, 8, bandwidth=1e9, latency_s=0.0)
    >>> bare_system("a ring", dimensions=(ring,)).device_count
    8
    """
    return System(
        name=name,
        dimensions=dimensions,
        implementations={},
        endpoint_delay_s=0.0,
        preferred_dataset_splits=1,
        active_chunks_per_dimension=1,
        collective_optimization="baseline",
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=None,
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options={},
        interconnect=interconnect,
    )


_Names = Annotated[tuple[Text, ...], Meta(min_length=1)]
_Flag = Annotated[int, Meta(ge=0, le=1)]
_Path = Annotated[list[Text], Meta(min_length=1, max_length=1)]


# The files have ASTRA-sim's names and units, and a list of all dimensions for each figure, where a
# `System` has a value for each dimension.


class _NetworkFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``network.yml``: one entry per dimension in each list."""

    topology: Annotated[list[Literal["Ring", "FullyConnected", "Switch"]], Meta(min_length=1)]
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
    """``system.json``: keys with fields in `System`, then its options."""

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
    shared_bus_latency: NotNegative | None = msgspec.field(name="L", default=None)
    shared_bus_overhead: NotNegative | None = msgspec.field(name="o", default=None)
    shared_bus_gap: NotNegative | None = msgspec.field(name="g", default=None)
    shared_bus_gap_per_byte: NotNegative | None = msgspec.field(name="G", default=None)


class _RemoteMemoryFile(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
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

    Raises `ConfigError`, with the file and the key, for an invalid file, `HardwareError` for files
    that disagree.
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


def read_network(path: Path) -> tuple[Dimension, ...]:
    """Return the dimensions that a ``network.yml`` lists."""
    file = decode(read_yaml(path), _NetworkFile, location=str(path))
    for key in ("npus_count", "bandwidth", "latency"):
        count = len(getattr(file, key))
        if count != len(file.topology):
            raise HardwareError(
                f"$.{key} has {count} entries and $.topology {len(file.topology)}",
                location=str(path),
                hint="give one entry per dimension",
            )
    if prod(file.npus_count) > MOST_DEVICES:
        raise HardwareError(
            f"$.npus_count makes {prod(file.npus_count)} devices",
            location=str(path),
            hint=f"describe at most {MOST_DEVICES}",
        )
    try:
        for number, latency_ns in enumerate(file.latency):
            check_latency_ns(latency_ns, path=f"$.latency[{number}]")
        for number, gib_per_s in enumerate(file.bandwidth):
            check_link_gb_per_s(gib_per_s, path=f"$.bandwidth[{number}]")
    except ConfigError as error:
        error.location = str(path)
        raise
    rows = zip(file.topology, file.npus_count, file.bandwidth, file.latency, strict=True)
    return tuple(
        dimension_of(ASTRA_SHAPES[topology], count, bandwidth * GIB, latency / 1e9)
        for topology, count, bandwidth, latency in rows
    )


def read_remote_memory(path: Path | None) -> RemoteMemory:
    """Return the remote memory that a file describes, if any.

    Raises `ConfigError` for a figure that its ``memory-type`` needs and the file lacks.
    """
    if path is None:
        return RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION)
    file = decode(read_json(path), _RemoteMemoryFile, location=str(path))
    needed: list[str] = []
    if file.memory_type is not RemoteMemoryKind.NO_MEMORY_EXPANSION:
        needed = ["remote_mem_latency", "remote_mem_bw"]
    if file.memory_type is RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION:
        needed += ["num_nodes", "num_npus_per_node"]
    for name in needed:
        if getattr(file, name) is None:
            key = name.replace("_", "-")
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


def _implementations(
    file: _SystemFile, dimension_count: int, location: str
) -> MappingProxyType[CollectiveKind, tuple[str, ...]]:
    names_of: dict[CollectiveKind, tuple[str, ...]] = {}
    for kind in COMMON_KINDS:
        names: tuple[str, ...] | None = getattr(file, f"{kind.text}_implementation")
        # ASTRA-sim reads a list shorter than the dimensions as one that leaves the later ones out.
        if names is not None and len(names) > dimension_count:
            raise HardwareError(
                f"$.{kind.option}-implementation has {len(names)} entries "
                f"for {dimension_count} dimensions",
                location=location,
                hint="give at most one entry per dimension of network.yml",
            )
        if names:
            names_of[kind] = names
    return MappingProxyType(names_of)


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
