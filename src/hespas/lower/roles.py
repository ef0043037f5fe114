"""What a kernel can do with each operation, and the sizes that decide it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod

from hespas.lower.kinds import BROADCASTS, CREATING, FUSIBLE, IN_PLACE, REDUCING, window_of
from hespas.lower.scans import PIECE
from hespas.program.attrs import DimensionsAttrs
from hespas.program.program import Op, Value, size_of
from hespas.program.types import TensorType


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


def bytes_of(value: Value) -> int:
    """Return the bytes of a value; none for what is no tensor."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return 0
    return (prod(kind.shape) * kind.element.bits + 7) // 8


def role_of(op: Op) -> Role:
    """Return what can be done with an operation."""
    kind = op.kind
    if kind not in FUSIBLE:
        return Role.FIXED
    is_one = kind in BROADCASTS and size_of(op.operands[0]) == 1
    if kind in CREATING or is_one:
        return Role.MADE
    is_same = kind in BROADCASTS and size_of(op.operands[0]) == size_of(op.results[0])
    if kind in _VIEWS or is_same:
        return Role.VIEW
    if kind == "reduce_window" and 1 < window_of(op) <= PIECE and _is_simple(op):
        return Role.LOOP
    if kind in REDUCING or kind in IN_PLACE or (kind == "copy" and moves_fastest(op)):
        return Role.END
    return Role.LOOP


def _is_simple(op: Op) -> bool:
    """Return whether a window combines by one operation, as sums and maxima do.

    What combines by more, as of `jax.lax.cumlogsumexp`, XLA computes once and writes.
    """
    return len(op.results) == 1 and len(op.regions[0].operations) == _WITH_RETURN


_WITH_RETURN = 2
_VIEWS = frozenset({"bitcast", "reshape", "transpose"})


def scattered_over(op: Op) -> Sequence[Value]:
    """Return the operands that an operation scatters to; none of another one."""
    return op.operands[: len(op.operands) // 2] if op.kind == "scatter" else ()


def moves_fastest(op: Op) -> bool:
    """Return whether a copy gives a value another fastest dimension."""
    return fastest(op.operands[0]) != fastest(op.results[0])


def fastest(value: Value) -> int:
    """Return the dimension whose elements are neighbours in memory."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return 0
    order = kind.layout or range(kind.rank)[::-1]
    return next((at for at in order if kind.shape[at] > 1), 0)


def is_row(op: Op) -> bool:
    """Return whether a reduction takes the fastest dimension."""
    dimensions = op.attrs.dimensions if isinstance(op.attrs, DimensionsAttrs) else ()
    return fastest(op.operands[0]) in dimensions
