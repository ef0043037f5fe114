"""What kind of kernel an operation is, said so that a fusion's kind is what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hespas.errors import CostError
from hespas.program.attrs import CustomCallAttrs, DimensionsAttrs
from hespas.program.operations.table import kinds_where, traits_of
from hespas.program.program import Op, Value, nested_ops
from hespas.program.types import TensorType
from hespas.work.attention import attentions
from hespas.work.convolution import convolutions
from hespas.work.fusion import only_moves
from hespas.work.gemm import GemmWriter, gemms
from hespas.work.grouped import grouped_gemms

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
"""What a fusion is, by what it holds: the first that is found, in this order."""


def kind_of(op: Op) -> str:
    """Return what kind of kernel an operation is.

    Products, convolutions and fused attention are called so, library, Triton or fusion; another
    fusion is named after what it holds that decides how its kernel is written.
    """
    if product := _product(op):
        return product
    if isinstance(op.attrs, CustomCallAttrs):
        return f"custom call {op.attrs.target}"
    if op.kind == "fusion":
        return f"{_of_fusion(op)} fusion"
    if op.kind == "while":
        return "loop"
    if op.traits.kernel_name:
        return op.traits.kernel_name
    return "data movement" if only_moves(op) else "elementwise"


def _product(op: Op) -> str:
    """Return the kind of a product, a convolution or attention; empty for anything else."""
    try:
        if attentions(op):
            return "fused attention"
        if convolutions(op):
            return "convolution"
        if grouped_gemms(op):
            return "matrix product, grouped"
        return next((_PRODUCTS[product.writer] for product in gemms(op)), "")
    except CostError:
        return ""


def _of_fusion(op: Op) -> str:
    inside = {_kind_inside(each) for each in _inside(op)}
    if "transpose" in inside and not only_moves(op) and not inside & _DECISIVE:
        return "transposing elementwise"
    found = next((name for kind, name in _IN_FUSIONS.items() if kind in inside), None)
    if found is not None:
        return found
    return "data movement" if only_moves(op) else "elementwise"


_DECISIVE = frozenset(_IN_FUSIONS) - {"transpose"}


def _kind_inside(op: Op) -> str:
    """Return an operation's kind: of copies and transposes, whether elements change their order."""
    if op.kind not in ("copy", "transpose"):
        return op.kind
    before, after = _layout(op.operands[0]), _layout(op.results[0])
    if op.kind == "transpose" and isinstance(op.attrs, DimensionsAttrs):
        after = [op.attrs.dimensions[at] for at in after]
    return "bitcast" if before == after else "transpose"


def _layout(value: Value) -> Sequence[int]:
    """Return the dimensions of more than one element, the fastest first."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return ()
    order = kind.layout or range(kind.rank)[::-1]
    return [at for at in order if kind.shape[at] > 1]


def _inside(op: Op) -> Iterator[Op]:
    for region in op.regions:
        yield from nested_ops(region)
