"""The file of htsim's topology: one switch, as a fat tree of two tiers with one leaf switch.

htsim's own trees exist for few numbers of hosts, and their links have a latency of 1 us.
"""

from __future__ import annotations

from dataclasses import dataclass

from hespas.backends.network_program import dimensions_text
from hespas.errors import SimulationError
from hespas.hardware.system import System, Topology

_ROUGH = 0.01
"""A rate that differs more from whole Gb/s than so is refused."""
_EXACT = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch in the whole figures of htsim's files; ``notes`` are what was rounded."""

    hosts: int
    gigabits_per_s: int
    latency_ns: int
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """The rate of a link."""
        return self.gigabits_per_s * 1e9 / 8


def switch_of(system: System) -> Switch:
    """Return the switch that a system is.

    Raises `SimulationError` for a system that is not one dimension with a switch, and for a rate
    that is not near whole Gb/s.
    """
    used = [each for each in system.dimensions if each.npus_count > 1]
    if len(used) != 1 or used[0].topology is not Topology.SWITCH:
        raise SimulationError(
            f"htsim's file is written for one switch, and the system is {dimensions_text(system)}",
            location=system.name,
            hint="simulate it by hespas: --backend hespas",
        )
    rate, latency_ns = used[0].bandwidth_bytes_per_s * 8e-9, used[0].latency_s * 1e9
    error = abs(round(rate) - rate) / rate
    if error > _ROUGH:
        raise SimulationError(
            f"links have {rate:.6g} Gb/s, and htsim's files have whole Gb/s",
            location=system.name,
            hint=f"give the dimension a bandwidth of {max(1, round(rate)) / 8:g} GB/s",
        )
    notes: list[str] = []
    if error > _EXACT:
        notes.append(f"links have {round(rate)} Gb/s for {rate:.6g}: htsim's files have whole Gb/s")
    if abs(round(latency_ns) - latency_ns) > _EXACT * latency_ns:
        notes.append(
            f"links have a latency of {round(latency_ns)} ns for {latency_ns:.6g}: htsim's files "
            "have whole ns"
        )
    return Switch(
        hosts=used[0].npus_count,
        gigabits_per_s=round(rate),
        latency_ns=round(latency_ns),
        notes=tuple(notes),
    )


def topology_text(switch: Switch) -> str:
    """Return the file: hosts on one leaf switch, whose one uplink none of their messages takes.

    >>> print(topology_text(Switch(hosts=8, gigabits_per_s=400, latency_ns=500)).splitlines()[1])
    Tiers 2
    """
    links = f"Downlink_speed_Gbps {switch.gigabits_per_s}"
    latencies = ["Switch_Latency_ns 0", f"Downlink_Latency_ns {switch.latency_ns}"]
    lines = [
        *(f"Nodes {switch.hosts}", "Tiers 2", f"Podsize {switch.hosts}"),
        *("Tier 0", links, "Radix_Up 1", f"Radix_Down {switch.hosts}"),
        *(f"Oversubscribed {switch.hosts}", *latencies),
        *("Tier 1", links, "Radix_Down 1", *latencies),
    ]
    return "\n".join(lines) + "\n"
