"""Operations that order elements: sort, top-k, and the library's radix sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hespas.errors import CostError
from hespas.program.attrs import DimensionAttrs
from hespas.program.operations.sizes import (
    arithmetic_type,
    ceil_log2,
    first_result,
    operand,
    traffic,
)
from hespas.program.operations.traits import Category, Traits
from hespas.program.work import Work, flop_counts

if TYPE_CHECKING:
    from hespas.program.program import Op


def top_k(op: Op) -> Work:
    """Keep the k largest or smallest of each row in a heap: ceil(log2(k + 1)) comparisons each.

    An element that goes through a heap of k passes its levels, of which there are so many. The
    k values and their indices, the second result, are written.
    """
    given = operand(op, 0)
    comparisons = given.element_count * ceil_log2(first_result(op).shape[-1] + 1)
    return traffic(op, flops=flop_counts(arithmetic_type(given.element), comparisons))


def sort(op: Op, bodies: tuple[Work, ...]) -> Work:  # noqa: ARG001 - a comparison counts as one FLOP
    """Compare n log2 n times along the sorted dimension, in every row.

    A comparison is one FLOP, whatever the comparator does about NaNs (XLA's convention). Keys
    and values are read once and written once: the least that a sort can do.
    """
    keys = operand(op, 0)
    if not isinstance(op.attrs, DimensionAttrs):
        raise CostError("the sorted dimension is not known", location=op.location)
    length = keys.shape[op.attrs.dimension] if keys.shape else 1
    comparisons = keys.element_count * ceil_log2(length)
    return traffic(op, flops=flop_counts(arithmetic_type(keys.element), comparisons))


TRAITS = {
    "sort": Traits(
        category=Category.SORTING, work_of_bodies=sort, kernel_name="sort", fusion_rank=1
    ),
    "topk": Traits(category=Category.SORTING, work=top_k),
}
