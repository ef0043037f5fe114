"""A cluster: its devices' network and how collectives run on it, in ASTRA-sim's terms.

Source of every field and default: ASTRA-sim's analytical simulators, which read them from
``system.json``, ``network.yml`` and ``remote_memory.json`` (`hespas.hardware.astra_sim_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite, prod
from typing import TYPE_CHECKING

from hespas.errors import HardwareError
from hespas.program.collectives import CollectiveKind

if TYPE_CHECKING:
    from hespas.hardware.interconnect import Interconnect


class Topology(Enum):
    """How the devices along one dimension are connected; the values are ASTRA-sim's names."""

    RING = "Ring"
    FULLY_CONNECTED = "FullyConnected"
    SWITCH = "Switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDimension:
    """One dimension of the network: its number of devices, and one direction of one link.

    Raises `HardwareError` for fewer than one device, a bandwidth that is not positive and finite,
    and a latency that is not finite and at least 0.
    """

    topology: Topology
    npus_count: int
    bandwidth_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.npus_count < 1:
            raise HardwareError(f"npus_count is {self.npus_count}", hint="give 1 or more")
        bandwidth = self.bandwidth_bytes_per_s
        if not (isfinite(bandwidth) and bandwidth > 0):
            raise HardwareError(f"bandwidth is {bandwidth}", hint="give a positive number")
        if not (isfinite(self.latency_s) and self.latency_s >= 0):
            raise HardwareError(f"latency is {self.latency_s}", hint="give 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBandwidth:
    """Another bandwidth of the links along a dimension, the nearest of which is 0.

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


class RemoteMemoryKind(Enum):
    """The values of ``memory-type``."""

    NO_MEMORY_EXPANSION = "NO_MEMORY_EXPANSION"
    PER_NPU_MEMORY_EXPANSION = "PER_NPU_MEMORY_EXPANSION"
    PER_NODE_MEMORY_EXPANSION = "PER_NODE_MEMORY_EXPANSION"
    MEMORY_POOL = "MEMORY_POOL"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMemory:
    """Memory outside the devices."""

    kind: RemoteMemoryKind
    latency_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    nodes: int | None = None
    npus_per_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A cluster: network dimensions, and how its collectives run.

    ``implementations`` gives, per collective, one algorithm name per dimension.
    ``local_memory_bandwidth_bytes_per_s`` is None where the file has no ``local-mem-bw``.
    ``options`` keeps the remaining keys of ``system.json`` as read.
    ``interconnect`` is the network for hespas' network model, if a file describes it; a system
    without files for ASTRA-sim has no ``dimensions``. ``part`` is the device preset that a system
    preset is made for, None for one's own systems; ``slices`` is of how many slices of TPUs it
    consists, which its last dimension joins; ``assumptions`` is what was taken for granted where no
    file describes a system of this size. ``described`` are the dimensions that ``interconnect``
    describes too. ``changed_links`` are bandwidths that the user gave instead of the system's own.
    Raises `HardwareError` where ``described`` are others than the system's dimensions.
    """

    name: str
    dimensions: tuple[NetworkDimension, ...]
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
    described: tuple[NetworkDimension, ...] | None = field(default=None, compare=False, repr=False)
    changed_links: tuple[LinkBandwidth, ...] = ()

    def __post_init__(self) -> None:
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
            return self.interconnect.device_count
        return prod(dimension.npus_count for dimension in self.dimensions)


def bare_system(
    name: str,
    *,
    dimensions: tuple[NetworkDimension, ...] = (),
    interconnect: Interconnect | None = None,
) -> System:
    """Return a system with a network and ASTRA-sim's defaults for everything else.

    >>> ring = NetworkDimension(
    ...     topology=Topology.RING, npus_count=8, bandwidth_bytes_per_s=1e9, latency_s=0.0
    ... )
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
