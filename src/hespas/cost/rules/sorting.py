"""Operations that order elements: sort, top-k, and the library's radix sort."""

from __future__ import annotations

from hespas.cost.rules.sizes import (
    arithmetic_type,
    bytes_of,
    ceil_log2,
    first_result,
    operand,
    result,
    traffic,
)
from hespas.cost.sorts import radix_passes, rows_of_call
from hespas.cost.work import Work, flop_counts
from hespas.errors import CostError
from hespas.program.attrs import DimensionAttrs
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


def radix_sort(op: Op) -> Work:
    """Compare n log2 n times, as any sort; pass over memory once for every few bits of the key.

    All data at once: each pass reads and writes all, and a histogram of all digits reads the keys
    once more. Row by row: each pass reads the keys once more, for a histogram of its own.
    Source: Adinets and Merrill, "Onesweep", 2022; CUB's ``DeviceSegmentedRadixSort``.
    """
    keys = operand(op, 0)
    moved = bytes_of(op.operands)
    rows = rows_of_call(op)
    passes = radix_passes(keys.element.bits, rows=rows)
    histograms = 1 if rows == 1 else passes
    length = result(op).shape[-1] if keys.shape else 1
    comparisons = keys.element_count * ceil_log2(length)
    return Work(
        flops=flop_counts(arithmetic_type(keys.element), comparisons),
        bytes_read=histograms * keys.size_bytes + passes * moved,
        bytes_written=passes * moved,
    )


RULES = {"topk": top_k}
BODY_RULES = {"sort": sort}
