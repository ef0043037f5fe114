"""Cycles of a matrix product on a systolic array, in closed form.

A product C[m, n] = A[m, k] B[k, n] runs in folds. Weight stationary: a fold holds R x C weights,
a piece of B with R of the k rows and C of the n columns; loading them takes R cycles, then m rows
of A pass in m + R + C - 2. Output stationary: a fold holds R x C results; k products for each
pass in k + R + C - 2.

    weight stationary   ceil(k / R) ceil(n / C) (2R + C + m - 2) - 1
    output stationary   ceil(m / R) ceil(n / C) (R + C + k - 2) - 1

The last cycle is counted from 0, as SCALE-Sim does. Source: the "Total Cycles" of SCALE-Sim
3.0.0 (MIT), which these equal where its memory doesn't stall; A. Samajdar et al., "A systematic
methodology for characterizing scalability of DNN accelerators using SCALE-Sim", ISPASS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil, prod

from hespas.errors import HardwareError
from hespas.program.attrs import ConvolutionAttrs, DotAttrs
from hespas.program.operations.sizes import operand, result
from hespas.program.program import Op
from hespas.work.gemm import grouped_gemms


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
        """The multiply-accumulates."""
        return self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class SystolicArray:
    """``rows`` x ``columns`` multipliers at ``clock_hz``; bandwidths in bytes/s.

    ``count`` equal arrays share a product: each has its part of the columns.

    ``sram_bandwidth_bytes_per_s`` is what the array's edges can be fed with; None is enough.
    Raises `HardwareError` for figures that are not above zero.
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
        """How many products all of them make in a cycle."""
        return self.count * self.rows * self.columns

    @property
    def peak_flops(self) -> float:
        """FLOP/s with every multiplier busy, a multiplication and an addition each cycle."""
        return 2 * self.multipliers * self.clock_hz

    def columns_each(self, product: Product) -> int:
        """Return how many of a product's columns one array has."""
        return ceil(product.n / self.count)


def cycles(product: Product, array: SystolicArray) -> int:
    """Return the cycles of one product, shared by all arrays.

    >>> tpu = SystolicArray(rows=128, columns=128, clock_hz=940e6,
    ...                     dataflow=Dataflow.WEIGHT_STATIONARY)
    >>> cycles(Product(m=128, n=128, k=128), tpu), cycles(Product(m=512, n=512, k=512), tpu)
    (509, 14303)
    """
    rows, columns = array.rows, array.columns
    across = ceil(array.columns_each(product) / columns)
    match array.dataflow:
        case Dataflow.WEIGHT_STATIONARY:
            return ceil(product.k / rows) * across * (2 * rows + columns + product.m - 2) - 1
        case Dataflow.OUTPUT_STATIONARY:
            return ceil(product.m / rows) * across * (rows + columns + product.k - 2) - 1


def sram_bytes(product: Product, array: SystolicArray, element_bytes: int) -> int:
    """Return the bytes that cross the edges of one array, folds at the rim filled up.

    Weight stationary: each fold loads R x C weights, then takes m x R inputs and gives m x C
    sums. Output stationary: each takes k x (R + C) inputs and gives R x C results.
    """
    rows, columns = array.rows, array.columns
    across = ceil(array.columns_each(product) / columns)
    match array.dataflow:
        case Dataflow.WEIGHT_STATIONARY:
            folds = ceil(product.k / rows) * across
            elements = rows * columns + product.m * (rows + columns)
        case Dataflow.OUTPUT_STATIONARY:
            folds = ceil(product.m / rows) * across
            elements = product.k * (rows + columns) + rows * columns
    return folds * elements * element_bytes


def products(op: Op) -> dict[Product, int]:
    """Return the products that an operation is, and how many there are of each.

    A batched product is one product for each element of the batch; a grouped convolution one for
    each group, over the patches of its input (im2col). Any other operation has none.
    """
    match op.attrs:
        case DotAttrs(ragged=int()):
            return _of_groups(op)
        case DotAttrs():
            return _of_dot(op, op.attrs)
        case ConvolutionAttrs():
            return _of_convolution(op, op.attrs)
        case _:
            return {}


def _of_dot(op: Op, attrs: DotAttrs) -> dict[Product, int]:
    lhs, rhs = operand(op, 0).shape, operand(op, 1).shape
    batch = prod(lhs[at] for at in attrs.lhs_batching)
    k = prod(lhs[at] for at in attrs.lhs_contracting)
    lhs_taken = {*attrs.lhs_batching, *attrs.lhs_contracting}
    rhs_taken = {*attrs.rhs_batching, *attrs.rhs_contracting}
    m = prod(size for at, size in enumerate(lhs) if at not in lhs_taken)
    n = prod(size for at, size in enumerate(rhs) if at not in rhs_taken)
    return _counted(Product(m=m, n=n, k=k), batch)


def _of_groups(op: Op) -> dict[Product, int]:
    found: dict[Product, int] = {}
    for each in grouped_gemms(op):
        for rows in each.group_rows:
            sizes = (each.k, rows) if each.is_divided else (rows, each.k)
            product = Product(m=sizes[0], n=each.n, k=sizes[1])
            if rows:
                found[product] = found.get(product, 0) + each.batch
    return found


def _of_convolution(op: Op, attrs: ConvolutionAttrs) -> dict[Product, int]:
    kernel, output = operand(op, 1).shape, result(op).shape
    groups = attrs.feature_group_count * attrs.batch_group_count
    places = output[attrs.output_batch] * prod(output[at] for at in attrs.output_spatial)
    window = prod(kernel[at] for at in attrs.kernel_spatial)
    product = Product(
        m=places,
        n=output[attrs.output_feature] // groups,
        k=kernel[attrs.kernel_input_feature] * window,
    )
    return _counted(product, groups)


def _counted(product: Product, count: int) -> dict[Product, int]:
    return {product: count} if product.multiplications and count else {}
