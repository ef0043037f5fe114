"""Read kernels: walk a block of each, and count what it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

import numpy as np
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.price.ptx.parser import Instruction, Kernel, read_kernel
from hespas.price.ptx.pipes import NOTHING, slots_of
from hespas.price.ptx.terms import WARP, Access, KernelAnalysis, Slots
from hespas.price.ptx.walk import AccessCounts, Walk, walk, walk_along, width_bytes
from hespas.program.kernels import KernelLaunch

_NEIGHBOURS = (1, 2, 4)
_TENSOR_CORE = frozenset({"mma", "wgmma", "tcgen05"})


def analyse(text: str, launch: KernelLaunch) -> KernelAnalysis:
    """Read a kernel's PTX and walk its middle block; errors as for `walk_middle`."""
    return analysis_of(walk_middle(text, launch), launch)


@lru_cache(maxsize=1)
def walk_middle(text: str, launch: KernelLaunch) -> Walk:
    """Read a kernel's PTX and walk its middle block; the last one is remembered.

    Raises `ProgramError` for a text without a kernel, for one that can't be followed, and for a
    launch without threads.
    """
    threads, blocks = prod(launch.block), prod(launch.grid)
    if threads < 1 or blocks < 1:
        raise ProgramError(
            f"the launch has {blocks} blocks of {threads} threads",
            location=launch.kernel,
            hint="give 1 or more of each",
        )
    kernel = read_kernel(text, location=launch.kernel)
    try:
        return walk(kernel, grid=launch.grid, block=launch.block, index=blocks // 2)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Whatever a compiler may write: a program isn't lost for one kernel of it.
        raise ProgramError(f"its PTX can't be followed: {error}", location=launch.kernel) from error


def analysis_of(walked: Walk, launch: KernelLaunch) -> KernelAnalysis:
    """Return what a kernel does whose middle block was walked."""
    kernel, threads = walked.kernel, walked.threads
    counts = _counts(walked)
    return KernelAnalysis(
        name=kernel.name,
        blocks=prod(launch.grid),
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


def with_neighbour(kernel: KernelAnalysis, walked: Walk, launch: KernelLaunch) -> KernelAnalysis:
    """Return the analysis with what the middle block, that was walked, and one soon after it load.

    Blocks one, two and four farther on are tried: what a row of four blocks shares comes again
    with the next row.
    """
    farther = [kernel.blocks // 2 + distance for distance in _NEIGHBOURS]
    seen = [
        walk_along(walked.kernel, walked.flow, grid=launch.grid, block=launch.block, index=at).seen
        for at in farther
        if at < kernel.blocks
    ]
    shared = [len(np.intersect1d(walked.seen, each)) for each in seen]
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
    total = NOTHING
    for slots, count in sums.items():
        total = total.plus(slots, count)
    return total


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
