"""Operations that keep some of their elements."""

from __future__ import annotations

from hespas.cost.rules.sizes import arithmetic_type, ceil_log2, first_result, operand, traffic
from hespas.cost.work import Work, flop_counts
from hespas.program.program import Op


def top_k(op: Op) -> Work:
    """Keep the k largest or smallest of each row in a heap: ceil(log2(k + 1)) comparisons each.

    An element that goes through a heap of k passes its levels, of which there are so many. The
    k values and their indices, the second result, are written.
    """
    given = operand(op, 0)
    comparisons = given.element_count * ceil_log2(first_result(op).shape[-1] + 1)
    return traffic(op, flops=flop_counts(arithmetic_type(given.element), comparisons))


RULES = {"topk": top_k}
