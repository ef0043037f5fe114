"""What a kernel does, as far as its PTX and its launch say: the numbers that a price needs."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import msgspec
import numpy as np
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.estimate.kernel.pipes import NOTHING, Slots, slots_of
from hespas.estimate.kernel.ptx import Instruction, Kernel, read_kernel
from hespas.estimate.kernel.sectors import SECTOR_BYTES, WARP
from hespas.estimate.kernel.state import AccessCounts, Walk
from hespas.estimate.kernel.step import width_bytes
from hespas.estimate.kernel.walk import walk
from hespas.program.kernels import KernelLaunch

_NEIGHBOURS = (1, 2, 4)
_TENSOR_CORE = frozenset({"mma", "wgmma", "tcgen05"})


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One load or store of global memory by one block of threads.

    ``bytes`` is what its threads ask for, ``sectors`` what L2 sees, ``stride`` the distance
    between neighbouring threads in bytes.
    """

    is_store: bool
    width_bytes: int
    stride: int
    bytes: float
    sectors: float

    @property
    def amplification(self) -> float:
        """Bytes of sectors per byte asked for; below 1 where threads read the same."""
        return self.sectors * SECTOR_BYTES / self.bytes if self.bytes else 0.0


class KernelAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """One block of threads, in the middle of the grid, which stands for all.

        ``slots`` are machine instructions of all its warps. ``load_sectors`` is what loads ask of
        L2 if L1 holds what one straight stretch of code loads, ``fresh_sectors`` if it holds
    XX``l1_lines`` are
        cycles of the L1 cache, ``shared_passes`` cycles of shared memory. ``barriers`` counts waits
        of the whole block.
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
    uses_tensor_cores: bool
    accesses: tuple[Access, ...]
    unknown_loops: int
    data_branches: int
    data_addresses: int
    neighbour_sectors: float = 0.0

    @property
    def warps(self) -> int:
        """Warps in a block."""
        return -(-self.threads // WARP)


def analyse(text: str, launch: KernelLaunch) -> KernelAnalysis:
    """Read a kernel's PTX and walk its middle block.

    Raises `ProgramError` for a text without a kernel, for one that can't be followed, and for a
    launch without threads.
    """
    threads, blocks = prod(launch.block), prod(launch.grid)
    if threads < 1 or blocks < 1:
        raise ProgramError(
            f"the launch has {blocks} blocks of {threads} threads",
            place=launch.kernel,
            mend="give 1 or more of each",
        )
    kernel = read_kernel(text, place=launch.kernel)
    try:
        walked = walk(kernel, grid=launch.grid, block=launch.block, index=blocks // 2)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Whatever a compiler may write: a program isn't lost for one kernel of it.
        raise ProgramError(f"its PTX can't be followed: {error}", place=launch.kernel) from error
    return _analysis(kernel, walked, launch, threads=threads, blocks=blocks)


def _analysis(
    kernel: Kernel, walked: Walk, launch: KernelLaunch, *, threads: int, blocks: int
) -> KernelAnalysis:
    counts = _counts(walked)
    return KernelAnalysis(
        name=kernel.name,
        blocks=blocks,
        threads=threads,
        slots=_slots(kernel, counts),
        load_sectors=walked.load_sectors,
        fresh_sectors=walked.fresh_sectors,
        store_sectors=sum(each.sectors for i, each in _global(walked) if _is_store(kernel, i)),
        loop_sectors=walked.loop_sectors,
        loop_runs=walked.loop_runs,
        loop_rounds=_rounds(walked),
        l1_lines=sum(each.lines for _, each in _global(walked)),
        shared_passes=sum(each.passes for each in walked.accesses.values()),
        shared_bytes=launch.shared_memory_bytes,
        barriers=sum(
            count
            for each, count in zip(kernel.instructions, counts, strict=True)
            if each.name in {"bar", "barrier"}
        )
        / -(-threads // WARP),
        uses_tensor_cores=any(each.name in _TENSOR_CORE for each in kernel.instructions),
        accesses=tuple(_access(kernel.instructions[i], each) for i, each in _global(walked)),
        unknown_loops=len(walked.unknown_loops),
        data_branches=len(walked.data_branches),
        data_addresses=len(walked.data_addresses),
    )


def _rounds(walked: Walk) -> float:
    """Return how often the busiest loop goes round."""
    inside = {number for body in walked.flow.loops.values() for number in body}
    warps = -(-walked.threads // WARP)
    return max((walked.runs[number] / warps for number in inside), default=0.0)


def with_neighbour(kernel: KernelAnalysis, text: str, launch: KernelLaunch) -> KernelAnalysis:
    """Return the analysis with what the middle block and one soon after it both load.

    Blocks one, two and four farther on are tried: what a row of four blocks shares comes again
    with the next row.
    """
    read = read_kernel(text, place=launch.kernel)
    middle = kernel.blocks // 2
    seen = {
        distance: walk(read, grid=launch.grid, block=launch.block, index=middle + distance).seen
        for distance in (0, *_NEIGHBOURS)
        if middle + distance < kernel.blocks
    }
    shared = [len(np.intersect1d(seen[0], seen[each])) for each in seen if each]
    return replace(kernel, neighbour_sectors=float(max(shared, default=0)))


def _counts(walked: Walk) -> list[float]:
    """Return for each instruction how many warps ran it."""
    counts = [0.0] * len(walked.kernel.instructions)
    for block, runs in zip(walked.flow.blocks, walked.runs, strict=True):
        counts[block.start : block.stop] = [runs] * (block.stop - block.start)
    return counts


def _slots(kernel: Kernel, counts: list[float]) -> Slots:
    sums: dict[Slots, float] = {}
    for slots, count in zip(slots_of(kernel.instructions), counts, strict=True):
        if count and slots is not NOTHING:
            sums[slots] = sums.get(slots, 0.0) + count
    return sum((slots * count for slots, count in sums.items()), NOTHING)


def _global(walked: Walk) -> Iterator[tuple[int, AccessCounts]]:
    for position, counts in walked.accesses.items():
        if counts.warps:
            yield position, counts


def _is_store(kernel: Kernel, position: int) -> bool:
    return kernel.instructions[position].name != "ld"


def _access(instruction: Instruction, counts: AccessCounts) -> Access:
    width = width_bytes(instruction)
    return Access(
        is_store=instruction.name != "ld",
        width_bytes=width,
        stride=counts.stride,
        bytes=counts.threads * width,
        sectors=counts.sectors,
    )
