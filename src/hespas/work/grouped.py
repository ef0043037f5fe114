"""Products of groups of rows, each with a matrix of its own: what a kernel for them multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hespas.program.attrs import DotAttrs
from hespas.program.grouped import grouped_product
from hespas.program.operations.contraction import multiplier_of
from hespas.program.operations.sizes import operand
from hespas.program.program import Op

TILE_ROWS = 128
"""Rows of a block of kernels for such products; each group begins with a block of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm:
    """``batch`` products of ``group_rows`` rows in all, each group with its matrix.

    A group's product is rows x k by k x n; with ``is_divided`` the rows are what is summed over,
    and a group's product is k x rows by rows x n. ``multiplied`` is a key of `Work.flops`.
    """

    batch: int
    group_rows: tuple[int, ...]
    n: int
    k: int
    is_divided: bool
    multiplied: str
    flops_per_product: int

    @property
    def rows(self) -> int:
        """The rows, those of each group filled up to whole tiles."""
        return sum(-(-each // TILE_ROWS) * TILE_ROWS for each in self.group_rows)

    @property
    def groups(self) -> int:
        """How many groups have a row."""
        return sum(1 for each in self.group_rows if each)


def grouped_gemms(op: Op) -> tuple[GroupedGemm, ...]:
    """Return the product of groups that an operation is; empty for any other operation.

    Where the rows of each group are not known, all rows are divided evenly.
    """
    product, attrs = grouped_product(op), op.attrs
    if product is None or not isinstance(attrs, DotAttrs):
        return ()
    lhs, rhs = operand(op, 0), operand(op, 1)
    multiplier = multiplier_of(lhs.element, rhs.element, attrs.precision, attrs.algorithm)
    batch = prod(lhs.shape[at] for at in attrs.lhs_batching)
    contracted = prod(lhs.shape[at] for at in attrs.lhs_contracting)
    taken = {*attrs.lhs_batching, *attrs.lhs_contracting}
    free = prod(size for at, size in enumerate(lhs.shape) if at not in taken)
    others = {*attrs.rhs_batching, *attrs.rhs_contracting}
    columns = prod(size for at, size in enumerate(rhs.shape) if at not in others)
    return (
        GroupedGemm(
            batch=batch,
            group_rows=attrs.group_rows or even(product.rows, product.groups),
            n=columns if attrs.is_divided else columns // product.groups,
            k=free if attrs.is_divided else contracted,
            is_divided=attrs.is_divided,
            multiplied=multiplier.type_name,
            flops_per_product=multiplier.flops,
        ),
    )


def even(rows: int, groups: int) -> tuple[int, ...]:
    """Return the rows of each group where they are as equal as can be, the larger ones first.

    >>> even(10, 4)
    (3, 3, 2, 2)
    """
    each, over = divmod(rows, groups)
    return (each + 1,) * over + (each,) * (groups - over)
