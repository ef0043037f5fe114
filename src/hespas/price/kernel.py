"""Classify operations into kernels: writer, products, shapes, category.

Kernels of compilers, models and libraries are all classified here, once. Pricing, reports, advice
and calibration read the `Kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from itertools import takewhile
from math import prod

from hespas.errors import CostError
from hespas.program.attrs import (
    MOSAIC,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
    DotAttrs,
    FusionAttrs,
    KernelAttrs,
    WhileAttrs,
)
from hespas.program.operations.table import kinds_where, traits_of
from hespas.program.operations.traits import Category
from hespas.program.program import (
    MOST_REMEMBERED,
    Block,
    Op,
    Program,
    all_ops,
    columns_together,
    is_communication_op,
    memory_order,
    reduced_dimensions,
    shape_of,
    size_of,
)
from hespas.program.scopes import Phase, read_scope
from hespas.work.attention import Attention, attentions
from hespas.work.convolution import Convolution, convolutions
from hespas.work.custom_call import TRITON
from hespas.work.fusion import only_moves, operations_of, written_elements
from hespas.work.gemm import Gemm, GemmWriter, GroupedGemm, gemms, grouped_gemms
from hespas.work.sorts import launches_of

WARP = 32

LOOP = "loop"
ROW_REDUCTION = "row reduction"
COLUMN_REDUCTION = "column reduction"
NARROW_REDUCTION = "narrow column reduction"
TRANSPOSE = "transpose"
COPY = "copy"
LIBRARY = "library"

NARROW_COLUMNS = 2048
"""Up to this many columns, rows that are reduced together are adjacent in memory."""
NARROWEST_TILE = 8
"""Transposes whose dimensions are narrower are loops: they don't fill a tile."""


class Writer(Enum):
    """The writer of a kernel without products."""

    COMPILER = "compiler"
    LIBRARY = "library"
    TRITON = "triton"
    PALLAS = "pallas"
    """Pallas writes Triton for GPUs; this value is for TPUs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """One operation as the device runs it.

    ``inner`` holds the operations of a fusion, or the operation itself. ``products`` holds the
    matrix products of fusions and libraries, and convolutions whose window is a point.
    """

    op: Op
    inner: tuple[Op, ...]
    attentions: tuple[Attention, ...] = ()
    products: tuple[Gemm, ...] = ()
    grouped: tuple[GroupedGemm, ...] = ()
    convolutions: tuple[Convolution, ...] = ()

    @property
    def multiplies(self) -> bool:
        """Whether the kernel multiplies matrices: as products, convolutions or attention."""
        return bool(self.attentions or self.products or self.grouped or self.convolutions)

    @property
    def is_of_library(self) -> bool:
        """Whether a library or the model's author wrote the kernel."""
        return self.op.traits.is_of_library or self.multiplies

    @property
    def product_kind(self) -> str:
        """The name of the product in reports; empty for other kernels."""
        if self.attentions:
            return "fused attention"
        if self.convolutions:
            return "convolution"
        if self.grouped:
            return "matrix product, grouped"
        return _PRODUCTS[self.products[0].writer] if self.products else ""

    @cached_property
    def writer(self) -> Writer:
        """The writer of a kernel without products."""
        if isinstance(self.op.attrs, CustomCallAttrs):
            writers = {MOSAIC: Writer.PALLAS, TRITON: Writer.TRITON}
            return writers.get(self.op.attrs.target, Writer.LIBRARY)
        is_of_library = self.op.traits.category is Category.LINEAR_ALGEBRA
        return Writer.LIBRARY if is_of_library else Writer.COMPILER

    @cached_property
    def only_moves(self) -> bool:
        """Whether the kernel moves data and computes nothing but addresses."""
        return only_moves(self.op)

    @cached_property
    def written_elements(self) -> int:
        """The elements of the largest result, or of an in-place update."""
        return written_elements(self.op)

    @cached_property
    def launches(self) -> tuple[int, int]:
        """The number of kernels, and how often they move the kernel's data.

        Both hold where a program's launches are not known.
        """
        if isinstance(self.op.attrs, KernelAttrs):
            return self.op.attrs.launches, 1
        return launches_of(self.op)

    @property
    def rounds(self) -> int:
        """The dependent steps of a block of threads, if known."""
        return self.op.attrs.rounds if isinstance(self.op.attrs, KernelAttrs) else 0

    @property
    def blocks(self) -> int:
        """The blocks of threads with dependent steps."""
        return self.op.attrs.blocks if isinstance(self.op.attrs, KernelAttrs) else 0

    @cached_property
    def category(self) -> str:
        """The category of the kernel that XLA's GPU emitters write.

        A reduction that keeps the fastest dimension is a column reduction, another one a row
        reduction; a reduction of few rows is a loop. A kernel with several has the slowest of them.
        Kernels of libraries stream.
        """
        if isinstance(self.op.attrs, FusionAttrs) and self.op.attrs.backend_kind == LIBRARY:
            return LIBRARY
        if isinstance(self.op.attrs, KernelAttrs):
            return ROW_REDUCTION if self.op.attrs.is_reduction else LOOP
        kinds = [_reduction_category(op) for op in self.inner if op.kind == "reduce"]
        for kind in (COLUMN_REDUCTION, ROW_REDUCTION, NARROW_REDUCTION):
            if kind in kinds:
                return kind
        if any(min(sides_of(op)) >= NARROWEST_TILE for op in self.inner):
            return TRANSPOSE
        return LOOP


@lru_cache(maxsize=MOST_REMEMBERED)
def kernel_of(op: Op) -> Kernel:
    """Return an operation's kernel; opens fusions, calls and starts.

    Raises `CostError` for a library's call whose configuration cannot be read.
    """
    inner = tuple(operations_of(op))
    if op.kind != "async_start" and not any(isinstance(fused.attrs, _MULTIPLY) for fused in inner):
        return Kernel(op=op, inner=inner)
    return Kernel(
        op=op,
        inner=inner,
        attentions=attentions(op),
        products=gemms(op),
        grouped=grouped_gemms(op),
        convolutions=convolutions(op),
    )


_MULTIPLY = (DotAttrs, ConvolutionAttrs, CustomCallAttrs)


def _memory_orders(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the operand's dimensions in its memory order and in the result's."""
    before, after = memory_order(op.operands[0]), memory_order(op.results[0])
    if op.kind == "transpose" and isinstance(op.attrs, DimensionsAttrs):
        after = tuple(op.attrs.dimensions[dimension] for dimension in after)
    return before, after


def sides_of(op: Op) -> tuple[int, int]:
    """Return the sides of a transpose's tiles, zeros without one.

    A side is the dimensions that stay adjacent: from the operand's fastest, and from the result's
    fastest.
    """
    if op.kind not in _ORDERING:
        return 0, 0
    before, after = _memory_orders(op)
    if not before or before[0] == after[0]:
        return 0, 0
    shape = shape_of(op.operands[0])
    return _adjacent_elements(before, after, shape), _adjacent_elements(after, before, shape)


def _adjacent_elements(order: tuple[int, ...], after: tuple[int, ...], shape: Sequence[int]) -> int:
    """Count an order's fastest elements that another keeps adjacent."""
    pairs = zip(order, after[after.index(order[0]) :], strict=False)
    return prod(
        [shape[dimension] for dimension, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    )


_ORDERING = frozenset({"copy", "transpose"})


def _reduction_category(op: Op) -> str:
    order = memory_order(op.operands[0])
    if not order or order[0] in reduced_dimensions(op):
        return ROW_REDUCTION
    columns = columns_together(op)
    if is_loop(rows=size_of(op.operands[0]) // max(1, size_of(op.results[0])), columns=columns):
        return LOOP
    return NARROW_REDUCTION if columns <= NARROW_COLUMNS else COLUMN_REDUCTION


def is_loop(*, rows: int, columns: int) -> bool:
    """Return whether XLA loops over a reduction's few rows.

    Source: openxla/xla, ``IsUnnestedReductionFasterThanElemental`` (xla/service/gpu/
    reduction_utils.cc, Apache License 2.0).

    >>> is_loop(rows=2, columns=4096), is_loop(rows=32, columns=4096)
    (True, False)
    """
    return rows < WARP or any(
        rows < most_rows * WARP and columns < fewest
        for most_rows, fewest in ((2, WARP), (4, 8), (8, 3))
    )


_PRODUCTS = {
    GemmWriter.DOT: "matrix product",
    GemmWriter.FUSION: "matrix product, fused",
    GemmWriter.TRITON: "matrix product, Triton",
    GemmWriter.CUDNN: "matrix product, cuDNN",
    GemmWriter.CUBLAS: "matrix product, cuBLAS",
    GemmWriter.CUBLAS_LT: "matrix product, cuBLASLt",
}
_IN_FUSIONS = {
    kind: traits_of(kind).kernel_name
    for kind in sorted(
        kinds_where(lambda traits: traits.fusion_rank is not None),
        key=lambda kind: traits_of(kind).fusion_rank or 0,
    )
}
"""Names of fusions by the kind of an operation in them; the first match wins."""
_DECISIVE = frozenset(_IN_FUSIONS) - {"transpose"}


@lru_cache(maxsize=MOST_REMEMBERED)
def kind_of(op: Op) -> str:
    """Return the name of a kernel in reports.

    Products, convolutions and fused attention have their own names, in a fusion or not. Another
    fusion is named after the operation in it that decides how its kernel is written.
    """
    with suppress(CostError):
        if product := kernel_of(op).product_kind:
            return product
    if isinstance(op.attrs, CustomCallAttrs):
        return f"custom call {op.attrs.target}"
    if isinstance(op.attrs, KernelAttrs | WhileAttrs):
        return op.attrs.label if isinstance(op.attrs, KernelAttrs) else "loop"
    moving = "data movement" if only_moves(op) else "elementwise"
    if op.kind != "fusion":
        return op.traits.kernel_name or moving
    inner_kinds = {_kind_inside(inner) for inner in operations_of(op)}
    if "transpose" in inner_kinds and moving == "elementwise" and not inner_kinds & _DECISIVE:
        return "transposing elementwise fusion"
    deciding = next((name for kind, name in _IN_FUSIONS.items() if kind in inner_kinds), moving)
    return f"{deciding} fusion"


def _kind_inside(op: Op) -> str:
    """Return an operation's kind, bitcast where order stays."""
    if op.kind not in _ORDERING:
        return op.kind
    before, after = _memory_orders(op)
    return "bitcast" if before == after else "transpose"


FEWEST_IN_GRAPHS = 100
"""Programs of fewer kernels were not measured in CUDA graphs: the smallest step has 157."""


def runs_in_graphs(program: Program) -> bool:
    """Return whether XLA launches kernels in CUDA graphs.

    By default XLA makes graphs of sequences of five kernels and more without loops, branches and
    collectives between them. The cost of the many graphs of a program for several devices was not
    measured: they are not counted.

    Source: openxla/xla, ``xla_gpu_graph_min_graph_size`` and ``xla_gpu_enable_command_buffer``
    (xla/debug_options_flags.cc, Apache License 2.0).
    """
    if program.recorded is not None:
        return program.recorded.in_graphs
    if not program.is_scheduled or program.is_of_libraries:
        return False
    if any(map(is_communication_op, all_ops(program))):
        return False
    return _launches(program.main.body) >= FEWEST_IN_GRAPHS


def is_served(program: Program) -> bool:
    """Return whether an engine's library kernels run a program.

    Engines capture steps that decode in CUDA graphs; launches of a prompt's kernels are hidden
    behind kernels.
    """
    if not program.is_of_libraries:
        return False
    return not any(read_scope(op.scope).phase in _OF_GRADIENTS for op in all_ops(program))


_OF_GRADIENTS = frozenset({Phase.FORWARD, Phase.RECOMPUTATION, Phase.BACKWARD})


def _launches(block: Block) -> int:
    """Count the kernels that a block launches."""
    kernels = 0
    for op in block.operations:
        if isinstance(op.attrs, WhileAttrs):
            kernels += (op.attrs.trip_count or 1) * _launches(op.regions[-1])
        elif not op.traits.runs_nothing:
            kernels += 1
    return kernels
