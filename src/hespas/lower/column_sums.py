"""Multiplications that are written before their columns are summed.

A block of threads sums all rows of the columns that it has. Where blocks are few and rows many,
multiplying there would take longer than to write the products first, by XLA's cost model. Found in
what jaxlib 0.10.2 compiles for H100 of 23 products with a vector (`hespas.lower.vector_dots`): f32
of 1024 x 1024 is written, of 2048 x 2048 and 512 x 1024 not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from hespas.lower.kinds import BROADCASTS
from hespas.lower.layouts import default_order
from hespas.lower.roles import Role, bytes_of, is_row, role_of
from hespas.program.attrs import DimensionsAttrs
from hespas.program.program import Op, Value, shape_of, size_of

_FEWEST_COLUMNS, _MANY_BLOCKS = 32, 32
_ROWS_OF_BLOCK = 64
_BYTES_OF_WARP = 32 * 8


def multiplied_before(operations: Sequence[Op]) -> set[int]:
    """Return the multiplications by a vector, by their numbers, that are written before sums."""
    producer = {result: at for at, op in enumerate(operations) for result in op.results}
    return {
        producer[op.operands[0]]
        for op in operations
        if op.kind == "reduce" and len(op.results) == 1 and not is_row(op) and _has_few_blocks(op)
        if _is_by_vector(op.operands[0], operations, producer)
    }


def _is_by_vector(value: Value, operations: Sequence[Op], producer: Mapping[Value, int]) -> bool:
    """Return whether a value is what is in memory, multiplied by a vector for each row."""
    at = producer.get(value)
    if at is None or operations[at].kind != "multiply":
        return False
    makers = [producer.get(each) for each in operations[at].operands]
    made = [operations[each] for each in makers if each is not None]
    spread = [each for each in made if each.kind in BROADCASTS and size_of(each.operands[0]) > 1]
    rest = [each for each in made if each not in spread]
    return len(spread) == 1 and all(role_of(each) is Role.FIXED for each in rest)


def _has_few_blocks(op: Op) -> bool:
    value, columns = op.operands[0], _columns(op)
    made = size_of(op.results[0])
    rows = size_of(value) // max(1, made)
    row_bytes = bytes_of(value) // max(1, size_of(value)) * columns
    blocks = made // max(1, columns) * ceil(row_bytes / _BYTES_OF_WARP)
    is_narrow = columns < _FEWEST_COLUMNS
    return not is_narrow and blocks < _MANY_BLOCKS and rows >= _ROWS_OF_BLOCK * blocks


def _columns(op: Op) -> int:
    """Return how many neighbours in memory are columns of a sum."""
    shape = shape_of(op.operands[0])
    reduced = op.attrs.dimensions if isinstance(op.attrs, DimensionsAttrs) else ()
    inner = max((at for at in reduced if shape[at] > 1), default=-1)
    return prod(shape[at] for at in default_order(shape) if at > inner)
