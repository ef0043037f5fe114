"""Price products of experts from measured layers of experts.

A table ``experts.<kind>`` of a part holds the time of a layer's three products: two from the hidden
size to the inner one, and one back. Its axes are the rows of `ROWS_OF` experts, the experts of the
device, and the smaller and the larger of both sizes. The measured experts had uneven loads, as
routers make them, and a device waits for its busiest one.
"""

from __future__ import annotations

from dataclasses import replace

from hespas.base.frozen import frozen
from hespas.hardware.device import Device, factor_of, table_of
from hespas.price.estimate import Timing, larger_of
from hespas.price.roofline import Rates, device_at
from hespas.price.tables import Part, read
from hespas.work.gemm import GroupedGemm

ROWS_OF = 64
"""A table counts the rows of this many experts: one expert may have less than a row."""
_PRODUCTS = 3
_MXFP4_BITS = 4.3
"""Four bits and a scale of 8 for each 32 are 4.25; with scales of 16 they are 4.5."""
NOTE = (
    "products of experts take what layers of experts did on {part}, in engines that serve and with "
    "loads as uneven as routers make them"
)


@frozen
class ExpertsModel:
    """Times of experts' products, from the tables of a part."""

    device: Device
    part: Part

    def at_rates(self, rates: Rates) -> ExpertsModel:
        """Return the model of the device with scaled rates."""
        return replace(self, device=device_at(self.device, rates))

    def price(self, grouped: GroupedGemm) -> Timing | None:
        """Return a product's time; None where no table fits.

        Tables are for even loads, and not for products that sum over rows, which no server runs.
        """
        experts, rows = len(grouped.group_rows), sum(grouped.group_rows)
        table = self.part.tables.get(f"experts.{kind_of(grouped)}")
        if table is None or grouped.is_divided or not rows or not _is_even(grouped):
            return None
        narrow, wide = sorted((grouped.n, grouped.k))
        sizes = (max(1, round(rows * ROWS_OF / experts)), experts, narrow, wide)
        compute_s, memory_s = self._roofline_s(grouped)
        time_s = read(table.grid, sizes).time_s / _PRODUCTS * grouped.batch
        time_s *= max(compute_s, memory_s) / self._part_roofline_s(grouped)
        time_s *= self.device.factor(factor_of(grouped.multiplied), "gemm")
        return Timing(
            time_s=time_s,
            notes=(NOTE.format(part=self.part.about.measured_on),),
            bound=larger_of(time_s, compute_s=compute_s, memory_s=memory_s),
        )

    def _roofline_s(self, grouped: GroupedGemm) -> tuple[float, float]:
        """Return the times of arithmetic and of weights that tables are scaled to."""
        name = self.device.multiplied_as(grouped.multiplied)
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        return _flops(grouped) / self.device.scaled_rate(name), _weight_bytes(grouped) / bandwidth

    def _part_roofline_s(self, grouped: GroupedGemm) -> float:
        """Return the larger of both on the part that was measured."""
        about = self.part.about
        name = table_of(self.device.multiplied_as(grouped.multiplied))
        peak = about.peak_flops.get(name, self.device.rate(name))
        return max(_flops(grouped) / peak, _weight_bytes(grouped) / about.memory_bandwidth)


def kind_of(grouped: GroupedGemm) -> str:
    """Return the weights' kind: bf16, f8, mxfp4, int4 or nvfp4."""
    operand_bits, weight_bits = grouped.operand_bits
    if weight_bits >= _BITS_OF_BF16:
        return "bf16"
    if weight_bits >= _BITS_OF_F8:
        return "f8"
    if operand_bits < _BITS_OF_F8:
        return "nvfp4"
    return "mxfp4" if weight_bits < _MXFP4_BITS else "int4"


_BITS_OF_BF16, _BITS_OF_F8 = 16, 8


def _is_even(grouped: GroupedGemm) -> bool:
    """Return whether groups that have rows have as many as others."""
    rows = [count for count in grouped.group_rows if count]
    return max(rows) - min(rows) <= 1


def _flops(grouped: GroupedGemm) -> int:
    rows = sum(grouped.group_rows)
    return grouped.batch * rows * grouped.n * grouped.k * grouped.flops_per_product


def _weight_bytes(grouped: GroupedGemm) -> float:
    elements = grouped.batch * grouped.groups * grouped.n * grouped.k
    return elements * grouped.operand_bits[1] / 8
