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

from dataclasses import dataclass
from math import ceil, hypot

from hespas.estimate.kernel.access import SECTOR_BYTES, WARP
from hespas.estimate.kernel.analysis import KernelAnalysis
from hespas.hardware.microarchitecture import Microarchitecture

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

    What may run on two pipes fills the one that has room.
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
