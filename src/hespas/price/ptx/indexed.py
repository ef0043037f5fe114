"""What kernels read and write where indices say: whole sectors, from memory as far as L2 forgets.

Where indices point is data: they are taken to point anywhere. A run of neighbours costs all the
sectors of 32 bytes that it lies in. Device memory has each sector that is touched once; of those
that are touched again, the part that L2 does not hold: 1 - (its size / what indices range over).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

from hespas.hardware.microarchitecture import Microarchitecture
from hespas.price.ptx.analysis import SECTOR_BYTES
from hespas.price.ptx.columns import layout_of
from hespas.program.attrs import GatherAttrs
from hespas.program.operations.reduction import only_replaces
from hespas.program.program import Op, Value, shape_of, size_of
from hespas.program.types import size_bytes
from hespas.work.fusion import operations_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """Bytes that a kernel moves where indices say.

    ``memory_bytes`` are those of device memory beyond what the kernel's work counts, ``l2_bytes``
    those that only pass L2.
    """

    memory_bytes: float = 0.0
    l2_bytes: float = 0.0

    def __add__(self, other: Indexed) -> Indexed:
        return Indexed(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            l2_bytes=self.l2_bytes + other.l2_bytes,
        )


def indexed_by(op: Op, gpu: Microarchitecture) -> Indexed:
    """Return what a kernel's gathers and scatters move."""
    return sum((found for each in operations_of(op) for found in _of(each, gpu)), Indexed())


def _of(op: Op, gpu: Microarchitecture) -> Iterator[Indexed]:
    if op.kind in ("gather", "torch_index_select"):
        yield _moved(op.operands[0], op.results[0], _gathered(op), gpu)
    elif op.kind == "scatter":
        count = len(op.operands) // 2
        is_read = not only_replaces(op, count)
        for table, update in zip(op.operands[:count], op.operands[count + 1 :], strict=True):
            window = _scattered(op, table, update)
            written = _moved(table, update, window, gpu)
            yield written
            # L2 adds on the spot. Memory writes whole sectors: a part of one is read before.
            if is_read:
                yield replace(written, l2_bytes=0.0)
            elif _run(table, window)[1] % SECTOR_BYTES:
                counted = min(size_bytes(table.type), size_bytes(update.type))
                yield Indexed(memory_bytes=written.memory_bytes + counted)


def _gathered(op: Op) -> tuple[int, ...]:
    """Return what is gathered at one place, along the dimensions of the table."""
    if isinstance(op.attrs, GatherAttrs):
        return op.attrs.slice_sizes
    return (1, *shape_of(op.operands[0])[1:])


def _scattered(op: Op, table: Value, update: Value) -> tuple[int, ...]:
    """Return what is written at one place: the fastest dimensions that an update has whole."""
    indices = op.operands[len(op.operands) // 2]
    vector = shape_of(indices)[-1] if len(shape_of(indices)) > 1 else 1
    left = size_of(update) * vector // max(1, size_of(indices))
    window = [1] * len(shape_of(table))
    for at, of_update in zip(layout_of(table), layout_of(update), strict=False):
        extent = shape_of(table)[at]
        if extent != shape_of(update)[of_update] or left % extent:
            break
        window[at], left = extent, left // extent
    return tuple(window)


def _moved(table: Value, moved: Value, window: tuple[int, ...], gpu: Microarchitecture) -> Indexed:
    """Return what it takes to read or write all elements of a value, window by window.

    Single elements of several dimensions, as a row's best or what a pool chose, follow the slowest:
    indices point into one row after another, which L1 may hold.
    """
    run, grain = _run(table, window)
    touched = size_bytes(moved.type) / run * (run - gcd(grain, SECTOR_BYTES) + SECTOR_BYTES)
    size = size_bytes(table.type)
    *inner, slowest = layout_of(table) or (0,)
    is_followed = bool(inner) and prod(window) == 1
    reach = size / shape_of(table)[slowest] if is_followed else size
    once, again = min(touched, size), max(0.0, touched - size)
    from_memory = once + again * (max(0.0, 1 - gpu.l2_bytes / reach) if again else 0.0)
    through_l2 = once if is_followed and reach <= gpu.l1_bytes else touched
    counted = min(size, size_bytes(moved.type))
    return Indexed(memory_bytes=from_memory - counted, l2_bytes=through_l2 - from_memory)


def _run(table: Value, window: tuple[int, ...]) -> tuple[int, int]:
    """Return the bytes of a window that are neighbours in memory, and what these start at."""
    run = grain = 1
    for dimension in layout_of(table):
        run *= window[dimension]
        if window[dimension] < shape_of(table)[dimension]:
            break
        grain = run
    sizes = [each * size_bytes(table.type) // max(1, size_of(table)) for each in (run, grain)]
    return max(1, sizes[0]), max(1, sizes[1])
