"""What a fusion costs where only HLO is at hand: its bytes, at the rate of its kind of kernel.

XLA's emitters write few kinds of kernels, and each reaches its own part of what kernels that only
stream reach. The parts are those of kernels over 4 MB in compiled training steps (Llama-3-like of
100M and 3B parameters, A100 and H100), as `hespas.estimate.kernel.price` reads them; its
agreement with measured kernels is in docs/evidence/kernels.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from hespas.estimate.kernel.price import KernelTerms
from hespas.hardware.microarchitecture import Microarchitecture
from hespas.program.attrs import DimensionsAttrs
from hespas.program.program import Op, Value, nested_ops
from hespas.program.types import TensorType

LOOP = "loop"
ROW_REDUCTION = "row reduction"
COLUMN_REDUCTION = "column reduction"
TRANSPOSE = "transpose"

PART_OF_STREAMING = {
    LOOP: 0.95,
    ROW_REDUCTION: 0.9,
    COLUMN_REDUCTION: 0.47,
    TRANSPOSE: 0.62,
}
"""The bandwidth that each kind reaches, as a part of what streaming kernels reach."""

_THREADS = 128
_ELEMENTS_PER_THREAD = 4


def kind_of(op: Op) -> str:
    """Return the kind of kernel that XLA writes for an operation.

    A reduction whose fastest dimension stays is a column reduction, another one a row reduction.
    """
    inner = tuple(_operations(op))
    kinds = [_reduction(each) for each in inner if each.kind == "reduce"]
    if COLUMN_REDUCTION in kinds:
        return COLUMN_REDUCTION
    if ROW_REDUCTION in kinds:
        return ROW_REDUCTION
    if any(_moves_fastest(each) for each in inner):
        return TRANSPOSE
    return LOOP


def _operations(op: Op) -> Iterator[Op]:
    if op.kind != "fusion":
        yield op
        return
    for region in op.regions:
        yield from nested_ops(region)


def _layout(value: Value) -> tuple[int, ...]:
    """Return the dimensions of more than one element, the fastest first."""
    if not isinstance(value.type, TensorType):
        return ()
    shape = value.type.shape
    order = value.type.layout or tuple(reversed(range(len(shape))))
    return tuple(dimension for dimension in order if shape[dimension] > 1)


def _reduction(op: Op) -> str:
    dimensions = op.attrs.dimensions if isinstance(op.attrs, DimensionsAttrs) else ()
    order = _layout(op.operands[0])
    is_column = bool(order) and order[0] not in dimensions
    return COLUMN_REDUCTION if is_column else ROW_REDUCTION


def _moves_fastest(op: Op) -> bool:
    """Tell whether neighbours in the result are no neighbours in the operand."""
    if op.kind == "copy":
        return _layout(op.operands[0])[:1] != _layout(op.results[0])[:1]
    if op.kind != "transpose" or not isinstance(op.attrs, DimensionsAttrs):
        return False
    before, after = _layout(op.operands[0])[:1], _layout(op.results[0])[:1]
    return bool(after) and (op.attrs.dimensions[after[0]],) != before


def terms_by_kind(
    op: Op,
    gpu: Microarchitecture,
    *,
    bytes_moved: float,
    memory_bandwidth_bytes_per_s: float,
) -> KernelTerms:
    """Return the terms of an operation's kernel as far as HLO tells them.

    Elementwise kernels have 128 threads a block, and four elements a thread.
    """
    kind = kind_of(op)
    rate = memory_bandwidth_bytes_per_s * gpu.memory_efficiency * PART_OF_STREAMING[kind]
    is_spread = kind == LOOP and bytes_moved > 0
    blocks = ceil(_elements(op) / (_THREADS * _ELEMENTS_PER_THREAD)) if is_spread else 0
    cycles = ceil(blocks / gpu.multiprocessors) * gpu.warp_turnover_cycles * (_THREADS // 32)
    return KernelTerms(
        memory_s=bytes_moved / rate,
        l2_s=0.0,
        l1_s=0.0,
        pipe_s=0.0,
        pipe="",
        turnover_s=cycles / gpu.clock_hz,
        launch_s=gpu.launch_s,
    )


def _elements(op: Op) -> int:
    counts = [each.type.element_count for each in op.results if isinstance(each.type, TensorType)]
    return max(counts, default=0)
