"""Price kernels without PTX by the category of their emitter.

XLA's emitters write few categories of kernels (`hespas.price.kernel.Kernel.category`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd, prod

from hespas.base.frozen import frozen
from hespas.hardware.microarchitecture import Microarchitecture
from hespas.lower.roles import weight
from hespas.price.kernel import (
    COLUMN_REDUCTION,
    COPY,
    LIBRARY,
    LOOP,
    NARROW_REDUCTION,
    NARROWEST_TILE,
    ROW_REDUCTION,
    TRANSPOSE,
    WARP,
    Kernel,
    sides_of,
)
from hespas.price.ptx.terms import LINE_BYTES, ROUNDS_APART, SECTOR_BYTES, KernelTerms
from hespas.program.attrs import DimensionAttrs, GatherAttrs, KernelAttrs, WindowAttrs
from hespas.program.kernels import KernelLaunch
from hespas.program.operations.reduction import only_replaces
from hespas.program.program import Op, Value, columns_together, memory_order, shape_of, size_of
from hespas.program.types import NumberKind, TensorType, size_bytes
from hespas.work.sorts import shared_accesses, sort_launches

PART_OF_STREAMING = {
    LOOP: 0.95,
    ROW_REDUCTION: 0.9,
    COLUMN_REDUCTION: 0.47,
    NARROW_REDUCTION: 0.97,
    TRANSPOSE: 1.0,
    COPY: 1.0,
    LIBRARY: 1.0,
}
"""The bandwidth that each category reaches, as a part of what streaming kernels reach.

The parts are those of kernels over 4 MB in compiled training steps (Llama-3-like of 100M and 3B
parameters, A100 and H100; narrow column reductions are those of ResNets' batch norms on A100), as
`hespas.price.ptx.terms.terms_of` prices them; the agreement with measured kernels is in
docs/evidence/kernels.md. Column reductions reach theirs where blocks loop `ROUNDS_APART` times, and
narrow ones where they do not. Transposes stream too; `_transpose_costs` has their cost beside
memory. A copy from device memory to device memory, which XLA leaves to the runtime, is assumed to
stream.
"""

_BESIDE_ARITHMETIC = frozenset({"convert", "maximum", "minimum", "select"})
"""What other pipes than those of multiplications and additions run."""

_MOST_KERNELS = 4096
"""Kernels whose form is remembered: every method and rate that prices a kernel asks for it."""
_THREADS, _THREADS_OF_COLUMNS = 128, 1024
_ELEMENTS_PER_THREAD = 4


def terms_by_category(
    kernel: Kernel,
    gpu: Microarchitecture,
    *,
    category: str,
    launch: KernelLaunch | None = None,
    bytes_moved: float,
    memory_bandwidth_bytes_per_s: float,
) -> KernelTerms:
    """Return the terms of a kernel from its category and HLO.

    Sliding windows are issued element by element; other element-wise arithmetic takes the lanes
    that multiply and add, beside memory. The launch gives the number of blocks. Without one, loops
    have 128 threads a block, and a thread for four of the written elements; column reductions have
    few blocks, and their category's part of the bandwidth is that of many. L2 moves gathered and
    scattered bytes beside those of device memory, and the parts of sectors of a transpose's tiles;
    the elements of those tiles, and those that a sort compares in shared memory, pass the
    load/store pipe.
    """
    columns = columns_of(kernel) if category in (COLUMN_REDUCTION, NARROW_REDUCTION) else Columns()
    blocks, threads = columns.blocks, _THREADS_OF_COLUMNS if columns.blocks else _THREADS
    if launch is not None:
        blocks, threads = prod(launch.grid), prod(launch.block)
    elif category == LOOP and bytes_moved > 0:
        blocks = ceil(_threads_of_loop(kernel) / _THREADS)
    elif category == ROW_REDUCTION:
        blocks = ceil(warps_of_rows(kernel) * WARP / _THREADS)
    busiest = ceil(blocks / gpu.multiprocessors)
    # The load of the busiest multiprocessor beyond an equal share, in shares.
    excess_shares = busiest * gpu.multiprocessors / blocks - 1 if columns.blocks and blocks else 0.0
    turning = _transpose_costs(kernel) if category in (LOOP, TRANSPOSE) else _TransposeCosts()
    accesses = passes = 0.0
    if kernel.op.kind == "sort":
        accesses, passes = [
            total / sort_launches(kernel.op) for total in shared_accesses(kernel.op)
        ]
    lane_s = 1 / (gpu.multiprocessors * gpu.pipe_efficiency * gpu.clock_hz)
    instructions = _instructions(kernel) + columns.instructions * excess_shares
    pipes = {
        "issue": instructions / gpu.issue_lanes * lane_s,
        "fused": _arithmetic(kernel) / gpu.fused_lanes * lane_s,
        "load/store": (turning.accesses + accesses) / gpu.memory_lanes * lane_s,
    }
    pipe = max(pipes, key=lambda name: pipes[name])
    rate = memory_bandwidth_bytes_per_s * gpu.memory_efficiency * _bandwidth_part(category, columns)
    return KernelTerms(
        memory_s=bytes_moved / rate,
        l2_s=(indexed_by(kernel, gpu).l2_bytes + turning.l2_bytes) / gpu.l2_bandwidth_bytes_per_s,
        l1_s=(turning.l1_lines + columns.l1_lines * excess_shares + passes)
        / (gpu.multiprocessors * gpu.clock_hz),
        pipe_s=pipes[pipe],
        pipe=pipe,
        turnover_s=busiest * gpu.warp_turnover_cycles * ceil(threads / WARP) / gpu.clock_hz,
        launch_s=gpu.launch_s,
    )


def _bandwidth_part(category: str, columns: Columns) -> float:
    part = PART_OF_STREAMING[category]
    if category != COLUMN_REDUCTION:
        return part
    drift = min(1.0, columns.rounds / ROUNDS_APART)
    return 1 / (drift / part + (1 - drift) / PART_OF_STREAMING[NARROW_REDUCTION])


@lru_cache(maxsize=_MOST_KERNELS)
def _threads_of_loop(kernel: Kernel) -> float:
    """Return the threads of a loop; each writes four neighbours.

    Where operands are put side by side, a thread has as many of each as divide their extents, at
    most four, and there are as many threads as the largest needs: ``ConcatenateFusion``
    (xla/backends/gpu/codegen/emitters), and 16 that jaxlib 0.10.2 compiles for H100.
    """
    written = kernel.written_elements
    for op in kernel.inner:
        if op.kind == "concatenate" and size_of(op.results[0]) == written:
            assert isinstance(op.attrs, DimensionAttrs)  # noqa: S101 - it is a concatenation
            extents = [shape_of(value)[op.attrs.dimension] for value in op.operands]
            return max(map(size_of, op.operands)) / gcd(_ELEMENTS_PER_THREAD, *extents)
    return written / _ELEMENTS_PER_THREAD


# How XLA transposes, read in the PTX of 64 transposes that it compiled for H100. A tile of 32 x 32
# elements goes through shared memory, and each element through the load/store pipe four times
# (global load, shared store, shared load, global store). One side of the tile is accessed by 8
# elements at a time, whose bytes may be less than a sector. Transposes of dimensions below 8 are
# loops: a thread writes 4 neighbours.
_TILE = 32
_ACCESSES_OF_TILE = 4
_TILE_RUN = 8


@frozen
class _TransposeCosts:
    """The costs of a kernel's transposes beside memory.

    ``accesses`` pass the load/store pipe, ``l2_bytes`` are beyond what is read and written once,
    ``l1_lines`` are those that loops load.
    """

    accesses: float = 0.0
    l2_bytes: float = 0.0
    l1_lines: float = 0.0


@lru_cache(maxsize=_MOST_KERNELS)
def _transpose_costs(kernel: Kernel) -> _TransposeCosts:
    """Return the costs of a kernel's transposes beside memory.

    Along a side narrower than a tile, threads are idle in half of the accesses. A loop whose
    operand's fastest dimension has w elements loads each sector w times, and w x 4 x 32 elements'
    lines a warp. It stores whole sectors, except for a second result in another order: there each
    of a thread's elements is w x 4 elements away from the next thread's.
    """
    accesses = l2_bytes = l1_lines = 0.0
    for op in kernel.inner:
        before, after = sides_of(op)
        kind = op.results[0].type if before else None
        if not isinstance(kind, TensorType):
            continue
        elements, size = kind.element_count, kind.element.bits / 8
        side = min(before, after)
        if side >= NARROWEST_TILE:
            accesses += elements * _ACCESSES_OF_TILE * (1 + max(1.0, _TILE / side)) / 2
            l2_bytes += elements * max(0.0, SECTOR_BYTES / _TILE_RUN - size)
        elif before == side:
            l2_bytes += elements * min(size * (side - 1), max(0.0, SECTOR_BYTES - size))
            l1_lines += elements / WARP * min(side * size, WARP)
        elif _has_wide_result(kernel.op):
            distance_bytes = min(float(SECTOR_BYTES), side * size * _ELEMENTS_PER_THREAD)
            l2_bytes += elements * max(0.0, distance_bytes - size)
    return _TransposeCosts(accesses=accesses, l2_bytes=l2_bytes, l1_lines=l1_lines)


def _has_wide_result(op: Op) -> bool:
    return len(op.results) > 1 and any(
        shape_of(value)[dimension] >= NARROWEST_TILE
        for value in op.results
        for dimension in memory_order(value)[:1]
    )


@lru_cache(maxsize=_MOST_KERNELS)
def _instructions(kernel: Kernel) -> float:
    windows = [op for op in kernel.inner if op.kind == "reduce_window"]
    return sum(
        [
            _window_instructions(op) * min(kernel.written_elements, size_of(op.results[0]))
            for op in windows
        ]
    )


@lru_cache(maxsize=_MOST_KERNELS)
def _arithmetic(kernel: Kernel) -> float:
    """Return the instructions of a kernel's element-wise arithmetic."""
    return sum(weight(op) * size_of(op.results[0]) for op in kernel.inner if _is_arithmetic(op))


def _is_arithmetic(op: Op) -> bool:
    if not op.traits.is_elementwise or op.kind in _BESIDE_ARITHMETIC:
        return False
    kind = op.results[0].type
    return isinstance(kind, TensorType) and kind.element.kind is NumberKind.FLOAT


def _window_instructions(op: Op) -> float:
    """Return the instructions for an element of a window's result.

    A cumulative window leaves out the elements before the start. Threads of a warp with different
    positions wait for each other; along another dimension than the fastest all leave out the same
    elements, half of them in the mean.
    """
    attrs = op.attrs
    if not isinstance(attrs, WindowAttrs):
        return weight(op)
    axes = [axis for axis, size in enumerate(attrs.size) if size > 1]
    if len(axes) != 1 or memory_order(op.results[0])[:1] == (axes[0],):
        return weight(op)
    size = attrs.size[axes[0]]
    is_cumulative = sorted(attrs.padding[axes[0]]) == [0, size - 1]
    return weight(op) * (size + 1) / (2 * size) if is_cumulative else weight(op)


# How XLA reduces rows, read in the launches that it compiled for H100: a thread takes 16 elements
# of a row, a block up to 256 threads of it. Rows of less than half a warp share one. Source:
# openxla/xla, RowReductionFusion and RowReductionGetRowsPerWarp (Apache License 2.0).
_ELEMENTS_OF_THREAD = 16
_MOST_WARPS = 8


def _longest_reduction(kernel: Kernel) -> Op:
    reductions = [op for op in kernel.inner if op.kind == "reduce"]
    return max(reductions, key=lambda op: size_of(op.operands[0]))


@lru_cache(maxsize=_MOST_KERNELS)
def warps_of_rows(kernel: Kernel) -> int:
    """Return the warps that reduce rows; a norm's kernel has none."""
    op = kernel.op
    if isinstance(op.attrs, KernelAttrs):
        return 0
    ends = op.regions[0].operations[-1].operands if op.kind == "fusion" else op.results
    written = set(ends)
    if any(inner.kind == "reduce" and written.isdisjoint(inner.results) for inner in kernel.inner):
        return 0
    longest = _longest_reduction(kernel)
    rows = size_of(longest.results[0])
    length = size_of(longest.operands[0]) // max(1, rows)
    if 0 < length < WARP and WARP % length == 0:
        return ceil(rows * length / WARP)
    return rows * min(_MOST_WARPS, ceil(length / (WARP * _ELEMENTS_OF_THREAD)))


# How XLA reduces columns, read in the launches that it compiled for a U-Net and a ResNet.
_BYTES_OF_THREAD = 8
_TO_LOAD = 2  # instructions: an address and a load
_INSTRUCTIONS_OF_ROUND, _MOST_ROWS_OF_ROUND = 32, 16
"""How far the loop over rows is unrolled: that of sums in 32 bits by 16, by 4 where each element is
an exponential, or more than one operand is read (as jaxlib 0.10.2 compiles for A100 and H100).
"""


@frozen
class Columns:
    """The blocks of a column reduction, each of ``rounds``, and costs beside memory."""

    blocks: int = 0
    rounds: float = 0.0
    instructions: float = 0.0
    l1_lines: float = 0.0


@lru_cache(maxsize=_MOST_KERNELS)
def columns_of(kernel: Kernel) -> Columns:
    """Return the blocks and costs of a kernel's column reductions.

    A block has all rows of 32 times as many columns as a thread loads in 8 bytes. Few blocks, as of
    few images with few features, leave multiprocessors idle. Each of 32 warps has every 32nd row,
    and up to 16 of them in a round, as long as these are few instructions.
    """
    longest = _longest_reduction(kernel)
    elements, reduced = size_of(longest.operands[0]), size_of(longest.results[0])
    columns = columns_together(longest)
    read = [value.type for value in kernel.op.operands if isinstance(value.type, TensorType)]
    sizes = [kind.element.bits / 8 for kind in read if kind.element_count == elements]
    at_once = max(1, int(_BYTES_OF_THREAD / max(sizes, default=4.0)))
    computed = sum(
        weight(op)
        for op in kernel.inner
        if op.traits.is_elementwise and size_of(op.results[0]) == elements
    )
    reductions = sum(op.kind == "reduce" for op in kernel.inner)
    rows_of_round = _INSTRUCTIONS_OF_ROUND / (at_once * (1 + computed))
    rows_of_round = max(1.0, min(_MOST_ROWS_OF_ROUND, rows_of_round))
    return Columns(
        blocks=ceil(reduced / max(1, columns)) * ceil(columns / (WARP * at_once)),
        rounds=elements / max(1, reduced) / WARP / rows_of_round,
        instructions=elements * (computed + reductions + _TO_LOAD / at_once),
        l1_lines=sum(kind.size_bytes for kind in read) / LINE_BYTES,
    )


@frozen
class Indexed:
    """Bytes that a kernel moves at data-dependent addresses.

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


def indexed_by(kernel: Kernel, gpu: Microarchitecture) -> Indexed:
    """Return the bytes that a kernel's gathers and scatters move.

    Indices are data: they are assumed to point anywhere. A run of neighbours costs all the sectors
    of 32 bytes that it lies in. Device memory moves each touched sector once; of those that are
    touched again, it moves the part that L2 does not hold: 1 - (its size / the bytes that indices
    range over).
    """
    operations = _indexing(kernel)
    return sum((indexed for op in operations for indexed in _indexed_bytes(op, gpu)), Indexed())


@lru_cache(maxsize=_MOST_KERNELS)
def _indexing(kernel: Kernel) -> tuple[Op, ...]:
    return tuple([op for op in kernel.inner if op.kind in _INDEXING])


_GATHERS = frozenset({"gather", "torch_index_select"})
_INDEXING = _GATHERS | {"scatter"}


def _indexed_bytes(op: Op, gpu: Microarchitecture) -> Iterator[Indexed]:
    if op.kind in _GATHERS:
        table, attrs = op.operands[0], op.attrs
        row = (1, *shape_of(table)[1:])
        window = attrs.slice_sizes if isinstance(attrs, GatherAttrs) else row
        yield _bytes_by_window(table, op.results[0], window, gpu)
    elif op.kind == "scatter":
        count = len(op.operands) // 2
        is_read = not only_replaces(op, count)
        for table, update in zip(op.operands[:count], op.operands[count + 1 :], strict=True):
            window = _scattered_window(op, table, update)
            written = _bytes_by_window(table, update, window, gpu)
            yield written
            # L2 adds on the spot. Memory writes whole sectors: a part of one is read first.
            if is_read:
                yield replace(written, l2_bytes=0.0)
            elif _adjacent_bytes(table, window)[1] % SECTOR_BYTES:
                counted_bytes = min(size_bytes(table.type), size_bytes(update.type))
                yield Indexed(memory_bytes=written.memory_bytes + counted_bytes)


def _scattered_window(op: Op, table: Value, update: Value) -> tuple[int, ...]:
    """Return the extents that a scatter writes at one index."""
    indices = op.operands[len(op.operands) // 2]
    vector = shape_of(indices)[-1] if len(shape_of(indices)) > 1 else 1
    remaining_elements = size_of(update) * vector // max(1, size_of(indices))
    window = [1] * len(shape_of(table))
    for dimension, of_update in zip(memory_order(table), memory_order(update), strict=False):
        extent = shape_of(table)[dimension]
        if extent != shape_of(update)[of_update] or remaining_elements % extent:
            break
        window[dimension], remaining_elements = extent, remaining_elements // extent
    return tuple(window)


def _bytes_by_window(
    table: Value, moved: Value, window: tuple[int, ...], gpu: Microarchitecture
) -> Indexed:
    """Return the bytes to read or write a value window by window.

    Single elements of several dimensions, such as a row's best or what a pool chose, follow the
    slowest: indices point into one row after another, which L1 may hold.
    """
    run, grain = _adjacent_bytes(table, window)
    touched = size_bytes(moved.type) / run * (run - gcd(grain, SECTOR_BYTES) + SECTOR_BYTES)
    size = size_bytes(table.type)
    *inner, slowest = memory_order(table) or (0,)
    is_followed = bool(inner) and prod(window) == 1
    reach = size / shape_of(table)[slowest] if is_followed else size
    first_bytes, repeated_bytes = min(touched, size), max(0.0, touched - size)
    from_memory = first_bytes + repeated_bytes * (
        max(0.0, 1 - gpu.l2_bytes / reach) if repeated_bytes else 0.0
    )
    through_l2 = first_bytes if is_followed and reach <= gpu.l1_bytes else touched
    counted_bytes = min(size, size_bytes(moved.type))
    return Indexed(memory_bytes=from_memory - counted_bytes, l2_bytes=through_l2 - from_memory)


def _adjacent_bytes(table: Value, window: tuple[int, ...]) -> tuple[int, int]:
    """Return the adjacent bytes of a window, and their alignment in bytes."""
    run = grain = 1
    for dimension in memory_order(table):
        run *= window[dimension]
        if window[dimension] < shape_of(table)[dimension]:
            break
        grain = run
    sizes = [
        elements * size_bytes(table.type) // max(1, size_of(table)) for elements in (run, grain)
    ]
    return max(1, sizes[0]), max(1, sizes[1])
