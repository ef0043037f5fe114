"""Column reductions of few blocks, which leave multiprocessors of a GPU idle."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from math import ceil, prod

from hespas.lower.kinds import weight
from hespas.price.ptx.analysis import WARP
from hespas.program.attrs import DimensionsAttrs
from hespas.program.program import Op, Value, shape_of, size_of
from hespas.program.types import TensorType
from hespas.work.fusion import operations_of

# How XLA reduces columns, read in the launches of those that it compiled of a U-Net and a ResNet.
_BYTES_OF_THREAD = 8
_TO_LOAD = 2  # instructions: an address and a load
_LINE_BYTES = 128
_INSTRUCTIONS_OF_ROUND, _MOST_ROWS_OF_ROUND = 32, 16
"""How far the loop over rows is unrolled: that of sums in 32 bits by 16, by 4 where each element is
an exponential, or more than one operand is read (as jaxlib 0.10.2 compiles for A100 and H100)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The blocks of a column reduction, and what all of them take beside memory.

    ``rounds`` says how often the loop of a block goes round.
    """

    blocks: int = 0
    rounds: float = 0.0
    instructions: float = 0.0
    l1_lines: float = 0.0


def columns_of(op: Op) -> Columns:
    """Return what a kernel's column reductions take.

    A block has all rows of 32 times as many columns as a thread loads in 8 bytes. Few blocks, as
    of few images with few features, leave multiprocessors idle. Each of 32 warps has every 32nd
    row, and up to 16 of them in a round, as long as these are few instructions.
    """
    inner = tuple(operations_of(op))
    reductions = [each for each in inner if each.kind == "reduce"]
    longest = max(reductions, key=lambda each: size_of(each.operands[0]))
    elements, made = size_of(longest.operands[0]), size_of(longest.results[0])
    columns = columns_together(longest)
    read = [value.type for value in op.operands if isinstance(value.type, TensorType)]
    sizes = [each.element.bits / 8 for each in read if each.element_count == elements]
    at_once = max(1, int(_BYTES_OF_THREAD / max(sizes, default=4.0)))
    computed = sum(
        weight(each)
        for each in inner
        if each.traits.is_elementwise and size_of(each.results[0]) == elements
    )
    loaded = sum(each.size_bytes for each in read)
    rows_of_round = _INSTRUCTIONS_OF_ROUND / (at_once * (1 + computed))
    rows_of_round = max(1.0, min(_MOST_ROWS_OF_ROUND, rows_of_round))
    return Columns(
        blocks=ceil(made / max(1, columns)) * ceil(columns / (WARP * at_once)),
        rounds=elements / max(1, made) / WARP / rows_of_round,
        instructions=elements * (computed + len(reductions) + _TO_LOAD / at_once),
        l1_lines=loaded / _LINE_BYTES,
    )


def columns_together(op: Op) -> int:
    """Return how many neighbours in memory are columns of a reduction; 1 where it reduces rows."""
    dimensions, shape = dimensions_of(op), shape_of(op.operands[0])
    kept = takewhile(lambda at: at not in dimensions, layout_of(op.operands[0]))
    return prod([shape[at] for at in kept])


def is_loop(*, rows: int, columns: int) -> bool:
    """Return whether XLA reduces so few rows in a loop over the results, with no blocks of its own.

    Source: openxla/xla, ``IsUnnestedReductionFasterThanElemental`` (xla/service/gpu/
    reduction_utils.cc, Apache License 2.0).

    >>> is_loop(rows=2, columns=4096), is_loop(rows=32, columns=4096)
    (True, False)
    """
    return rows < WARP or any(
        rows < most_rows * WARP and columns < fewest
        for most_rows, fewest in ((2, WARP), (4, 8), (8, 3))
    )


def more_than_its_share(blocks: int, multiprocessors: int) -> float:
    """Return what the busiest multiprocessor has beyond an equal share, in shares."""
    return ceil(blocks / multiprocessors) * multiprocessors / blocks - 1 if blocks else 0.0


def layout_of(value: Value) -> tuple[int, ...]:
    """Return the dimensions of more than one element, the fastest first."""
    if not isinstance(value.type, TensorType):
        return ()
    shape = value.type.shape
    order = value.type.layout or tuple(reversed(range(len(shape))))
    return tuple(dimension for dimension in order if shape[dimension] > 1)


def dimensions_of(op: Op) -> tuple[int, ...]:
    """Return the dimensions that a reduction reduces."""
    return op.attrs.dimensions if isinstance(op.attrs, DimensionsAttrs) else ()
