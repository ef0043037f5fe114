"""Kernels that only move data: how long they take by what they move.

A long one reaches a part of the memory bandwidth, measured on each part; every one takes some
time beside, measured as the shortest. What arithmetic it does at the peak rates is a lower
bound. So the time is ``overhead + max(bytes / (efficiency bandwidth), FLOPs / peak)``, which
grows with all of its terms, and the part of the bandwidth that is reached grows with the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hespas.cost.structure import Leaf
from hespas.estimate.measured.tables import PartWire
from hespas.estimate.roofline import Roofline
from hespas.estimate.timed import Timed
from hespas.hardware.device import Device
from hespas.program.program import Program
from hespas.split.scheduled import FREE
from hespas.units import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Prices kernels by their bytes.

    ``overhead_s`` is what a kernel takes beside moving data where kernels are known, in a
    program that was compiled. Elsewhere an operation is a part of some kernel, and takes none.
    """

    roofline: Roofline
    efficiency: float
    overhead_s: float
    factor: float = 1.0

    @property
    def parameters(self) -> Mapping[str, object]:
        """Its three figures."""
        return {
            "efficiency": self.efficiency,
            "overhead_s": self.overhead_s,
            "factor": self.factor,
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted of every kernel."""
        return (
            (
                "measured: kernels that are no products move their bytes at "
                f"{100 * self.efficiency:.0f} % of the memory bandwidth, the part that long ones "
                f"were measured to reach, and take {format_time(self.overhead_s)} beside if the "
                "program is compiled"
            ),
        )

    def moving_s(self, size_bytes: float) -> float:
        """Return how long a long kernel takes to move so many bytes: not less than at the peak."""
        at_peak_s = size_bytes / self.roofline.device.memory_bandwidth_bytes_per_s
        return max(1.0, self.factor / self.efficiency) * at_peak_s

    def price(self, leaf: Leaf, program: Program) -> Timed:
        """Return the time of a kernel."""
        if leaf.op.kind in FREE:
            return Timed(time_s=0.0)
        peak = self.roofline.price(leaf.op.name, leaf.work)
        overhead_s = self.overhead_s if program.is_scheduled else 0.0
        busy_s = max(self.moving_s(leaf.work.bytes_moved), peak.compute_time_at_peak_s)
        return Timed(time_s=overhead_s + busy_s)


def streaming_of(about: PartWire, roofline: Roofline) -> Streaming:
    """Return the model of a device, from what was measured on a part.

    The overhead is the device's ``launch_overhead_s`` where it has one, else the shortest time
    measured, of kernels replayed one behind another.
    """
    device: Device = roofline.device
    overhead_s = device.launch_overhead_s
    return Streaming(
        roofline=roofline,
        efficiency=about.streaming_efficiency,
        overhead_s=about.streaming_latency_s if overhead_s is None else overhead_s,
        factor=device.factor("kernels"),
    )
