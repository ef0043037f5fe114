"""Say what a kernel can do with each operation."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod

from hespas.lower.layouts import VIEWS
from hespas.lower.reductions import PIECE
from hespas.program.attrs import ConstantAttrs, WindowAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import (
    Op,
    Value,
    applied_ops,
    memory_order,
    reduced_dimensions,
    size_of,
)
from hespas.program.types import TensorType, size_bytes
from hespas.program.uses import Uses

_OF_PLACE = 5
"""Instructions beside the body's for each place of a window: an address, a test, a load."""


class Role(Enum):
    """What can be done with an operation."""

    FIXED = "fixed"
    """A library's, a collective's or control flow's: stands alone."""
    VIEW = "view"
    """Another name for the same bytes."""
    MADE = "made"
    """Made from nothing or from one number, wherever it is needed."""
    LOOP = "loop"
    """A part of any kernel."""
    END = "end"
    """The end of a kernel: a reduction, a transpose, an update in place."""


def role_of(op: Op) -> Role:
    """Return what can be done with an operation."""
    category = op.traits.category
    if not op.traits.is_fusible:
        return Role.FIXED
    is_repeated = category is Category.BROADCAST
    if category is Category.CREATION or (is_repeated and size_of(op.operands[0]) == 1):
        return Role.MADE
    is_same = is_repeated and size_of(op.operands[0]) == size_of(op.results[0])
    if op.kind in VIEWS or op.kind == "bitcast" or is_same:
        return Role.VIEW
    if op.kind == "reduce_window" and 1 < window_of(op) <= PIECE and _is_simple(op):
        return Role.LOOP
    is_end = category in (Category.REDUCTION, Category.UPDATE)
    return Role.END if is_end or (op.kind == "copy" and moves_fastest(op)) else Role.LOOP


def _is_simple(op: Op) -> bool:
    """Return whether a window combines by one operation.

    What combines by more, as of `jax.lax.cumlogsumexp`, XLA computes once and writes.
    """
    return len(op.results) == 1 and len(op.regions[0].operations[:-1]) == 1


def weight(op: Op) -> int:
    """Return an operation's instructions per element."""
    if op.kind == "reduce_window":
        body = [weight(applied) for applied in applied_ops(op)]
        return window_of(op) * (_OF_PLACE + sum(body))
    return op.traits.gpu_instructions


def window_of(op: Op) -> int:
    """Return how many places a window combines into a result's element."""
    return prod(op.attrs.size) if isinstance(op.attrs, WindowAttrs) else 1


def bytes_of(value: Value) -> int:
    """Return the bytes of a value; none for what is no tensor."""
    return size_bytes(value.type) if isinstance(value.type, TensorType) else 0


def is_zero(value: Value, uses: Uses) -> bool:
    """Return whether a value is nothing but zeros."""
    source = uses.source(value, lambda op: op.traits.category is Category.BROADCAST)
    maker = uses.producer(source)
    return maker is not None and maker.attrs == ConstantAttrs(value=0)


def scattered_over(op: Op) -> Sequence[Value]:
    """Return the operands that an operation scatters to; none of another one."""
    return op.operands[: len(op.operands) // 2] if op.kind == "scatter" else ()


def moves_fastest(op: Op) -> bool:
    """Return whether a copy gives a value another fastest dimension."""
    return fastest(op.operands[0]) != fastest(op.results[0])


def fastest(value: Value) -> int:
    """Return the dimension whose elements are neighbours in memory."""
    return next(iter(memory_order(value)), 0)


def is_row(op: Op) -> bool:
    """Return whether a reduction takes the fastest dimension."""
    return fastest(op.operands[0]) in reduced_dimensions(op)
