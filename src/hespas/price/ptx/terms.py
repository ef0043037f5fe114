"""What a kernel that was read costs: each limit by itself, and how they combine.

    device memory   bytes x (1 + turns) / (bandwidth x efficiency)
    L2              (sectors x 32 bytes - bytes) / L2 bandwidth
    pipes           warp instructions of the busiest pipe / (lanes x clock x efficiency)
    L1              lines and passes of shared memory / clock
    turnover        warps x cycles to start and retire one / clock

What L2 moves for device memory is in the efficiency of kernels that only stream, so that only the
rest counts: sectors that are asked for again, or carry less than they could. A block that goes
round a long loop drifts apart from its neighbours, so that memory sees short runs of addresses
where together they would be long: ``turns`` is `MEMORY_TURN_BYTES` for each run, over the bytes
of the run. Pipes, L1 and turnover belong to one multiprocessor, which runs its share of the blocks:
the busiest one decides, ceil(blocks / multiprocessors) of them. A kernel overlaps its limits only
in part, so that they add as the root of their squares; starting blocks overlaps with all else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import ceil, hypot, prod

from hespas.base.units import format_bytes_binary
from hespas.hardware.microarchitecture import Microarchitecture
from hespas.lower.kinds import weight
from hespas.price.bound import UNDIVIDED, Bound
from hespas.price.ptx.analysis import SECTOR_BYTES, WARP, Access, KernelAnalysis
from hespas.price.ptx.columns import (
    Columns,
    columns_of,
    columns_together,
    dimensions_of,
    is_loop,
    layout_of,
    more_than_its_share,
)
from hespas.price.ptx.indexed import indexed_by
from hespas.price.ptx.rows import warps_of_rows
from hespas.program.attrs import DimensionAttrs, DimensionsAttrs, FusionAttrs, WindowAttrs
from hespas.program.kernels import KernelLaunch
from hespas.program.program import Op, shape_of, size_of
from hespas.program.types import TensorType
from hespas.work.fusion import operations_of, written_elements
from hespas.work.sorts import shared_accesses, sort_launches

MEMORY_TURN_BYTES = 200.0
"""What memory could move while it turns to another run of addresses.

Fitted to the measured attention cores of docs/evidence/kernels.md on A100 and H100: their column
reductions read 256 bytes at a time, and reach 40 to 45 % of the bandwidth on both."""

_ROUNDS_APART = 32
"""After so many rounds of a loop, blocks are taken to be wholly apart; before, in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTerms:
    """The time that each limit alone would need, in seconds, and the whole.

    ``memory_s`` is device memory's, ``turnover_s`` that of starting and retiring blocks,
    ``launch_s`` what the kernel takes beside. ``pipe`` names the busiest one.
    """

    memory_s: float
    l2_s: float
    l1_s: float
    pipe_s: float
    pipe: str
    turnover_s: float
    launch_s: float

    @property
    def time_s(self) -> float:
        """How long the kernel takes.

        >>> terms = KernelTerms(memory_s=3e-6, l2_s=4e-6, l1_s=0.0, pipe_s=0.0, pipe="issue",
        ...                     turnover_s=1e-6, launch_s=2e-6)
        >>> round(terms.time_s * 1e6, 6), terms.limit
        (7.0, 'L2')
        """
        inside_s = max(self.l1_s, self.pipe_s)
        return max(hypot(self.memory_s, self.l2_s, inside_s), self.turnover_s) + self.launch_s

    def bound(self, busy_s: float) -> Bound:
        """Return what decides the time beside the launch, by these terms, whatever it is.

        Device memory, L2 and L1 are memory, pipes are arithmetic; starting and retiring blocks,
        where that takes longer than all else, is neither.

        >>> terms = KernelTerms(memory_s=3e-6, l2_s=0.0, l1_s=0.0, pipe_s=4e-6, pipe="issue",
        ...                     turnover_s=1e-6, launch_s=2e-6)
        >>> bound = terms.bound(5e-6)
        >>> round(bound.memory_s * 1e6, 6), round(bound.compute_s * 1e6, 6)
        (1.8, 3.2)
        """
        inside_s = max(self.l1_s, self.pipe_s)
        whole_s = hypot(self.memory_s, self.l2_s, inside_s)
        if whole_s <= 0 or whole_s < self.turnover_s:
            return UNDIVIDED
        compute_s = busy_s * (self.pipe_s / whole_s) ** 2 if self.pipe_s >= self.l1_s else 0.0
        return Bound(compute_s=compute_s, memory_s=busy_s - compute_s)

    @property
    def limit(self) -> str:
        """The name of the largest term."""
        terms = {
            "device memory": self.memory_s,
            "L2": self.l2_s,
            "L1": self.l1_s,
            f"{self.pipe} pipe": self.pipe_s,
            "block turnover": self.turnover_s,
            "launch": self.launch_s,
        }
        return max(terms, key=lambda name: terms[name])


def terms_of(
    kernel: KernelAnalysis,
    gpu: Microarchitecture,
    *,
    bytes_moved: float,
    memory_bandwidth_bytes_per_s: float,
) -> KernelTerms:
    """Return what each limit costs a kernel that moves ``bytes_moved`` to and from memory."""
    busiest = ceil(kernel.blocks / gpu.multiprocessors) / gpu.clock_hz
    cycles = pipe_cycles(kernel, gpu)
    pipe = max(cycles, key=lambda name: cycles[name])
    through_l2 = l2_sectors(kernel, gpu) * kernel.blocks * SECTOR_BYTES
    return KernelTerms(
        memory_s=bytes_moved
        * (1 + memory_turns(kernel))
        / (memory_bandwidth_bytes_per_s * gpu.memory_efficiency),
        l2_s=max(0.0, through_l2 - bytes_moved) / gpu.l2_bandwidth_bytes_per_s,
        l1_s=(kernel.l1_lines + kernel.shared_passes) * busiest,
        pipe_s=cycles[pipe] / gpu.pipe_efficiency * busiest,
        pipe=pipe,
        turnover_s=kernel.warps * gpu.warp_turnover_cycles * busiest,
        launch_s=gpu.launch_s,
    )


def added_terms(terms: Sequence[tuple[KernelTerms, int]]) -> KernelTerms:
    """Return the terms of kernels that run one after another, each so often.

    Each limit adds up by itself: as exact as the sum of their times where one limit decides all.
    """
    longest = max(terms, key=lambda each: each[0].time_s * each[1])[0]

    def added(term: Callable[[KernelTerms], float]) -> float:
        return sum(term(each) * count for each, count in terms)

    return KernelTerms(
        memory_s=added(lambda each: each.memory_s),
        l2_s=added(lambda each: each.l2_s),
        l1_s=added(lambda each: each.l1_s),
        pipe_s=added(lambda each: each.pipe_s),
        pipe=longest.pipe,
        turnover_s=added(lambda each: each.turnover_s),
        launch_s=added(lambda each: each.launch_s),
    )


def memory_turns(kernel: KernelAnalysis) -> float:
    """Return what turning from run to run costs, as a part of what the runs themselves take."""
    if not kernel.loop_sectors:
        return 0.0
    apart = min(1.0, kernel.loop_rounds / _ROUNDS_APART)
    return apart * kernel.loop_runs * MEMORY_TURN_BYTES / (kernel.loop_sectors * SECTOR_BYTES)


def l2_sectors(kernel: KernelAnalysis, gpu: Microarchitecture) -> float:
    """Return the sectors that one block moves to and from L2.

    L1 keeps all that a block loads where its share of L1 holds it, and then also what the next
    block loads again.
    """
    resident = max(1, gpu.threads_per_multiprocessor // kernel.threads)
    resident = min(resident, gpu.blocks_per_multiprocessor)
    is_kept = kernel.fresh_sectors * SECTOR_BYTES * resident <= gpu.l1_bytes
    fresh = kernel.fresh_sectors - kernel.neighbour_sectors
    return (fresh if is_kept else kernel.load_sectors) + kernel.store_sectors


def pipe_cycles(kernel: KernelAnalysis, gpu: Microarchitecture) -> dict[str, float]:
    """Return the cycles that each pipe of a multiprocessor needs for one block.

    What may run on two pipes fills the one that is less busy.
    """
    slots = kernel.slots
    shared = slots.logic + slots.fused + slots.either
    balanced = shared / (gpu.logic_lanes + gpu.fused_lanes)
    return {
        "logic": max(slots.logic / gpu.logic_lanes, balanced) * WARP,
        "fused": slots.fused / gpu.fused_lanes * WARP,
        "special": slots.special / gpu.special_lanes * WARP,
        "load/store": slots.memory / gpu.memory_lanes * WARP,
        "double": slots.double / gpu.double_lanes * WARP,
        "issue": slots.issued / gpu.issue_lanes * WARP,
    }


LOOP = "loop"
ROW_REDUCTION = "row reduction"
COLUMN_REDUCTION = "column reduction"
NARROW_REDUCTION = "narrow column reduction"
TRANSPOSE = "transpose"
COPY = "copy"
LIBRARY = "library"

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

XLA's emitters write few categories of kernels. The parts are those of kernels over 4 MB in compiled
training steps (Llama-3-like of 100M and 3B parameters, A100 and H100; narrow column reductions are
those of ResNets' batch norms on A100), as `terms_of` prices them; the agreement with measured
kernels is in docs/evidence/kernels.md. That of column reductions is reached where blocks go round
`_ROUNDS_APART` times, and that of narrow ones where they do not. Transposes stream too; `_turning`
has what they take beside memory. A copy from device memory to device memory, which XLA leaves to
the runtime, is taken to stream."""

NARROW_COLUMNS = 2048
"""Up to so many columns, rows that are reduced together lie one behind the other in memory."""

_THREADS, _THREADS_OF_COLUMNS = 128, 1024
_ELEMENTS_PER_THREAD = 4

# How XLA transposes, read in the PTX of 64 transposes that it compiled for H100. A tile of 32 x 32
# elements goes through shared memory, and each element through the load/store pipe four times
# (global load, shared store, shared load, global store). One side of the tile is accessed by 8
# elements at a time, whose bytes may be less than a sector. Transposes of dimensions below 8 are
# loops, for no tile is filled by them: a thread writes 4 neighbours.
_TILE = 32
_ACCESSES_OF_TILE = 4
_TILE_RUN = 8
_NARROWEST_TILE = 8


def category_of(op: Op) -> str:
    """Return the kind of kernel that XLA writes for an operation.

    A reduction whose fastest dimension stays is a column reduction, another one a row reduction;
    sums of few rows are loops. The slowest of several decides. Kernels of libraries stream.
    """
    if isinstance(op.attrs, FusionAttrs) and op.attrs.backend_kind == LIBRARY:
        return LIBRARY
    inner = tuple(operations_of(op))
    kinds = [_reduction(each) for each in inner if each.kind == "reduce"]
    for kind in (COLUMN_REDUCTION, ROW_REDUCTION, NARROW_REDUCTION):
        if kind in kinds:
            return kind
    if any(min(_sides(each)) >= _NARROWEST_TILE for each in inner):
        return TRANSPOSE
    return LOOP


def _reduction(op: Op) -> str:
    order = layout_of(op.operands[0])
    if not order or order[0] in dimensions_of(op):
        return ROW_REDUCTION
    columns = columns_together(op)
    if is_loop(rows=size_of(op.operands[0]) // max(1, size_of(op.results[0])), columns=columns):
        return LOOP
    return NARROW_REDUCTION if columns <= NARROW_COLUMNS else COLUMN_REDUCTION


def _sides(op: Op) -> tuple[int, int]:
    """Return the sides of the tiles of a transpose, in elements; zeros for what moves none.

    They are the dimensions that stay together: from the fastest of the operand, and from the
    fastest of the result.
    """
    if op.kind not in ("copy", "transpose"):
        return 0, 0
    before, after = layout_of(op.operands[0]), layout_of(op.results[0])
    if op.kind == "transpose":
        if not isinstance(op.attrs, DimensionsAttrs):
            return 0, 0
        after = tuple(op.attrs.dimensions[dimension] for dimension in after)
    if not before or before[0] == after[0]:
        return 0, 0
    shape = op.operands[0].type.shape if isinstance(op.operands[0].type, TensorType) else ()
    return _run(before, after, shape), _run(after, before, shape)


def _run(order: tuple[int, ...], other: tuple[int, ...], shape: Sequence[int]) -> int:
    """Return the elements of the fastest dimensions of an order that are together in another."""
    together = zip(order, other[other.index(order[0]) :], strict=False)
    return prod([shape[one] for one, _ in takewhile(lambda pair: pair[0] == pair[1], together)])


def terms_by_category(
    op: Op,
    gpu: Microarchitecture,
    *,
    category: str,
    launch: KernelLaunch | None = None,
    bytes_moved: float,
    memory_bandwidth_bytes_per_s: float,
) -> KernelTerms:
    """Return the terms of an operation's kernel of a category, as far as HLO gives them.

    Windows that slide are issued place by place; all other arithmetic hides behind memory. The
    blocks that start are those of the launch. Where it is not known, loops have 128 threads a
    block, and four of the elements that are written a thread; column reductions have few blocks,
    and their category's part of the bandwidth is that of many. L2 has what is gathered and
    scattered beside device memory, and what tiles of a transpose move in parts of sectors; their
    elements, and those that a sort compares in shared memory, pass the load/store pipe.
    """
    columns = columns_of(op) if category in (COLUMN_REDUCTION, NARROW_REDUCTION) else Columns()
    part = PART_OF_STREAMING[category]
    if category == COLUMN_REDUCTION:
        apart = min(1.0, columns.rounds / _ROUNDS_APART)
        part = 1 / (apart / part + (1 - apart) / PART_OF_STREAMING[NARROW_REDUCTION])
    rate = memory_bandwidth_bytes_per_s * gpu.memory_efficiency * part
    blocks, threads = columns.blocks, _THREADS_OF_COLUMNS if columns.blocks else _THREADS
    if launch is not None:
        blocks, threads = prod(launch.grid), prod(launch.block)
    elif category == LOOP and bytes_moved > 0:
        blocks = ceil(_threads_of_loop(op) / _THREADS)
    elif category == ROW_REDUCTION:
        blocks = ceil(warps_of_rows(op) * WARP / _THREADS)
    busiest = ceil(blocks / gpu.multiprocessors)
    cycles = busiest * gpu.warp_turnover_cycles * ceil(threads / WARP)
    l2_bytes = indexed_by(op, gpu).l2_bytes
    lane_s = 1 / (gpu.multiprocessors * gpu.pipe_efficiency * gpu.clock_hz)
    turning = _turning(op) if category in (LOOP, TRANSPOSE) else _Turning()
    more = more_than_its_share(blocks, gpu.multiprocessors) if columns.blocks else 0.0
    kernels = sort_launches(op) if op.kind == "sort" else 1
    accesses, passes = [each / kernels for each in shared_accesses(op)]
    instructions = _instructions(op) + columns.instructions * more
    pipes = {
        "issue": instructions / gpu.issue_lanes * lane_s,
        "load/store": (turning.accesses + accesses) / gpu.memory_lanes * lane_s,
    }
    pipe = max(pipes, key=lambda name: pipes[name])
    return KernelTerms(
        memory_s=bytes_moved / rate,
        l2_s=(l2_bytes + turning.l2_bytes) / gpu.l2_bandwidth_bytes_per_s,
        l1_s=(turning.l1_lines + columns.l1_lines * more + passes)
        / (gpu.multiprocessors * gpu.clock_hz),
        pipe_s=pipes[pipe],
        pipe=pipe,
        turnover_s=cycles / gpu.clock_hz,
        launch_s=gpu.launch_s,
    )


def _threads_of_loop(op: Op) -> float:
    """Return the threads of a loop, each of which writes four neighbours.

    Where single elements are put side by side, as the rotated pairs of a rotary embedding, a
    thread writes one of each.
    """
    written = written_elements(op)
    for each in operations_of(op):
        if each.kind != "concatenate" or size_of(each.results[0]) != written:
            continue
        if not isinstance(each.attrs, DimensionAttrs) or len(each.operands) == 1:
            continue
        sizes = {shape_of(value)[each.attrs.dimension] for value in each.operands}
        is_fastest = layout_of(each.results[0])[:1] == (each.attrs.dimension,)
        if is_fastest and sizes == {1}:
            return written / len(each.operands)
    return written / _ELEMENTS_PER_THREAD


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turning:
    """What the transposes of a kernel take beside memory.

    ``accesses`` pass the load/store pipe, ``l2_bytes`` are beyond what is read and written once,
    ``l1_lines`` are those that loops load.
    """

    accesses: float = 0.0
    l2_bytes: float = 0.0
    l1_lines: float = 0.0


def _turning(op: Op) -> _Turning:
    """Return what a kernel's transposes take.

    Along a side narrower than a tile, threads have nothing to do in half of the accesses. A loop
    whose operand's fastest dimension has w elements loads each sector w times, and w x 4 x 32
    elements' lines a warp. It stores whole sectors, but for a second result in another order: there
    each of a thread's elements is w x 4 elements away from the next thread's.
    """
    accesses = l2_bytes = l1_lines = 0.0
    has_wide_result = len(op.results) > 1 and any(
        value.type.shape[dimension] >= _NARROWEST_TILE
        for value in op.results
        if isinstance(value.type, TensorType)
        for dimension in layout_of(value)[:1]
    )
    for each in operations_of(op):
        before, after = _sides(each)
        if not before or not isinstance(each.results[0].type, TensorType):
            continue
        kind = each.results[0].type
        elements, size = kind.element_count, kind.element.bits / 8
        side = min(before, after)
        if side >= _NARROWEST_TILE:
            accesses += elements * _ACCESSES_OF_TILE * (1 + max(1.0, _TILE / side)) / 2
            l2_bytes += elements * max(0.0, SECTOR_BYTES / _TILE_RUN - size)
        elif before == side:
            l2_bytes += elements * min(size * (side - 1), max(0.0, SECTOR_BYTES - size))
            l1_lines += elements / WARP * min(side * size, WARP)
        elif has_wide_result:
            apart = min(float(SECTOR_BYTES), side * size * _ELEMENTS_PER_THREAD)
            l2_bytes += elements * max(0.0, apart - size)
    return _Turning(accesses=accesses, l2_bytes=l2_bytes, l1_lines=l1_lines)


def _instructions(op: Op) -> float:
    """Return the instructions of windows: each place is loaded and combined for every element."""
    inner = [each for each in operations_of(op) if each.kind == "reduce_window"]
    most = written_elements(op) if inner else 0
    return sum([_of_windows(each) * min(most, size_of(each.results[0])) for each in inner])


def _of_windows(op: Op) -> float:
    """Return the instructions for an element of a window's result.

    A cumulative window leaves out the places before the start. Threads of a warp that differ in
    their place wait for each other; along another dimension than the fastest all leave out the
    same, half of the places in the mean.
    """
    attrs = op.attrs
    if not isinstance(attrs, WindowAttrs):
        return weight(op)
    axes = [at for at, size in enumerate(attrs.size) if size > 1]
    if len(axes) != 1 or layout_of(op.results[0])[:1] == (axes[0],):
        return weight(op)
    size = attrs.size[axes[0]]
    is_cumulative = sorted(attrs.padding[axes[0]]) == [0, size - 1]
    return weight(op) * (size + 1) / (2 * size) if is_cumulative else weight(op)


_WORTH_REPORTING = 1.5
_PART_WORTH_REPORTING = 0.2


def reasons(
    terms: KernelTerms, analysis: KernelAnalysis | None, *, category: str = ""
) -> tuple[str, ...]:
    """Return what slows a kernel, the largest term first."""
    if category == COPY:
        return (f"no kernel: a copy of the runtime, {terms.limit}",)
    if analysis is None:
        return (f"no PTX: priced by its category and bytes, {terms.limit}",)
    about = {
        "launch": "shorter than its launch",
        "block turnover": _turnover(analysis),
        "device memory": _memory(analysis),
        "L2": _sectors(analysis),
        "L1": _lines(analysis),
        f"{terms.pipe} pipe": _pipe(terms, analysis),
    }
    found = [about[terms.limit]]
    if terms.limit != "L2" and terms.l2_s > _PART_WORTH_REPORTING * terms.time_s:
        found.append(_sectors(analysis))
    if (
        terms.limit != "device memory"
        and memory_turns(analysis)
        and terms.memory_s > _PART_WORTH_REPORTING * terms.time_s
    ):
        found.append(_memory(analysis))
    return tuple(each for each in dict.fromkeys(found) if each)


def _turnover(analysis: KernelAnalysis) -> str:
    sectors = (analysis.fresh_sectors + analysis.store_sectors) * SECTOR_BYTES
    return (
        f"{analysis.blocks} blocks of {analysis.threads} threads start and end for "
        f"{format_bytes_binary(sectors)} each"
    )


def _memory(analysis: KernelAnalysis) -> str:
    if not memory_turns(analysis):
        return "streams through device memory"
    run = analysis.loop_sectors * SECTOR_BYTES / analysis.loop_runs
    return (
        f"{1 + memory_turns(analysis):.1f}x device memory: "
        f"runs of {run:.0f} bytes, row after row, {analysis.loop_rounds:.0f} rounds"
    )


def _sectors(analysis: KernelAnalysis) -> str:
    worst = _worst(analysis)
    if worst is None:
        return "asks L2 again for what it had"
    factor, access = worst
    kind, noun = ("write", "stores") if access.is_store else ("read", "loads")
    return (
        f"{factor:.0f}x L2 {kind} sectors: {access.width_bytes}-byte {noun} at "
        f"{access.stride}-byte stride"
    )


def _worst(analysis: KernelAnalysis) -> tuple[float, Access] | None:
    """Return the access whose sectors exceed its bytes by most, and how many times they do."""
    wasteful = [each for each in analysis.accesses if each.amplification >= _WORTH_REPORTING]
    if not wasteful:
        return None
    worst = max(wasteful, key=lambda each: (each.is_store, each.sectors))
    return worst.amplification, worst


def _lines(analysis: KernelAnalysis) -> str:
    lines, passes = analysis.l1_lines, analysis.shared_passes
    what = "lines of L1" if lines >= passes else "passes of shared memory"
    return f"{max(lines, passes) / analysis.warps:.0f} {what} a warp"


def _pipe(terms: KernelTerms, analysis: KernelAnalysis) -> str:
    issued = analysis.slots.issued / analysis.warps
    return f"the {terms.pipe} pipe: {issued:.0f} instructions a warp of {WARP} threads"
