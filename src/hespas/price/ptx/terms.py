"""Analyse kernels, cost each limit, and combine the limits.

    device memory   bytes x (1 + turns) / (bandwidth x efficiency)
    L2              (sectors x 32 bytes - bytes) / L2 bandwidth
    pipes           warp instructions of the busiest pipe / (lanes x clock x efficiency)
    tensor cores    FLOPs of products / (rate x efficiency of pipes)
    L1              lines and passes of shared memory / clock
    turnover        warps x cycles to start and retire one / clock

The efficiency of streaming kernels includes what L2 moves for device memory, so that only the rest
counts: sectors that are read again, or are used only in part. A block in a long loop drifts apart
from its neighbours, so that memory sees short runs of addresses that would be long if the blocks
stayed together: ``turns`` is `MEMORY_TURN_BYTES` for each run, over the bytes of the run. Pipes, L1
and turnover belong to one multiprocessor, which runs its share of the blocks: the busiest one
decides, with ceil(blocks / multiprocessors) of them. A kernel overlaps its limits only in part, so
that they add as the root of their squares. Products run while the next operands come, and starting
blocks overlaps with everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import ceil, hypot

import msgspec

from hespas.base.frozen import frozen
from hespas.base.units import format_bytes_binary
from hespas.hardware.microarchitecture import Microarchitecture
from hespas.price.estimate import UNDIVIDED, Bound
from hespas.price.kernel import COPY, WARP

NO_TENSOR_CORES: Mapping[str, float] = {}
SECTOR_BYTES = 32
LINE_BYTES = 128

MEMORY_TURN_BYTES = 200.0
"""The bytes that memory could move while it turns to another run of addresses.

Fitted to the measured attention cores of docs/evidence/kernels.md on A100 and H100: their column
reductions read 256 bytes at a time, and reach 40 to 45 % of the bandwidth on both.
"""

ROUNDS_APART = 32
"""The rounds of a loop after which blocks are assumed fully apart; before, in part."""


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """Machine instructions by the pipe that executes them; they add.

    ``logic`` is integer and logical work, comparisons and selections; ``fused`` fused multiply and
    add of floats and integers; ``either`` what the assembler puts on any pipe (integer adds, moves,
    shifts left); ``special`` transcendentals and most conversions; ``memory`` loads, stores and
    shuffles; ``double`` 64-bit floats; ``other`` what only takes a slot in the issue order
    (branches, barriers).
    """

    logic: float = 0.0
    fused: float = 0.0
    either: float = 0.0
    special: float = 0.0
    memory: float = 0.0
    double: float = 0.0
    other: float = 0.0

    @property
    def issued(self) -> float:
        """The instructions of all pipes."""
        return sum(msgspec.structs.astuple(self))

    def plus(self, other: Slots, count: float) -> Slots:
        """Return the sum with ``count`` times the other."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        sums = [mine + theirs * count for mine, theirs in pairs]
        return Slots(**dict(zip(self.__struct_fields__, sums, strict=True)))


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One load or store of global memory by one block of threads.

    ``bytes`` is what its threads ask for, ``sectors`` what L2 moves, ``stride`` the distance
    between neighbouring threads in bytes.
    """

    is_store: bool
    width_bytes: int
    stride: int
    bytes: float
    sectors: float

    @property
    def amplification(self) -> float:
        """Bytes of sectors for each byte asked for."""
        return self.sectors * SECTOR_BYTES / self.bytes if self.bytes else 0.0


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of one block in products of a datatype.

    ``is_of_warp`` marks those of single warps (``mma``): GPUs since Hopper compute others faster.
    """

    datatype: str
    flops: float
    is_of_warp: bool


class KernelAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis of the grid's middle block, which represents all blocks.

    ``slots`` are machine instructions of all its warps. ``load_sectors`` is what loads ask of L2 if
    L1 holds what one straight stretch of code loads, ``fresh_sectors`` if it holds everything; a
    block soon after it loads ``neighbour_sectors`` of these too. In loops ``loop_sectors`` distinct
    ones lie in ``loop_runs`` runs without wide gaps; the busiest loop runs ``loop_rounds`` rounds.
    ``l1_lines`` are cycles of the L1 cache, ``shared_passes`` cycles of shared memory. ``barriers``
    counts waits of the whole block. ``products`` run on tensor cores.
    """

    name: str
    blocks: int
    threads: int
    slots: Slots
    load_sectors: float
    fresh_sectors: float
    store_sectors: float
    loop_sectors: float
    loop_runs: float
    loop_rounds: float
    l1_lines: float
    shared_passes: float
    shared_bytes: int
    barriers: float
    accesses: tuple[Access, ...]
    unknown_loops: int
    data_branches: int
    data_addresses: int
    neighbour_sectors: float = 0.0
    products: tuple[Product, ...] = ()

    @property
    def warps(self) -> int:
        """Warps in a block."""
        return -(-self.threads // WARP)


@frozen
class KernelTerms:
    """The time that each limit alone would need, in seconds.

    ``memory_s`` is device memory's, ``tensor_s`` that of products on tensor cores, ``turnover_s``
    that of starting and retiring blocks, ``launch_s`` the kernel's time beside them. ``pipe`` names
    the busiest one.
    """

    memory_s: float
    l2_s: float
    l1_s: float
    pipe_s: float
    pipe: str
    turnover_s: float
    launch_s: float
    tensor_s: float = 0.0

    @property
    def _combined_s(self) -> float:
        streamed_s = hypot(self.memory_s, self.l2_s, max(self.l1_s, self.pipe_s))
        return max(streamed_s, self.tensor_s)

    @property
    def time_s(self) -> float:
        """The time of the kernel.

        >>> terms = KernelTerms(memory_s=3e-6, l2_s=4e-6, l1_s=0.0, pipe_s=0.0, pipe="issue",
        ...                     turnover_s=1e-6, launch_s=2e-6)
        >>> round(terms.time_s * 1e6, 6), terms.limit
        (7.0, 'L2')
        """
        return max(self._combined_s, self.turnover_s) + self.launch_s

    def bound(self, busy_s: float) -> Bound:
        """Attribute ``busy_s``, the time beside the launch, to the limits.

        Device memory, L2 and L1 are memory, pipes are arithmetic; starting and retiring blocks,
        where that takes longer than everything else, is neither.

        >>> terms = KernelTerms(memory_s=3e-6, l2_s=0.0, l1_s=0.0, pipe_s=4e-6, pipe="issue",
        ...                     turnover_s=1e-6, launch_s=2e-6)
        >>> bound = terms.bound(5e-6)
        >>> round(bound.memory_s * 1e6, 6), round(bound.compute_s * 1e6, 6)
        (1.8, 3.2)
        """
        whole_s = self._combined_s
        if whole_s <= 0 or whole_s < self.turnover_s:
            return UNDIVIDED
        if whole_s == self.tensor_s:
            return Bound(compute_s=busy_s)
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
            "tensor cores": self.tensor_s,
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
    tensor_flops_per_cycle: Mapping[str, float] = NO_TENSOR_CORES,
) -> KernelTerms:
    """Return the cost of each limit for a kernel that moves ``bytes_moved``.

    ``tensor_flops_per_cycle`` are those of a multiprocessor, by datatype.
    """
    busiest = ceil(kernel.blocks / gpu.multiprocessors) / gpu.clock_hz
    cycles = pipe_cycles(kernel, gpu)
    tensor_cycles = sum(
        product.flops / rate_of(product, tensor_flops_per_cycle, gpu) for product in kernel.products
    )
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
        tensor_s=tensor_cycles / gpu.pipe_efficiency * busiest,
    )


def rate_of(
    product: Product, tensor_flops_per_cycle: Mapping[str, float], gpu: Microarchitecture
) -> float:
    """Return the FLOPs a cycle of a multiprocessor; without tensor cores, those of its lanes."""
    rate = tensor_flops_per_cycle.get(product.datatype)
    if rate is None:
        return 2.0 * gpu.fused_lanes
    share = gpu.warp_product_share if product.is_of_warp else None
    return rate if share is None else rate * share


_SECONDS = tuple(each.name for each in fields(KernelTerms) if each.name != "pipe")


def added_terms(terms: Sequence[tuple[KernelTerms, int]]) -> KernelTerms:
    """Return the terms of kernels that run in sequence.

    Each limit adds up on its own, which equals the sum of their times where one limit decides all.
    """
    longest = max(terms, key=lambda pair: pair[0].time_s * pair[1])[0]
    sums = {
        name: sum(getattr(kernel, name) * count for kernel, count in terms) for name in _SECONDS
    }
    return KernelTerms(pipe=longest.pipe, **sums)


def memory_turns(kernel: KernelAnalysis) -> float:
    """Return the cost of turning from run to run, per run's time."""
    if not kernel.loop_sectors:
        return 0.0
    drift = min(1.0, kernel.loop_rounds / ROUNDS_APART)
    return drift * kernel.loop_runs * MEMORY_TURN_BYTES / (kernel.loop_sectors * SECTOR_BYTES)


def l2_sectors(kernel: KernelAnalysis, gpu: Microarchitecture) -> float:
    """Return the sectors that one block moves to and from L2.

    L1 keeps everything that a block loads if its share of L1 holds it, and then also what the next
    block loads again.
    """
    resident = max(1, gpu.threads_per_multiprocessor // kernel.threads)
    resident = min(resident, gpu.blocks_per_multiprocessor)
    is_kept = kernel.fresh_sectors * SECTOR_BYTES * resident <= gpu.l1_bytes
    fresh = kernel.fresh_sectors - kernel.neighbour_sectors
    return (fresh if is_kept else kernel.load_sectors) + kernel.store_sectors


def pipe_cycles(kernel: KernelAnalysis, gpu: Microarchitecture) -> dict[str, float]:
    """Return each pipe's cycles for one block, those of two pipes on the freer."""
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


_WORTH_REPORTING = 1.5
_PART_WORTH_REPORTING = 0.2


def reasons(
    terms: KernelTerms, analysis: KernelAnalysis | None, *, category: str = ""
) -> tuple[str, ...]:
    """Return the reasons that slow a kernel, the largest term first."""
    if category == COPY:
        return (f"no kernel: a copy of the runtime, {terms.limit}",)
    if analysis is None:
        return (f"no PTX: priced by its category and bytes, {terms.limit}",)
    about = {
        "launch": "shorter than its launch",
        "block turnover": _turnover_reason(analysis),
        "device memory": _memory_reason(analysis),
        "L2": _sectors_reason(analysis),
        "L1": _lines_reason(analysis),
        f"{terms.pipe} pipe": _pipe_reason(terms, analysis),
        "tensor cores": "products on tensor cores",
    }
    worth_s = _PART_WORTH_REPORTING * terms.time_s
    listed = [about[terms.limit]]
    if terms.l2_s > worth_s:
        listed.append(about["L2"])
    if memory_turns(analysis) and terms.memory_s > worth_s:
        listed.append(about["device memory"])
    return tuple(dict.fromkeys(listed))


def _turnover_reason(analysis: KernelAnalysis) -> str:
    sectors = (analysis.fresh_sectors + analysis.store_sectors) * SECTOR_BYTES
    return (
        f"{analysis.blocks} blocks of {analysis.threads} threads start and end for "
        f"{format_bytes_binary(sectors)} each"
    )


def _memory_reason(analysis: KernelAnalysis) -> str:
    if not memory_turns(analysis):
        return "streams through device memory"
    run = analysis.loop_sectors * SECTOR_BYTES / analysis.loop_runs
    return (
        f"{1 + memory_turns(analysis):.1f}x device memory: "
        f"runs of {run:.0f} bytes, row after row, {analysis.loop_rounds:.0f} rounds"
    )


def _sectors_reason(analysis: KernelAnalysis) -> str:
    wasteful = [access for access in analysis.accesses if access.amplification >= _WORTH_REPORTING]
    if not wasteful:
        return "asks L2 again for what it had"
    worst = max(wasteful, key=lambda access: (access.is_store, access.sectors))
    kind, noun = ("write", "stores") if worst.is_store else ("read", "loads")
    return (
        f"{worst.amplification:.0f}x L2 {kind} sectors: {worst.width_bytes}-byte {noun} at "
        f"{worst.stride}-byte stride"
    )


def _lines_reason(analysis: KernelAnalysis) -> str:
    lines, passes = analysis.l1_lines, analysis.shared_passes
    unit = "lines of L1" if lines >= passes else "passes of shared memory"
    return f"{max(lines, passes) / analysis.warps:.0f} {unit} a warp"


def _pipe_reason(terms: KernelTerms, analysis: KernelAnalysis) -> str:
    issued = analysis.slots.issued / analysis.warps
    return f"the {terms.pipe} pipe: {issued:.0f} instructions a warp of {WARP} threads"
