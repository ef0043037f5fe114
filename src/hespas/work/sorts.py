"""Model sorts on GPUs.

XLA sorts by the library's radix sort or by its own network. The library's kernels look at a few
bits of the keys per pass, and each pass moves all data. XLA's own kernels form a network that
compares elements at distances of powers of two: one kernel compares all distances within a tile in
shared memory, every longer distance takes a kernel that moves all data.

Source: openxla/xla, ``SortRewriter`` (xla/service/gpu/transforms) and ``EmitSort``
(xla/backends/gpu/codegen), Apache License 2.0; sizes and launches from programs that jaxlib 0.10.2
compiles for H100.
"""

from __future__ import annotations

from math import prod

from hespas.program.attrs import CustomCallAttrs, DimensionAttrs
from hespas.program.operations.traits import arithmetic_type, bytes_of, ceil_log2, operand, result
from hespas.program.program import Op, applied_ops, values_read
from hespas.program.types import TensorType
from hespas.program.work import Work, flop_counts

CUB_SORTS = ("xla.gpu.ext.cub_sort_keys", "xla.gpu.ext.cub_sort_pairs", "__cub$DeviceRadixSort")
"""The targets of the library's sort."""

RADIX_BITS, SEGMENTED_RADIX_BITS = 8, 6
"""Key bits per pass of the library: for a single row, and for several rows."""

_FEWEST_ROWS = {
    8: ((12, 1300), (1, 0)),
    16: ((256, 2100), (48, 4200), (16, 65536), (1, 0)),
    32: ((52, 8192), (48, 20000), (32, 65536), (1, 22000)),
    64: ((256, 16800), (1, 131072)),
}
"""(rows, length) limits by key bits: the library sorts at least so many rows, or one, if longer."""

_MOST_ELEMENTS = 998_938_956
"""The most elements that jaxlib 0.10.2 sorts by the library, whatever their types and rows."""

_MOST_OPERANDS = 2
_PAIRED_KEYS = frozenset({"f32", "i32", "ui8", "ui16", "ui32", "ui64"})
_PAIRED_BITS = frozenset({16, 32, 64})
_TILE, _TILE_BYTES = 4096, 48 * 1024
_BANKS, _WORD_BYTES, _ACCESSES = 32, 4, 4


def radix_passes(key_bits: int, *, rows: int) -> int:
    """Return how often the library moves all data.

    >>> radix_passes(32, rows=1), radix_passes(32, rows=64), radix_passes(64, rows=1)
    (4, 6, 8)
    """
    bits = RADIX_BITS if rows == 1 else SEGMENTED_RADIX_BITS
    return -(-key_bits // bits)


def rows_of_call(op: Op) -> int:
    """Return how many rows a library sort call sorts separately."""
    kind = op.operands[0].type
    if not isinstance(kind, TensorType) or not kind.shape:
        return 1
    return prod(kind.shape[:-1])


def is_for_library(op: Op) -> bool:
    """Return whether XLA leaves a sort to the library.

    The sort has one or two operands, compares the first only, runs along the fastest dimension, and
    has enough rows and elements. A second operand is allowed for some key types only, if the keys
    are compared directly.
    """
    kind = op.operands[0].type
    if len(op.operands) > _MOST_OPERANDS or not isinstance(kind, TensorType):
        return False
    if not isinstance(op.attrs, DimensionAttrs) or not kind.shape:
        return False
    fastest = kind.order[0]
    if fastest != op.attrs.dimension or not op.regions:
        return False
    is_long = _is_long_enough(kind.element.bits, kind.element_count, kind.shape[fastest])
    other_arguments = set(op.regions[0].arguments[2:])
    read = {value for inner in op.regions[0].operations for value in values_read(inner)}
    return is_long and not other_arguments & read and (not is_plain(op) or _has_library_types(op))


def is_plain(op: Op) -> bool:
    """Return whether a sort compares its keys directly.

    `jax.lax.sort` orders floats as NumPy does, with extra operations for NaNs and zeros; it
    compares integers directly, as `jax.lax.top_k` does all keys.
    """
    return [inner.kind for inner in applied_ops(op)] == ["compare"]


def _has_library_types(op: Op) -> bool:
    key, *values = [
        operand.type.element for operand in op.operands if isinstance(operand.type, TensorType)
    ]
    return not values or (key.name in _PAIRED_KEYS and values[0].bits in _PAIRED_BITS)


def _is_long_enough(key_bits: int, elements: int, length: int) -> bool:
    rows = elements // max(1, length)
    return elements <= _MOST_ELEMENTS and any(
        length > limit and (rows >= fewest if fewest > 1 else rows == 1)
        for fewest, limit in _FEWEST_ROWS.get(key_bits, ())
    )


def sort_launches(op: Op) -> int:
    """Return the number of kernels of a sorting network.

    They run one after another, and each moves all data. With 2^n elements in a padded row and 2^t
    in a tile, one kernel sorts tiles; then stages of 1 to n - t longer distances follow, each with
    one more kernel for all distances in a tile.
    """
    levels, tile_levels = _levels(op)
    longer = levels - tile_levels
    return 1 + longer + longer * (longer + 1) // 2


def _levels(op: Op) -> tuple[int, int]:
    levels = ceil_log2(_length(op))
    tile, element_bytes = _TILE, sum(_element_bytes(op))
    while tile > 1 and tile * element_bytes >= _TILE_BYTES:
        tile //= 2
    return levels, min(levels, ceil_log2(tile))


def _length(op: Op) -> int:
    kind, attrs = op.operands[0].type, op.attrs
    if not isinstance(kind, TensorType) or not isinstance(attrs, DimensionAttrs) or not kind.shape:
        return 1
    return kind.shape[attrs.dimension]


def _element_bytes(op: Op) -> list[int]:
    kinds = [value.type for value in op.operands]
    return [(kind.element.bits + 7) // 8 for kind in kinds if isinstance(kind, TensorType)]


def shared_accesses(op: Op) -> tuple[float, float]:
    """Return the shared-memory accesses and warp passes of a network.

    A comparison within a tile loads and stores both elements of each operand. A pass serves 32
    words; two elements of one bank take two passes, which happens at distances below 32 words.
    """
    kind = op.operands[0].type if op.kind == "sort" else None
    if not isinstance(kind, TensorType):
        return 0.0, 0.0
    levels, tile_levels = _levels(op)
    phases = [*range(1, tile_levels + 1), *[tile_levels] * (levels - tile_levels)]
    length = _length(op)
    pairs, accesses, passes = (kind.element_count // max(1, length) << levels) / 2, 0.0, 0.0
    for size in _element_bytes(op):
        words = max(1, size // _WORD_BYTES)
        conflict_levels = ceil_log2(_BANKS // words)
        stages = sum(phases)
        accesses += _ACCESSES * pairs * stages
        conflicts = sum([min(phase, conflict_levels) for phase in phases])
        passes += _ACCESSES * pairs * words * (stages + conflicts) / _BANKS
    return accesses, passes


def launches_of(op: Op) -> tuple[int, int]:
    """Return an operation's kernel count and its traffic factor.

    The factor is how often the kernels move all data of the operation's work. Operations other than
    sorts are one kernel. The work of a library sort includes its passes.
    """
    if op.kind == "sort":
        count = sort_launches(op)
        return count, count
    if isinstance(op.attrs, CustomCallAttrs) and op.attrs.target in CUB_SORTS:
        kind = op.operands[0].type
        bits = kind.element.bits if isinstance(kind, TensorType) else 0
        rows = rows_of_call(op)
        extra_kernels = 2 if rows == 1 else 0  # a histogram of all digits, and its prefix sums
        return radix_passes(bits, rows=rows) + extra_kernels, 1
    return 1, 1


def radix_sort(op: Op) -> Work:
    """Count n log2 n comparisons, and all passes' traffic.

    A single row: each pass reads and writes all data, and a histogram of all digits reads the keys
    once more. Several rows: each pass reads the keys once more, for its own histogram.
    Source: Adinets and Merrill, "Onesweep", 2022; CUB's ``DeviceSegmentedRadixSort``.
    """
    keys = operand(op, 0)
    operand_bytes = bytes_of(op.operands)
    rows = rows_of_call(op)
    passes = radix_passes(keys.element.bits, rows=rows)
    histograms = 1 if rows == 1 else passes
    length = result(op).shape[-1] if keys.shape else 1
    comparisons = keys.element_count * ceil_log2(length)
    return Work(
        flops=flop_counts(arithmetic_type(keys.element), comparisons),
        bytes_read=histograms * keys.size_bytes + passes * operand_bytes,
        bytes_written=passes * operand_bytes,
    )
