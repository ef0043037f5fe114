"""The matrix products that an operation runs, in kernels of the compiler or of a library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import prod

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
from hespas.program.program import Op
from hespas.program.types import TensorType, size_bytes
from hespas.work.fusion import operations_of
from hespas.work.library_config import block_config, gemm_config

TILE_ROWS, FEWEST_TILE_ROWS = 128, 16
"""Rows of a block of kernels for such products; each group begins with a block of its own.

Kernels for groups of few rows have smaller blocks, as vLLM's: 16 rows at least (fused_moe.py,
get_default_config).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm:
    """``batch`` products of ``group_rows`` rows in all, each group with its matrix.

    A group's product is rows x k by k x n; with ``is_divided`` the rows are what is summed over,
    and a group's product is k x rows by rows x n. ``multiplied`` is a key of `Work.flops`;
    an element of an operand has ``operand_bits`` in memory, with its share of scales.
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
        """The rows, those of each group filled up to whole tiles."""
        mean = -(-sum(self.group_rows) // max(1, self.groups))
        tile = min(TILE_ROWS, max(FEWEST_TILE_ROWS, 1 << (mean - 1).bit_length()))
        return sum(-(-rows // tile) * tile for rows in self.group_rows)

    @property
    def groups(self) -> int:
        """How many groups have a row."""
        return sum(1 for each in self.group_rows if each)


def grouped_gemms(op: Op) -> tuple[GroupedGemm, ...]:
    """Return the product of groups that an operation is; empty for any other operation.

    Where the rows of each group are not known, groups that have some have as many.
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
    """Return the rows of each group: groups that have some are as equal as can be.

    How many have some is what `groups_with_rows` says.

    >>> spread(10, 4)
    (3, 3, 2, 2)
    >>> spread(4, 4)
    (2, 1, 1, 0)
    """
    filled = max(1, groups_with_rows(rows, groups))
    of_group, over = divmod(rows, filled)
    return (of_group + 1,) * over + (of_group,) * (filled - over) + (0,) * (groups - filled)


_CUBLAS = "__cublas$"
_CUBLAS_LT = "__cublas$lt$"


class GemmWriter(Enum):
    """Who writes the kernel: the operation stands alone, in a fusion, or calls a library."""

    DOT = "dot"
    FUSION = "fusion"
    TRITON = "triton"
    CUDNN = "cudnn"
    CUBLAS = "cublas"
    CUBLAS_LT = "cublaslt"


class GemmAxis(Enum):
    """What a dimension of an operand or result is to the product."""

    BATCH = "batch"
    M = "m"
    N = "n"
    K = "k"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """``batch`` products of an m x k by a k x n matrix.

    ``lhs``, ``rhs`` and ``result`` are the tensors as they lie in memory; ``*_minor`` says which
    axis runs fastest there (a dimension of size one does not count). ``multiplied`` is the type
    that the hardware multiplies, a key of `Work.flops`, and ``flops_per_product`` is 2, more
    for complex numbers and for algorithms that multiply several times. ``epilogue`` is
    cuBLASLt's name (``BIAS_GELU``), empty for none. ``scale_bits`` are those of scales for each
    element of ``rhs``. What a fusion does besides the product is in
    its own body. ``has_addend``: a matrix is added to the product. ``tile`` is the part of the
    result that one block computes, where a Triton fusion says it.
    """

    batch: int
    m: int
    n: int
    k: int
    lhs: TensorType
    rhs: TensorType
    result: TensorType
    lhs_minor: GemmAxis
    rhs_minor: GemmAxis
    result_minor: GemmAxis
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
    """Return every matrix product of an operation, those in a fusion's body too.

    A convolution whose window is a point, as TPU compilers write dots, counts as a product.
    Empty for an operation without products; raises `CostError` for a library's call whose
    configuration cannot be read. Loops and branches are not opened, and a ``ragged_dot``, whose
    matrices have sizes that are known only when it runs, is left out.
    """
    if op.kind == "async_start":
        started = [inner for region in op.regions for inner in region.operations]
        return tuple([gemm for inner in started for gemm in gemms(inner)])
    writer, tile = GemmWriter.DOT, ()
    if isinstance(op.attrs, FusionAttrs):
        kind = op.attrs.backend_kind
        named = (each for start, each in _FUSION_WRITERS.items() if kind.startswith(start))
        writer = next(named, GemmWriter.FUSION)
        tiles = block_config(op).output_tiles
        tile = tiles[0].sizes if tiles else ()
    products = [_gemm(inner, writer) for inner in operations_of(op)]
    return tuple([replace(each, tile=tile) if tile else each for each in products if each])


_FUSION_WRITERS = {"__triton": GemmWriter.TRITON, "__cudnn": GemmWriter.CUDNN}


def _gemm(op: Op, writer: GemmWriter) -> Gemm | None:
    """Return the product that an operation is; a library called in a fusion keeps its name."""
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
    lhs, rhs, made = operand(op, 0), operand(op, 1), result(op)
    lhs_axes = _axes(lhs, attrs.lhs_batching, attrs.lhs_contracting, GemmAxis.M)
    rhs_axes = _axes(rhs, attrs.rhs_batching, attrs.rhs_contracting, GemmAxis.N)
    # A library multiplies each matrix of a batch by one, where XLA folds what repeats that.
    batched, batched_axes = (lhs, lhs_axes) if attrs.lhs_batching else (rhs, rhs_axes)
    # A dot's result has the batch dimensions first, then those of lhs, then those of rhs.
    made_axes = [
        *[GemmAxis.BATCH] * batched_axes.count(GemmAxis.BATCH),
        *[GemmAxis.M] * lhs_axes.count(GemmAxis.M),
        *[GemmAxis.N] * rhs_axes.count(GemmAxis.N),
    ]
    batch = _size(batched, batched_axes, GemmAxis.BATCH)
    m, n = _size(lhs, lhs_axes, GemmAxis.M), _size(rhs, rhs_axes, GemmAxis.N)
    if batch * m * n != made.element_count:
        raise CostError(
            f"its result should hold {batch} x {m} x {n} elements", location=op.location
        )
    multiplier = multiplier_of(lhs.element, rhs.element, attrs.precision, attrs.algorithm)
    return _of_axes(op, (lhs_axes, rhs_axes, made_axes), (batch, m, n), multiplier, writer)


def _of_axes(
    op: Op,
    axes: tuple[list[GemmAxis], list[GemmAxis], list[GemmAxis]],
    sizes: tuple[int, int, int],
    multiplier: Multiplier,
    writer: GemmWriter,
) -> Gemm:
    lhs, rhs, made = operand(op, 0), operand(op, 1), result(op)
    batch, m, n = sizes
    return Gemm(
        batch=batch,
        m=m,
        n=n,
        k=_size(rhs, axes[1], GemmAxis.K),
        lhs=lhs,
        rhs=rhs,
        result=made,
        lhs_minor=_minor(lhs, axes[0]),
        rhs_minor=_minor(rhs, axes[1]),
        result_minor=_minor(made, axes[2]),
        multiplied=multiplier.type_name,
        flops_per_product=multiplier.flops,
        writer=writer,
        scale_bits=_scale_bits(op, 2) if op.kind == "scaled_dot" else 0.0,
    )


def _scale_bits(op: Op, first: int) -> float:
    """Return the bits of the scales of a product, operands from ``first`` on, for each weight."""
    scales = sum(size_bytes(value.type) for value in op.operands[first:])
    return 8 * scales / max(1, operand(op, 1).element_count)


def _axes(
    kind: TensorType, batching: tuple[int, ...], contracting: tuple[int, ...], free: GemmAxis
) -> list[GemmAxis]:
    named = dict.fromkeys(batching, GemmAxis.BATCH) | dict.fromkeys(contracting, GemmAxis.K)
    return [named.get(at, free) for at in range(kind.rank)]


def _size(kind: TensorType, axes: list[GemmAxis], chosen: GemmAxis) -> int:
    sizes = zip(kind.shape, axes, strict=True)
    return prod([size for size, axis in sizes if axis is chosen])


def _minor(kind: TensorType, axes: list[GemmAxis]) -> GemmAxis:
    order = kind.layout or tuple(reversed(range(kind.rank)))
    varying = [at for at in order if kind.shape[at] > 1 and at < len(axes)]
    return axes[varying[0]] if varying else GemmAxis.K


def _point_convolution(op: Op, attrs: ConvolutionAttrs, writer: GemmWriter) -> Gemm | None:
    """Return the product that a convolution is, if each result element meets one kernel element.

    A spatial dimension over which the kernel has one element counts into m. One in which each
    output place meets a kernel element of its own is a batch dimension: TPU compilers write
    ``window={size=8 stride=7 lhs_dilate=8}`` for a batch of 8.
    """
    if attrs.feature_group_count > 1 or attrs.batch_group_count > 1:
        return None
    image, kernel, made = operand(op, 0), operand(op, 1), result(op)
    image_axes = {attrs.input_batch: GemmAxis.M, attrs.input_feature: GemmAxis.K}
    kernel_axes = {attrs.kernel_input_feature: GemmAxis.K, attrs.kernel_output_feature: GemmAxis.N}
    made_axes = {attrs.output_batch: GemmAxis.M, attrs.output_feature: GemmAxis.N}
    for at, axis in enumerate(window_axes(attrs, image.shape, kernel.shape, made.shape)):
        is_batch = axis.kernel_size == axis.output_size
        if real_pairs(axis) != axis.output_size or not (axis.kernel_size == 1 or is_batch):
            return None
        meaning = GemmAxis.M if axis.kernel_size == 1 else GemmAxis.BATCH
        image_axes[attrs.input_spatial[at]] = meaning
        kernel_axes[attrs.kernel_spatial[at]] = meaning
        made_axes[attrs.output_spatial[at]] = meaning
    lhs_axes, rhs_axes, result_axes = (
        [axes[at] for at in range(len(axes))] for axes in (image_axes, kernel_axes, made_axes)
    )
    batch, m = (_size(made, result_axes, axis) for axis in (GemmAxis.BATCH, GemmAxis.M))
    n = _size(kernel, rhs_axes, GemmAxis.N)
    multiplier = multiplier_of(image.element, kernel.element, attrs.precision)
    return _of_axes(op, (lhs_axes, rhs_axes, result_axes), (batch, m, n), multiplier, writer)
