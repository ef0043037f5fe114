"""A network of any shape: devices, switches, and links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A link from one node to another, by their names; one direction."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Devices and switches by name, and links between them. Devices are numbered as listed.

    A message takes a path of fewest links; of several, always the same for the same two ends.
    """

    devices: tuple[str, ...]
    switches: tuple[str, ...]
    edges: tuple[Edge, ...]

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.devices)
