"""How a GPU's compiler sorts: by the library's radix sort, or by a network of its own kernels.

The library's kernels look at a few bits of the keys at a time, and move all data for each. A
network compares elements at distances of powers of two; what lies within a tile is compared by
one kernel in shared memory, every longer distance takes a kernel that moves all data.

Source: openxla/xla, ``SortRewriter`` (xla/service/gpu/transforms) and ``EmitSort``
(xla/backends/gpu/codegen), Apache License 2.0; sizes and launches found in what jaxlib 0.10.2
compiles for H100.
"""

from __future__ import annotations

from math import prod

from hespas.cost.rules.sizes import ceil_log2
from hespas.program.attrs import CustomCallAttrs, DimensionAttrs
from hespas.program.program import Op, values_read
from hespas.program.types import TensorType

CUB_SORTS = ("xla.gpu.ext.cub_sort_keys", "xla.gpu.ext.cub_sort_pairs", "__cub$DeviceRadixSort")
"""The targets of the library's sort."""

RADIX_BITS, SEGMENTED_RADIX_BITS = 8, 6
"""Bits of the key that the library looks at in a pass: of all data at once, and row by row."""

_FEWEST_ELEMENTS, _SHORTEST_ROW = 16384, 4096
_MOST_OPERANDS = 2
_TILE, _TILE_BYTES = 4096, 48 * 1024


def radix_passes(key_bits: int, *, rows: int) -> int:
    """Return how often the library moves all data.

    >>> radix_passes(32, rows=1), radix_passes(32, rows=64), radix_passes(64, rows=1)
    (4, 6, 8)
    """
    bits = RADIX_BITS if rows == 1 else SEGMENTED_RADIX_BITS
    return -(-key_bits // bits)


def rows_of_call(op: Op) -> int:
    """Return how many rows a call of the library's sort sorts, each by itself."""
    given = op.operands[0].type
    if not isinstance(given, TensorType) or not given.shape:
        return 1
    return prod(given.shape[:-1])


def is_for_library(op: Op) -> bool:
    """Return whether XLA leaves a sort to the library.

    It has one or two operands, is by the first alone, goes along the fastest dimension, and has
    rows and elements enough.
    """
    kind = op.operands[0].type
    if len(op.operands) > _MOST_OPERANDS or not isinstance(kind, TensorType):
        return False
    if not isinstance(op.attrs, DimensionAttrs) or not kind.shape:
        return False
    order = kind.layout or tuple(reversed(range(kind.rank)))
    if order[0] != op.attrs.dimension or not op.regions:
        return False
    is_long = kind.element_count > _FEWEST_ELEMENTS and kind.shape[order[0]] > _SHORTEST_ROW
    others = set(op.regions[0].arguments[2:])
    read = {value for inner in op.regions[0].operations for value in values_read(inner)}
    return is_long and not others & read


def sort_launches(op: Op) -> int:
    """Return how many kernels sort, one after another, each of which moves all data.

    With 2^n elements in a row, padded, and 2^t in a tile, one kernel sorts tiles; then stages of
    1 to n - t longer distances follow, with one more kernel each for all distances in a tile.
    """
    kind = op.operands[0].type
    if not isinstance(kind, TensorType) or not isinstance(op.attrs, DimensionAttrs):
        return 1
    length = kind.shape[op.attrs.dimension] if kind.shape else 1
    element_bytes = sum(
        (value.type.element.bits + 7) // 8
        for value in op.operands
        if isinstance(value.type, TensorType)
    )
    tile = _TILE
    while tile > 1 and tile * element_bytes >= _TILE_BYTES:
        tile //= 2
    longer = max(0, ceil_log2(length) - ceil_log2(tile))
    return 1 + longer + longer * (longer + 1) // 2


def launches_of(op: Op) -> tuple[int, int]:
    """Return how many kernels an operation is, and how often they move all that it moves.

    An operation that sorts nothing is one. The library's passes are in its work.
    """
    if op.kind == "sort":
        count = sort_launches(op)
        return count, count
    if isinstance(op.attrs, CustomCallAttrs) and op.attrs.target in CUB_SORTS:
        kind = op.operands[0].type
        bits = kind.element.bits if isinstance(kind, TensorType) else 0
        rows = rows_of_call(op)
        before = 2 if rows == 1 else 0  # a histogram of all digits, and the sums of its counts
        return radix_passes(bits, rows=rows) + before, 1
    return 1, 1
