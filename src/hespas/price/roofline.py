"""Time operations by the longer of arithmetic and memory traffic.

    time = max(sum over types of FLOPs / peak FLOP/s of the type, bytes / peak bytes/s)

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance
model", Communications of the ACM 52(4), 2009. Operations follow each other on the device, so
that their times add.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec.structs import asdict

from hespas.base.frozen import frozen
from hespas.base.units import format_quantity, format_time
from hespas.errors import HardwareError
from hespas.hardware.device import Device, faster
from hespas.price.driver import Estimator, OperationMethod, estimate_region
from hespas.price.estimate import (
    FROM_TIME,
    Bound,
    Estimate,
    OpEstimate,
    Price,
    Timing,
    TypeTotals,
    larger_of,
)
from hespas.price.methods import RooflineOptions
from hespas.program.attrs import MOSAIC, is_of_pallas
from hespas.program.program import Program
from hespas.program.types import ELEMENT_TYPES, NumberKind
from hespas.program.work import CustomCallCost, Work
from hespas.split.regions import Compute
from hespas.work.expand import Leaf
from hespas.work.fusion import operations_of

if TYPE_CHECKING:
    from hespas.price.methods import EstimatorSpec
    from hespas.price.tpu import PricedKernel


@frozen
class Rates:
    """Factors on the rates of a device.

    ``memory`` multiplies the memory bandwidth, ``arithmetic`` the peak FLOP/s of every type and the
    pipelines of a kernel that is read, ``launch`` the time that a launch takes beside the kernel's
    work. Raises `HardwareError` unless ``memory`` and ``arithmetic`` are above 0 and ``launch`` is
    at least 0.

    >>> Rates(memory=2.0)
    Rates(memory=2.0, arithmetic=1.0, launch=1.0)
    """

    memory: float = 1.0
    arithmetic: float = 1.0
    launch: float = 1.0

    def __post_init__(self) -> None:
        if not (self.memory > 0 and self.arithmetic > 0 and self.launch >= 0):
            raise HardwareError(f"these factors make no device: {self}", hint="give positive ones")

    @property
    def is_of_launches_alone(self) -> bool:
        """Whether the peak rates don't change."""
        return self.memory == self.arithmetic == 1.0


@runtime_checkable
class Scalable(Estimator, OperationMethod, Protocol):
    """An estimator of operations whose times follow the rates of its device."""

    def at_rates(self, rates: Rates) -> OperationMethod:
        """Return the estimator of the device with scaled rates."""
        ...


def device_at(device: Device, rates: Rates) -> Device:
    """Return the device with scaled rates.

    >>> one = Device(name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11,
    ...              per_datatype_flops={"bf16": 4e12}, launch_overhead_s=3e-6)
    >>> twice = device_at(one, Rates(memory=2.0, launch=0.0))
    >>> twice.memory_bandwidth_bytes_per_s, twice.rate("bf16"), twice.launch_overhead_s
    (200000000000.0, 4000000000000.0, 0.0)
    """
    overhead_s, core = device.launch_overhead_s, device.tensor_core
    return replace(
        device,
        tensor_core=None if core is None else faster(core, rates.arithmetic),
        peak_flops=device.peak_flops * rates.arithmetic,
        per_datatype_flops={
            name: rate * rates.arithmetic for name, rate in device.per_datatype_flops.items()
        },
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * rates.memory,
        launch_overhead_s=None if overhead_s is None else overhead_s * rates.launch,
    )


_OPERATIONS_ASSUMPTION = (
    "roofline: every operation runs alone at the device's peak rates, each reading its operands "
    "from and writing its results to device memory; launches cost nothing"
)
_KERNELS_ASSUMPTION = (
    "roofline: every kernel of the compiled program runs alone at the device's peak rates, reading "
    "what its body needs from device memory and writing its results there"
)
TRANSCENDENTAL = "transcendental"
_FLOATS = frozenset(
    name
    for name, each in ELEMENT_TYPES.items()
    if each.kind is NumberKind.FLOAT and each.bits != 32
)
_BYTES = frozenset({"i2", "i4", "i8", "ui2", "ui4", "ui8"})
"""Types whose products run on a unit of their own; `_BYTES` only in kernels with products."""


@frozen
class Roofline:
    """Prices operations at a device's peak rates, and launches at its overhead.

    >>> a100 = Device(name="a100", peak_flops=9.7e12, memory_bandwidth_bytes_per_s=1555e9,
    ...               per_datatype_flops={"bf16": 312e12})
    >>> work = Work(flops=(("bf16", 624 * 10**12),), bytes_read=1555 * 10**9)
    >>> Roofline(device=a100).at_peaks("stablehlo.dot_general", work).time_s
    2.0
    """

    method: str = "roofline"
    device: Device
    options: RooflineOptions = field(default_factory=RooflineOptions)
    custom_calls: Mapping[str, CustomCallCost] = field(default_factory=dict[str, CustomCallCost])

    @staticmethod
    def of(spec: EstimatorSpec, method: str = "roofline") -> Roofline:
        """Return a device's roofline; the `ConfigError` without a device names ``method``."""
        return Roofline(
            device=spec.needed_device(method),
            options=spec.roofline_options,
            custom_calls=spec.custom_calls,
        )

    @property
    def parameters(self) -> Mapping[str, object]:
        """The device's figures, the options, and the stated work of custom calls."""
        core = self.device.tensor_core
        units = {"tensor_core": asdict(core), "clock_hz": self.device.clock_hz} if core else {}
        return {
            **units,
            "peak_flops": self.device.peak_flops,
            "memory_bandwidth": self.device.memory_bandwidth_bytes_per_s,
            "per_datatype_flops": dict(sorted(self.device.per_datatype_flops.items())),
            "tdp_W": self.device.tdp_w,
            "hbm_power_ratio": self.device.hbm_power_ratio,
            "launch_overhead_s": self.device.launch_overhead_s,
            "error_on_unknown_type": self.options.error_on_unknown_type,
            "warn_on_unknown_type": self.options.warn_on_unknown_type,
            "custom_calls": {key: repr(cost) for key, cost in sorted(self.custom_calls.items())},
        }

    def at_rates(self, rates: Rates) -> Roofline:
        """Return the roofline of the device with scaled rates."""
        return replace(self, device=device_at(self.device, rates))

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region."""
        if not program.is_scheduled:
            return (_OPERATIONS_ASSUMPTION,)
        overhead_s = self.device.launch_overhead_s
        if overhead_s is None:
            launches = "launches cost nothing, for what they cost on this device is not known"
        elif overhead_s == 0:
            launches = "nothing launches them one by one on this device"
        else:
            launches = f"each launch costs {format_time(overhead_s)} more"
        return (f"{_KERNELS_ASSUMPTION}; {launches}",)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; raise `CostError` for unknown work."""
        return estimate_region(self, region, program, custom_calls=self.custom_calls, key=same_work)

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one execution at the peak rates, and its launch."""
        kernel = self.pallas_kernel(leaf)
        if kernel is not None:
            return self.price_timed(leaf, kernel.at_peak, name=kernel.name)
        return Price(
            cost=self.at_peaks(leaf.op.name, leaf.work),
            launch_s=(self.device.launch_overhead_s or 0.0) if is_kernel else 0.0,
            notes=tuple(self._unrated(leaf)),
            warnings=self._warnings(leaf.work),
        )

    def pallas_kernel(self, leaf: Leaf) -> PricedKernel | None:
        """Return the two times of a Pallas kernel; None for others."""
        if not is_of_pallas(leaf.op.attrs) or MOSAIC in self.custom_calls:
            return None
        from hespas.price.tpu import priced_kernel  # noqa: PLC0415 - which wraps this one

        return priced_kernel(leaf.op, self.device)

    def price_timed(self, leaf: Leaf, timing: Timing, *, name: str = "") -> Price:
        """Price one execution timed by another method; ``name`` is its author's."""
        return Price(
            cost=self.timed(leaf.op.name, leaf.work, timing.time_s, timing.bound),
            label=f"{leaf.op.name} {name}" if name else "",
            notes=(*timing.notes, *self._unrated(leaf)),
            warnings=self._warnings(leaf.work),
        )

    def at_peaks(self, kind: str, work: Work) -> OpEstimate:
        """Cost one execution at the peak rates; ``kind`` names it in errors."""
        per_type: dict[str, TypeTotals] = {}
        for key, flops in work.flops:
            totals = TypeTotals(flops=float(flops), time_at_peak_s=flops / self._peak(key, kind))
            name = self.device.multiplied_as(key)
            per_type[name] = per_type[name] + totals if name in per_type else totals
        if work.transcendentals:
            rate = self.device.peak_flops
            per_type[TRANSCENDENTAL] = TypeTotals(
                flops=float(work.transcendentals), time_at_peak_s=work.transcendentals / rate
            )
        compute_s = sum((totals.time_at_peak_s for totals in per_type.values()), 0.0)
        memory_s = work.bytes_moved / self.device.memory_bandwidth_bytes_per_s
        time_s = max(compute_s, memory_s)
        return OpEstimate(
            count=1.0,
            time_s=time_s,
            bytes_moved=float(work.bytes_moved),
            memory_time_at_peak_s=memory_s,
            energy_j=self._energy_j(compute_s, memory_s, time_s),
            per_type=per_type,
            bound=larger_of(time_s, compute_s=compute_s, memory_s=memory_s),
        )

    def _unrated(self, leaf: Leaf) -> Iterator[str]:
        device = self.device
        if not device.per_datatype_flops:
            return
        for key, _ in leaf.work.flops:
            served = device.served_by(key)
            is_of_unit = key in _FLOATS or (
                key in _BYTES
                and any(inner.traits.is_of_library for inner in operations_of(leaf.op))
            )
            if served == key or not is_of_unit:
                continue
            if served is None:
                rate = format_quantity(device.peak_flops, "FLOP/s")
                yield f"{device.name} names no rate of {key}: priced at that of other types, {rate}"
            else:
                yield f"{device.name} names no rate of {key}: multiplied as {served}, at its rate"

    def timed(self, kind: str, work: Work, time_s: float, bound: Bound) -> OpEstimate:
        """Cost one execution that takes ``time_s``, whatever the peak rates say."""
        peak = self.at_peaks(kind, work)
        energy_j = self._energy_j(peak.compute_time_at_peak_s, peak.memory_time_at_peak_s, time_s)
        return replace(peak, time_s=time_s, duration_ps=FROM_TIME, energy_j=energy_j, bound=bound)

    def _peak(self, key: str, kind: str) -> float:
        rate = self.device.named_rate(key)
        if self.options.error_on_unknown_type and not self.device.names(key):
            raise HardwareError(
                f"{kind} computes on {key}, which per_datatype_flops doesn't name",
                location=self.device.name,
                hint="add it, or drop error_on_unknown_type",
            )
        return rate or self.device.peak_flops

    def _warnings(self, work: Work) -> tuple[str, ...]:
        if not self.options.warn_on_unknown_type:
            return ()
        return tuple(
            f"per_datatype_flops doesn't name {key}: priced at "
            f"{self.device.served_by(key) or 'peak_flops'}"
            for key, _ in work.flops
            if not self.device.names(key)
        )

    def _energy_j(self, compute_s: float, memory_s: float, time_s: float) -> float | None:
        """Return the energy of one execution; None without the device's power.

        The device draws its thermal design power at full use; ``hbm_power_ratio`` of it goes to
        memory in proportion to bandwidth used, the rest to arithmetic in proportion to FLOP/s used.
        Without a ratio it draws full power while it runs. Idle power is zero.
        """
        if self.device.tdp_w is None:
            return None
        ratio = self.device.hbm_power_ratio
        if ratio is None:
            return self.device.tdp_w * time_s
        return self.device.tdp_w * (ratio * memory_s + (1 - ratio) * compute_s)


def same_work(leaf: Leaf) -> Hashable:
    """Return the key of the roofline's price: name and work, or Pallas's kernel itself."""
    return id(leaf.op) if is_of_pallas(leaf.op.attrs) else (leaf.op.name, leaf.work)
