"""``method: systolic``: products on an array, the rest by roofline.

Products take cycles in closed form; a simulator of arrays takes their place as another
`ProductTimer`. A product C[m, n] = A[m, k] B[k, n] runs in folds. Weight stationary: a fold holds
R x C weights, a piece of B with R of the k rows and C of the n columns; loading them takes R
cycles, then m rows of A pass in m + R + C - 2. Output stationary: a fold holds R x C results; k
products for each pass in k + R + C - 2.

    weight stationary   ceil(k / R) ceil(n / C) (2R + C + m - 2) - 1
    output stationary   ceil(m / R) ceil(n / C) (R + C + k - 2) - 1

The last cycle is counted from 0, as SCALE-Sim does. Source: the "Total Cycles" of SCALE-Sim
3.0.0 (MIT), which these equal where its memory doesn't stall; A. Samajdar et al., "A systematic
methodology for characterizing scalability of DNN accelerators using SCALE-Sim", ISPASS 2020.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil, prod
from typing import Literal, Protocol, TypeVar

from hespas.base.figures import Count, Positive, Text, check_rate
from hespas.base.frozen import frozen
from hespas.errors import ConfigError, HardwareError, UnsupportedError
from hespas.hardware.device import HARDWARE, Device, Hardware
from hespas.price.driver import estimate_region
from hespas.price.estimate import FROM_TIME, Estimate, Price, TypeTotals, larger_of
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Roofline
from hespas.program.attrs import ConvolutionAttrs, DotAttrs
from hespas.program.operations.traits import operand, result
from hespas.program.program import Op, Program
from hespas.program.types import TensorType
from hespas.split.regions import Compute
from hespas.work.expand import Leaf
from hespas.work.gemm import gemms, grouped_gemms


class Dataflow(Enum):
    """What stays in the array while the rest streams past."""

    WEIGHT_STATIONARY = "weight_stationary"
    OUTPUT_STATIONARY = "output_stationary"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Product:
    """A matrix product: ``m`` rows, ``n`` columns, ``k`` summed over."""

    m: int
    n: int
    k: int

    @property
    def multiplications(self) -> int:
        """The number of multiply-accumulates."""
        return self.m * self.n * self.k


@frozen
class SystolicArray:
    """``rows`` x ``columns`` multipliers at ``clock_hz``; bandwidths in bytes/s.

    ``count`` equal arrays share a product: each computes its part of the columns.
    ``sram_bandwidth_bytes_per_s`` is the bandwidth to the array's edges; None means it never
    limits. Raises `HardwareError` for figures that are not above zero.
    """

    rows: int
    columns: int
    clock_hz: float
    dataflow: Dataflow
    count: int = 1
    sram_bandwidth_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        figures = {
            "array_rows": self.rows,
            "array_columns": self.columns,
            "clock_hz": self.clock_hz,
        }
        for name, figure in figures.items():
            if not figure > 0:
                raise HardwareError(f"{name} is {figure}", hint="give a positive number")

    @property
    def multipliers(self) -> int:
        """The multiply-accumulates of all arrays in a cycle."""
        return self.count * self.rows * self.columns

    @property
    def peak_flops(self) -> float:
        """FLOP/s with every multiplier busy: a multiplication and an addition each cycle."""
        return 2 * self.multipliers * self.clock_hz

    def columns_each(self, product: Product) -> int:
        """Return how many of a product's columns one array computes."""
        return ceil(product.n / self.count)

    def folds(self, product: Product) -> int:
        """Return how many folds of a product one array runs."""
        is_weights = self.dataflow is Dataflow.WEIGHT_STATIONARY
        along = ceil((product.k if is_weights else product.m) / self.rows)
        return along * ceil(self.columns_each(product) / self.columns)


def cycles(product: Product, array: SystolicArray) -> int:
    """Return the cycles of one product, shared by all arrays.

    >>> tpu = SystolicArray(rows=128, columns=128, clock_hz=940e6,
    ...                     dataflow=Dataflow.WEIGHT_STATIONARY)
    >>> cycles(Product(m=128, n=128, k=128), tpu), cycles(Product(m=512, n=512, k=512), tpu)
    (509, 14303)
    """
    rows, columns = array.rows, array.columns
    match array.dataflow:
        case Dataflow.WEIGHT_STATIONARY:
            return array.folds(product) * (2 * rows + columns + product.m - 2) - 1
        case Dataflow.OUTPUT_STATIONARY:
            return array.folds(product) * (rows + columns + product.k - 2) - 1


def sram_bytes(product: Product, array: SystolicArray, element_bytes: int) -> int:
    """Return the bytes that cross the edges of one array.

    Weight stationary: each fold loads R x C weights, then reads m x R inputs and writes m x C sums.
    Output stationary: each fold reads k x (R + C) inputs and writes R x C results.
    """
    streamed = product.m if array.dataflow is Dataflow.WEIGHT_STATIONARY else product.k
    elements = array.rows * array.columns + streamed * (array.rows + array.columns)
    return array.folds(product) * elements * element_bytes


def products(op: Op) -> dict[Product, int]:
    """Return the matrix products of an operation, and how many of each.

    A batched product is one product for each element of the batch; a grouped convolution one for
    each group, over the patches of its input (im2col). Other operations have none.
    """
    match op.attrs:
        case DotAttrs(ragged=int()):
            return _grouped_products(op)
        case DotAttrs():
            (gemm,) = gemms(op)
            return _counted(Product(m=gemm.m, n=gemm.n, k=gemm.k), gemm.batch)
        case ConvolutionAttrs():
            return _convolution_products(op, op.attrs)
        case _:
            return {}


def _grouped_products(op: Op) -> dict[Product, int]:
    counts: dict[Product, int] = {}
    for grouped in grouped_gemms(op):
        for rows in grouped.group_rows:
            sizes = (grouped.k, rows) if grouped.is_divided else (rows, grouped.k)
            product = Product(m=sizes[0], n=grouped.n, k=sizes[1])
            if rows:
                counts[product] = counts.get(product, 0) + grouped.batch
    return counts


def _convolution_products(op: Op, attrs: ConvolutionAttrs) -> dict[Product, int]:
    kernel, output = operand(op, 1).shape, result(op).shape
    groups = attrs.feature_group_count * attrs.batch_group_count
    places = output[attrs.output_batch] * prod(output[axis] for axis in attrs.output_spatial)
    window = prod(kernel[axis] for axis in attrs.kernel_spatial)
    product = Product(
        m=places,
        n=output[attrs.output_feature] // groups,
        k=kernel[attrs.kernel_input_feature] * window,
    )
    return _counted(product, groups)


def _counted(product: Product, count: int) -> dict[Product, int]:
    return {product: count} if product.multiplications and count else {}


class SystolicHardware(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the methods that model a systolic array.

    ``array_count`` arrays share the columns of a product. Rates are in Hz, FLOP/s and bytes/s.
    ``vector_flops`` is the rate of everything except matrix products and convolutions; ``binary``
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
    """``hardware`` of methods that run a simulator program built elsewhere.

    ``arguments`` hold placeholders such as ``{workload}``; ``cycles_pattern`` is a regular
    expression with one group, the cycles, in ``answer_file`` or else in what the program prints.
    ``files`` maps the names that the program expects in its working directory to their paths.
    """

    arguments: tuple[str, ...] | None = None
    cycles_pattern: Text | None = None
    answer_file: Text | None = None
    files: Mapping[Text, Text] = {}


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``systolic``.

    Raises `ConfigError` without a description of the array, and for options of simulators.
    """
    hardware = array_hardware(spec, "systolic", SystolicHardware)
    if hardware.binary is not None:
        raise ConfigError(
            "hardware.binary has no effect on method 'systolic', which runs no program",
            hint="drop it, or use method 'scalesim' or 'zigzag_onnx'",
        )
    return with_timer(ClosedForm(array=array_of(hardware)), hardware, spec)


_Form = TypeVar("_Form", bound=SystolicHardware)


def array_hardware(spec: EstimatorSpec, method: str, form: type[_Form]) -> _Form:
    """Return the array description from the configuration.

    Raises `ConfigError` without one, and for the configuration of another method.
    """
    if not isinstance(spec.hardware, SystolicHardware):
        raise ConfigError(
            f"method {method!r} needs a description of the array",
            hint=f"give a configuration with perf_estimator.method {method!r}, such as "
            "configs/nodes/TPUv3/systolic/config.json",
        )
    if not isinstance(spec.hardware, form):
        raise ConfigError(
            "the configuration is of another method",
            hint=f"set perf_estimator.method to {method}",
        )
    return spec.hardware


def array_of(hardware: SystolicHardware) -> SystolicArray:
    """Return the array without rates of memory and vector unit."""
    return SystolicArray(
        rows=hardware.array_rows,
        columns=hardware.array_columns,
        count=hardware.array_count,
        clock_hz=hardware.clock_hz,
        dataflow=Dataflow(hardware.dataflow),
        sram_bandwidth_bytes_per_s=hardware.sram_bandwidth,
    )


def with_timer(timer: ProductTimer, hardware: SystolicHardware, spec: EstimatorSpec) -> Systolic:
    """Return the estimator with ``timer`` for products."""
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
        """The method's name in configuration files."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """Everything besides the product that decides the answer, as JSON values."""
        ...

    @property
    def assumption(self) -> str:
        """The timer's assumptions, as a sentence for users."""
        ...

    def time_s(self, product: Product, element_bytes: int) -> float:
        """Return a product's time, given an element's bytes."""
        ...


@frozen
class ClosedForm:
    """Times products by the closed forms of `hespas.price.systolic`."""

    method: str = "systolic"
    array: SystolicArray

    @property
    def parameters(self) -> Mapping[str, object]:
        """The array's figures."""
        return array_parameters(self.array)

    @property
    def assumption(self) -> str:
        """The assumptions of the closed forms, as a sentence for users."""
        return (
            f"systolic: matrix products run on {array_text(self.array)}, "
            f"{self.array.dataflow.value.replace('_', ' ')}, one after the other, with operands "
            "that arrive from device memory while it computes"
        )

    def time_s(self, product: Product, element_bytes: int) -> float:
        """Return the longer time, of cycles or of edges."""
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


@frozen
class Systolic:
    """Prices regions: products by ``timer``, the rest by ``fallback``.

    A product takes the longer of the timer's time and the time of moving its operands and results
    from and to device memory. ``peak_flops`` is the array's, for its utilisation.
    """

    timer: ProductTimer
    fallback: Roofline
    peak_flops: float

    @property
    def method(self) -> str:
        """The method's name in configuration files."""
        return self.timer.method

    @property
    def parameters(self) -> Mapping[str, object]:
        """The parameters of the timer and of the fallback."""
        return {"timer": dict(self.timer.parameters), "fallback": dict(self.fallback.parameters)}

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region."""
        del program
        roofline = "operations that are no matrix product or convolution are priced by the roofline"
        return (self.timer.assumption, f"{self.method}: {roofline}")

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; raise `CostError` for unknown work."""
        return estimate_region(
            self, region, program, custom_calls=self.fallback.custom_calls, key=_key
        )

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one operation, without its launch."""
        del is_kernel
        peak = self.fallback.at_peaks(leaf.op.name, leaf.work)
        product_counts = products(leaf.op)
        if not product_counts:
            return Price(cost=peak)
        element_bytes = _element_bytes(leaf)
        array_s = sum(
            self.timer.time_s(product, element_bytes) * count
            for product, count in product_counts.items()
        )
        per_type = {
            name: TypeTotals(flops=totals.flops, time_at_peak_s=totals.flops / self.peak_flops)
            for name, totals in peak.per_type.items()
        }
        time_s = max(array_s, peak.memory_time_at_peak_s)
        cost = replace(
            peak,
            time_s=time_s,
            duration_ps=FROM_TIME,
            energy_j=None,
            per_type=per_type,
            bound=larger_of(time_s, compute_s=array_s, memory_s=peak.memory_time_at_peak_s),
        )
        return Price(cost=cost)


def _key(leaf: Leaf) -> Hashable:
    types = tuple([value.type for value in (*leaf.op.operands, *leaf.op.results)])
    return leaf.op.name, leaf.op.attrs, types, leaf.work


def _element_bytes(leaf: Leaf) -> int:
    kind = leaf.op.operands[0].type
    if not isinstance(kind, TensorType):
        raise UnsupportedError("a product of what is no tensor", location=leaf.op.location)
    return max(1, kind.element.bits // 8)
