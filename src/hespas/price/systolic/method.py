"""Price matrix products by a model of an array, and everything else by the roofline.

``method: systolic`` takes closed forms; a simulator of arrays takes their place as another
`ProductTimer`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from hespas.base.figures import Count, Positive, Text, check_rate
from hespas.errors import ConfigError, UnsupportedError
from hespas.hardware.device import Device
from hespas.hardware.estimators import HARDWARE, Hardware
from hespas.price.bound import larger_of
from hespas.price.driver import Price, estimate_region
from hespas.price.estimate import FROM_TIME, Estimate, TypeTotals
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Roofline
from hespas.price.systolic.array import (
    Dataflow,
    Product,
    SystolicArray,
    cycles,
    products,
    sram_bytes,
)
from hespas.program.program import Program
from hespas.program.types import TensorType
from hespas.split.regions import Compute
from hespas.work.expand import Leaf


class SystolicHardware(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the methods that model a systolic array.

    ``array_count`` arrays share the columns of a product. Rates are in Hz, FLOP/s and bytes/s.
    ``vector_flops`` is the rate of everything that is no matrix product or convolution; ``binary``
    is the path of a simulator that is a program, or of a Python that has one. Raises `ConfigError`
    for a rate that was meant in another unit.
    """

    array_rows: Count
    array_columns: Count
    array_count: Count = 1
    clock_hz: Positive
    memory_bandwidth: Positive
    vector_flops: Positive
    dataflow: Literal["weight_stationary", "output_stationary"] = "weight_stationary"
    sram_bandwidth: Positive | None = None
    binary: Text | None = None

    def __post_init__(self) -> None:
        check_rate(self.memory_bandwidth, "B/s", path=f"{HARDWARE}.memory_bandwidth")
        check_rate(self.sram_bandwidth, "B/s", path=f"{HARDWARE}.sram_bandwidth")
        check_rate(self.vector_flops, "FLOP/s", path=f"{HARDWARE}.vector_flops")


class SimulatorHardware(SystolicHardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of methods that call a program that somebody built.

    ``arguments`` hold placeholders such as ``{workload}``; ``cycles_pattern`` is a regular
    expression with one group, the cycles, in ``answer_file`` or else in what the program prints.
    ``files`` are those that it looks for where it is started: their names there, and their paths.
    """

    arguments: tuple[str, ...] | None = None
    cycles_pattern: Text | None = None
    answer_file: Text | None = None
    files: Mapping[Text, Text] = {}


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``systolic``.

    Raises `ConfigError` without a description of the array, and for what is for simulators.
    """
    hardware = array_hardware(spec, "systolic")
    if hardware.binary is not None:
        raise ConfigError(
            "hardware.binary has no effect on method 'systolic', which runs no program",
            hint="drop it, or use method 'scalesim' or 'zigzag_onnx'",
        )
    return with_timer(ClosedForm(array=array_of(hardware)), hardware, spec)


def array_hardware(spec: EstimatorSpec, method: str) -> SystolicHardware:
    """Return the array that the configuration describes; `ConfigError` where there is none."""
    if not isinstance(spec.hardware, SystolicHardware):
        raise ConfigError(
            f"method {method!r} needs a description of the array",
            hint=f"give a configuration with perf_estimator.method {method!r}, such as "
            "configs/nodes/TPUv3/systolic/config.json",
        )
    return spec.hardware


def array_of(hardware: SystolicHardware) -> SystolicArray:
    """Return the array alone."""
    return SystolicArray(
        rows=hardware.array_rows,
        columns=hardware.array_columns,
        count=hardware.array_count,
        clock_hz=hardware.clock_hz,
        dataflow=Dataflow(hardware.dataflow),
        sram_bandwidth_bytes_per_s=hardware.sram_bandwidth,
    )


def with_timer(timer: ProductTimer, hardware: SystolicHardware, spec: EstimatorSpec) -> Systolic:
    """Return the estimator that asks ``timer`` for products, with the roofline for the rest."""
    device = Device(
        name=f"{hardware.array_rows} x {hardware.array_columns} array",
        peak_flops=hardware.vector_flops,
        memory_bandwidth_bytes_per_s=hardware.memory_bandwidth,
    )
    fallback = Roofline(
        device=device, options=spec.roofline_options, custom_calls=spec.custom_calls
    )
    return Systolic(timer=timer, fallback=fallback, peak_flops=array_of(hardware).peak_flops)


class ProductTimer(Protocol):
    """Times matrix products on an array."""

    @property
    def method(self) -> str:
        """The name that configuration files give it."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """Everything besides the product that decides the answer, as JSON values."""
        ...

    @property
    def assumption(self) -> str:
        """What it takes for granted, as a sentence for people."""
        ...

    def time_s(self, product: Product, element_bytes: int) -> float:
        """Return the time of one product whose operands' elements take ``element_bytes``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """Times products by the closed forms of `hespas.price.systolic.array`."""

    array: SystolicArray

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "systolic"

    @property
    def parameters(self) -> Mapping[str, object]:
        """The array."""
        return array_parameters(self.array)

    @property
    def assumption(self) -> str:
        """What it assumes."""
        return (
            f"systolic: matrix products run on {array_text(self.array)}, "
            f"{self.array.dataflow.value.replace('_', ' ')}, one after the other, with operands "
            "that arrive from device memory while it computes"
        )

    def time_s(self, product: Product, element_bytes: int) -> float:
        """Return cycles over the clock, or the time to feed the array's edges if that is longer."""
        compute_s = cycles(product, self.array) / self.array.clock_hz
        bandwidth = self.array.sram_bandwidth_bytes_per_s
        if bandwidth is None:
            return compute_s
        return max(compute_s, sram_bytes(product, self.array, element_bytes) / bandwidth)


def array_text(array: SystolicArray) -> str:
    """Describe an array in a few words."""
    size = f"{array.rows} x {array.columns}"
    return f"one array of {size}" if array.count == 1 else f"{array.count} arrays of {size}"


def array_parameters(array: SystolicArray) -> Mapping[str, object]:
    """Return the figures of an array as JSON values."""
    return {
        "array_rows": array.rows,
        "array_columns": array.columns,
        "array_count": array.count,
        "clock_hz": array.clock_hz,
        "dataflow": array.dataflow.value,
        "sram_bandwidth": array.sram_bandwidth_bytes_per_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Systolic:
    """Prices regions: products by ``timer``, the rest by ``fallback``.

    A product takes the timer's time, or that of its operands and results on the way from and to
    device memory, if that is longer. ``peak_flops`` is the array's, for its utilisation.
    """

    timer: ProductTimer
    fallback: Roofline
    peak_flops: float

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return self.timer.method

    @property
    def parameters(self) -> Mapping[str, object]:
        """Those of both."""
        return {"timer": dict(self.timer.parameters), "fallback": dict(self.fallback.parameters)}

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return what it assumes of every region."""
        del program
        rest = "operations that are no matrix product or convolution are priced by the roofline"
        return (self.timer.assumption, f"{self.method}: {rest}")

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; `CostError` for work that is not known."""
        return estimate_region(
            self, region, program, custom_calls=self.fallback.custom_calls, key=_key
        )

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Return what one operation costs; launches are not known of an array."""
        del is_kernel
        rest = self.fallback.at_peaks(leaf.op.name, leaf.work)
        counted = products(leaf.op)
        if not counted:
            return Price(cost=rest)
        element_bytes = _element_bytes(leaf)
        array_s = sum(
            self.timer.time_s(product, element_bytes) * count for product, count in counted.items()
        )
        per_type = {
            name: TypeTotals(flops=totals.flops, time_at_peak_s=totals.flops / self.peak_flops)
            for name, totals in rest.per_type.items()
        }
        time_s = max(array_s, rest.memory_time_at_peak_s)
        cost = replace(
            rest,
            time_s=time_s,
            duration_ps=FROM_TIME,
            energy_j=None,
            per_type=per_type,
            bound=larger_of(time_s, compute_s=array_s, memory_s=rest.memory_time_at_peak_s),
        )
        return Price(cost=cost)


def _key(leaf: Leaf) -> Hashable:
    """Return what an operation does, and the types it does it on."""
    types = tuple([value.type for value in (*leaf.op.operands, *leaf.op.results)])
    return leaf.op.name, leaf.op.attrs, types, leaf.work


def _element_bytes(leaf: Leaf) -> int:
    kind = leaf.op.operands[0].type
    if not isinstance(kind, TensorType):
        raise UnsupportedError("a product of what is no tensor", location=leaf.op.location)
    return max(1, kind.element.bits // 8)
