"""Warps of a row reduction, which take time to start and end where rows are short."""

from __future__ import annotations

from math import ceil

from hespas.price.ptx.analysis import WARP
from hespas.program.program import Op, size_of
from hespas.work.fusion import operations_of

# How XLA reduces rows, read in the launches that it compiled for H100: a thread takes 16 elements
# of a row, a block up to 256 threads of it. Rows of less than half a warp share one.
# Source: openxla/xla, RowReductionFusion and RowReductionGetRowsPerWarp (Apache License 2.0).
_ELEMENTS_OF_THREAD = 16
_MOST_WARPS = 8


def warps_of_rows(op: Op) -> int:
    """Return the warps that reduce rows; none where a norm's kernel goes over its rows again."""
    inner = tuple(operations_of(op))
    reductions = [each for each in inner if each.kind == "reduce"]
    ends = op.regions[0].operations[-1].operands if op.kind == "fusion" else op.results
    written = set(ends)
    if not reductions or any(written.isdisjoint(each.results) for each in reductions):
        return 0
    longest = max(reductions, key=lambda each: size_of(each.operands[0]))
    rows = size_of(longest.results[0])
    length = size_of(longest.operands[0]) // max(1, rows)
    if 0 < length < WARP and WARP % length == 0:
        return ceil(rows * length / WARP)
    return rows * min(_MOST_WARPS, ceil(length / (WARP * _ELEMENTS_OF_THREAD)))
