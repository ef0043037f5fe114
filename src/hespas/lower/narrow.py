"""Products whose operands are widened from few bits, as libraries compute them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hespas.lower.layouts import VIEWS
from hespas.program.attrs import DotAttrs
from hespas.program.program import Op, Value, size_of, tensor_of
from hespas.program.rewrite import Builder, Pattern
from hespas.program.uses import Uses


def _narrow_product(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a product that reads operands of few bits, and their scales, directly.

    Kernels of serving frameworks widen them as they load them: Marlin, Triton's ``matmul_ogs``,
    CUTLASS, and attention over caches of 8 bits (vLLM's and AITER's paged attention); tensor cores
    that multiply both types widen nothing.
    """
    if not isinstance(op.attrs, DotAttrs):
        return None
    build, operands, scales = Builder(op), list(op.operands), list[Value]()
    for index, operand in enumerate(op.operands[:2]):
        parts = _narrow(operand, uses)
        if parts is not None:
            narrow, scale, views = parts
            for view in reversed(views):
                kind = replace(tensor_of(view.results[0]), element=tensor_of(narrow).element)
                narrow = build.add(view.kind, (narrow,), kind, view.attrs)
            operands[index] = narrow
            scales.extend(() if scale is None else (scale,))
    if tuple(operands) == op.operands:
        return None
    kind = "scaled_dot" if scales and op.kind != "ragged_dot" else op.kind
    return (*build.operations, replace(op, kind=kind, operands=(*operands, *scales)))


def _narrow(operand: Value, uses: Uses) -> tuple[Value, Value | None, list[Op]] | None:
    """Return an operand's narrow source, its scales if any, and the views behind them."""
    maker, views = _behind_views(operand, uses)
    if maker is not None and maker.kind == "convert":
        (narrow,) = maker.operands
        return (narrow, None, views) if _is_of_few_bits(narrow, operand) else None
    if maker is None or maker.kind != "multiply":
        return None
    for wide, spread in (maker.operands, maker.operands[::-1]):
        scale, (convert, inner) = _before_spread(spread, uses), _behind_views(wide, uses)
        if convert is None or convert.kind != "convert" or scale is None:
            continue
        narrow = convert.operands[0]
        if tensor_of(narrow).element.bits < tensor_of(wide).element.bits:
            return narrow, scale, [*views, *inner]
    return None


def _is_of_few_bits(narrow: Value, wide: Value) -> bool:
    """Return whether a kernel has numbers of 4 or 8 bits, as it loads them, in 16."""
    few, many = tensor_of(narrow).element, tensor_of(wide).element
    return 4 <= few.bits <= 8 and many.bits == 16


def _behind_views(value: Value, uses: Uses) -> tuple[Op | None, list[Op]]:
    """Return a value's producer and the views between, last first."""
    views: list[Op] = []
    maker = uses.producer(value)
    while maker is not None and maker.kind in VIEWS:
        views.append(maker)
        maker = uses.producer(maker.operands[0])
    return maker, views


def _before_spread(value: Value, uses: Uses) -> Value | None:
    """Return the scales that a value repeats within each group, if any."""
    spread_size, maker = size_of(value), uses.producer(value)
    while (
        maker is not None
        and maker.operands
        and (maker.kind in _SPREADING or size_of(value) < spread_size)
    ):
        value = maker.operands[0]
        if maker.kind == "convert" and size_of(value) < spread_size:
            return value
        maker = uses.producer(value)
    return value if size_of(value) < spread_size else None


_SPREADING = (*VIEWS, "broadcast_in_dim", "convert", "slice")
NARROW_PRODUCTS = Pattern(kinds=("dot", "dot_general", "ragged_dot"), change=_narrow_product)
