"""Describe the matrix products that an operation runs."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import chain
from math import prod

from hespas.base.frozen import frozen
from hespas.errors import CostError
from hespas.program.attrs import ConvolutionAttrs, CustomCallAttrs, DotAttrs, FusionAttrs
from hespas.program.experts import grouped_product
from hespas.program.operations.contraction import (
    Multiplier,
    groups_with_rows,
    multiplier_of,
    real_pairs,
    window_axes,
)
from hespas.program.operations.traits import operand, result
from hespas.program.program import Op, started_ops
from hespas.program.types import TensorType, size_bytes
from hespas.work.fusion import operations_of
from hespas.work.library_config import block_config, gemm_config

TILE_ROWS, FEWEST_TILE_ROWS = 128, 16
"""Rows of a block in kernels for grouped products; each group begins with its own block.

Kernels for groups of few rows have smaller blocks, at least 16 rows, as in vLLM (fused_moe.py,
get_default_config).
"""


@frozen
class GroupedGemm:
    """``batch`` products of groups of rows with own matrices.

    A group's product is rows x k by k x n; with ``is_divided`` the sum is over the rows, and a
    group's product is k x rows by rows x n. ``multiplied`` is a key of `Work.flops`;
    ``operand_bits`` are the bits of an element in memory, including its share of the scales.
    """

    batch: int
    group_rows: tuple[int, ...]
    n: int
    k: int
    is_divided: bool
    multiplied: str
    flops_per_product: int
    operand_bits: tuple[float, float]

    @property
    def rows(self) -> int:
        """The rows, with each group padded to full tiles."""
        mean = -(-sum(self.group_rows) // max(1, self.groups))
        tile = min(TILE_ROWS, max(FEWEST_TILE_ROWS, 1 << (mean - 1).bit_length()))
        return sum(-(-rows // tile) * tile for rows in self.group_rows)

    @property
    def groups(self) -> int:
        """The number of groups with at least one row."""
        return sum(1 for rows in self.group_rows if rows)


def grouped_gemms(op: Op) -> tuple[GroupedGemm, ...]:
    """Return an operation's grouped product, if any.

    If the rows of each group are unknown, the groups that have any have equal counts.
    """
    product, attrs = grouped_product(op), op.attrs
    if product is None or not isinstance(attrs, DotAttrs):
        return ()
    lhs, rhs = operand(op, 0), operand(op, 1)
    multiplier = multiplier_of(lhs.element, rhs.element, attrs.precision, attrs.algorithm)
    lhs_axes = _axes(lhs, attrs.lhs_batching, attrs.lhs_contracting, GemmAxis.M)
    rhs_axes = _axes(rhs, attrs.rhs_batching, attrs.rhs_contracting, GemmAxis.N)
    columns = _size(rhs, rhs_axes, GemmAxis.N)
    return (
        GroupedGemm(
            batch=_size(lhs, lhs_axes, GemmAxis.BATCH),
            group_rows=attrs.group_rows or spread(product.rows, product.groups),
            n=columns if attrs.is_divided else columns // product.groups,
            k=_size(lhs, lhs_axes, GemmAxis.M if attrs.is_divided else GemmAxis.K),
            is_divided=attrs.is_divided,
            multiplied=multiplier.type_name,
            flops_per_product=multiplier.flops,
            operand_bits=(lhs.element.bits, rhs.element.bits + _scale_bits(op, 3)),
        ),
    )


def spread(rows: int, groups: int) -> tuple[int, ...]:
    """Spread rows over groups, as evenly as possible.

    `groups_with_rows` gives the number of groups that have any.

    >>> spread(10, 4)
    (3, 3, 2, 2)
    >>> spread(4, 4)
    (2, 1, 1, 0)
    """
    filled = max(1, groups_with_rows(rows, groups))
    rows_per_group, surplus = divmod(rows, filled)
    longer, shorter = (rows_per_group + 1,) * surplus, (rows_per_group,) * (filled - surplus)
    return longer + shorter + (0,) * (groups - filled)


_CUBLAS = "__cublas$"
_CUBLAS_LT = "__cublas$lt$"


class GemmWriter(Enum):
    """The origin of a kernel: dot, fusion or library."""

    DOT = "dot"
    FUSION = "fusion"
    TRITON = "triton"
    CUDNN = "cudnn"
    CUBLAS = "cublas"
    CUBLAS_LT = "cublaslt"


class GemmAxis(Enum):
    """The role of a dimension in the product."""

    BATCH = "batch"
    M = "m"
    N = "n"
    K = "k"


@frozen
class Gemm:
    """Products of m x k by k x n matrices.

    There are ``batch`` of them. ``lhs``, ``rhs`` and ``result`` are the tensors as they lie in
    memory. ``multiplied`` is the type that the hardware multiplies, a key of `Work.flops`, and
    ``flops_per_product`` is 2, more for complex numbers and for algorithms that multiply several
    times. ``epilogue`` is cuBLASLt's name (``BIAS_GELU``), empty for none. ``scale_bits`` are the
    bits of scales per element of ``rhs``. Other operations of a fusion are in its own body.
    ``has_addend``: a matrix is added to the product. ``tile`` is the part of the result that one
    block computes, if a Triton fusion states it.
    """

    batch: int
    m: int
    n: int
    k: int
    lhs: TensorType
    rhs: TensorType
    result: TensorType
    multiplied: str
    flops_per_product: int
    writer: GemmWriter
    epilogue: str = ""
    has_addend: bool = False
    tile: tuple[int, ...] = ()
    scale_bits: float = 0.0

    @property
    def flops(self) -> int:
        """The FLOPs of the products and their sums."""
        return self.batch * self.m * self.n * self.k * self.flops_per_product


def gemms(op: Op) -> tuple[Gemm, ...]:
    """Return the matrix products of an operation or fusion.

    A convolution whose window is a point, as TPU compilers write dots, counts as a product. Raises
    `CostError` for a library call whose configuration cannot be read. Loops and branches are not
    opened, and a ``ragged_dot``, whose matrix sizes depend on data, is left out.
    """
    if op.kind == "async_start":
        return tuple(chain.from_iterable(map(gemms, started_ops(op))))
    writer, tile = GemmWriter.DOT, ()
    if isinstance(op.attrs, FusionAttrs):
        kind = op.attrs.backend_kind
        writers = (product for start, product in _FUSION_WRITERS.items() if kind.startswith(start))
        writer = next(writers, GemmWriter.FUSION)
        tiles = block_config(op).output_tiles
        tile = tiles[0].sizes if tiles else ()
    products = [_gemm(inner, writer) for inner in operations_of(op)]
    return tuple(
        [replace(product, tile=tile) if tile else product for product in products if product]
    )


_FUSION_WRITERS = {"__triton": GemmWriter.TRITON, "__cudnn": GemmWriter.CUDNN}


def _gemm(op: Op, writer: GemmWriter) -> Gemm | None:
    """Return the product of one operation, or None.

    A library call inside a fusion keeps the library as its writer.
    """
    match op.attrs:
        case DotAttrs() as attrs if op.kind != "ragged_dot":
            return _dot(op, attrs, writer)
        case ConvolutionAttrs() as attrs:
            return _point_convolution(op, attrs, writer)
        case CustomCallAttrs(target=target) if target.startswith(_CUBLAS):
            config = gemm_config(op)
            is_light = target.startswith(_CUBLAS_LT)
            return replace(
                _dot(op, config.dot, GemmWriter.CUBLAS_LT if is_light else GemmWriter.CUBLAS),
                epilogue="" if config.epilogue == "DEFAULT" else config.epilogue,
                has_addend=config.beta != 0,
            )
        case _:
            return None


def _dot(op: Op, attrs: DotAttrs, writer: GemmWriter) -> Gemm:
    lhs, rhs, product = operand(op, 0), operand(op, 1), result(op)
    lhs_axes = _axes(lhs, attrs.lhs_batching, attrs.lhs_contracting, GemmAxis.M)
    rhs_axes = _axes(rhs, attrs.rhs_batching, attrs.rhs_contracting, GemmAxis.N)
    # Library calls may batch one operand only, if XLA folded the repeated matrix.
    batched, batched_axes = (lhs, lhs_axes) if attrs.lhs_batching else (rhs, rhs_axes)
    batch = _size(batched, batched_axes, GemmAxis.BATCH)
    m, n = _size(lhs, lhs_axes, GemmAxis.M), _size(rhs, rhs_axes, GemmAxis.N)
    if batch * m * n != product.element_count:
        raise CostError(
            f"its result should hold {batch} x {m} x {n} elements", location=op.location
        )
    multiplier = multiplier_of(lhs.element, rhs.element, attrs.precision, attrs.algorithm)
    k = _size(rhs, rhs_axes, GemmAxis.K)
    return _gemm_of_sizes(op, (batch, m, n, k), multiplier, writer)


def _gemm_of_sizes(
    op: Op, sizes: tuple[int, int, int, int], multiplier: Multiplier, writer: GemmWriter
) -> Gemm:
    """Return the product of (batch, m, n, k)."""
    batch, m, n, k = sizes
    return Gemm(
        batch=batch,
        m=m,
        n=n,
        k=k,
        lhs=operand(op, 0),
        rhs=operand(op, 1),
        result=result(op),
        multiplied=multiplier.type_name,
        flops_per_product=multiplier.flops,
        writer=writer,
        scale_bits=_scale_bits(op, 2) if op.kind == "scaled_dot" else 0.0,
    )


def _scale_bits(op: Op, first: int) -> float:
    """Return the bits of scales, operands from ``first`` on, per weight."""
    scales = sum(size_bytes(value.type) for value in op.operands[first:])
    return 8 * scales / max(1, operand(op, 1).element_count)


def _axes(
    kind: TensorType, batching: tuple[int, ...], contracting: tuple[int, ...], free: GemmAxis
) -> list[GemmAxis]:
    roles = dict.fromkeys(batching, GemmAxis.BATCH) | dict.fromkeys(contracting, GemmAxis.K)
    return [roles.get(dimension, free) for dimension in range(kind.rank)]


def _size(kind: TensorType, axes: list[GemmAxis], chosen: GemmAxis) -> int:
    sizes = zip(kind.shape, axes, strict=True)
    return prod([size for size, axis in sizes if axis is chosen])


def _point_convolution(op: Op, attrs: ConvolutionAttrs, writer: GemmWriter) -> Gemm | None:
    """Return a convolution's product if its window is a point.

    Each result element then meets one kernel element.

    A spatial dimension in which the kernel has one element counts into m. One in which each output
    position meets its own kernel element is a batch dimension: TPU compilers write
    ``window={size=8 stride=7 lhs_dilate=8}`` for a batch of 8.
    """
    if attrs.feature_group_count > 1 or attrs.batch_group_count > 1:
        return None
    image, kernel, output = operand(op, 0), operand(op, 1), result(op)
    kernel_axes = {attrs.kernel_input_feature: GemmAxis.K, attrs.kernel_output_feature: GemmAxis.N}
    output_axes = {attrs.output_batch: GemmAxis.M, attrs.output_feature: GemmAxis.N}
    for position, axis in enumerate(window_axes(attrs, image.shape, kernel.shape, output.shape)):
        is_batch = axis.kernel_size == axis.output_size
        if real_pairs(axis) != axis.output_size or not (axis.kernel_size == 1 or is_batch):
            return None
        role = GemmAxis.M if axis.kernel_size == 1 else GemmAxis.BATCH
        kernel_axes[attrs.kernel_spatial[position]] = role
        output_axes[attrs.output_spatial[position]] = role
    rhs_axes, result_axes = (
        [axes[position] for position in range(len(axes))] for axes in (kernel_axes, output_axes)
    )
    batch, m = (_size(output, result_axes, axis) for axis in (GemmAxis.BATCH, GemmAxis.M))
    multiplier = multiplier_of(image.element, kernel.element, attrs.precision)
    sizes = (batch, m, _size(kernel, rhs_axes, GemmAxis.N), _size(kernel, rhs_axes, GemmAxis.K))
    return _gemm_of_sizes(op, sizes, multiplier, writer)
