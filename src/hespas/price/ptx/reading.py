"""Analyse kernels: walk a block of each and count its work."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.price.ptx.opcodes import NOTHING, slots_of
from hespas.price.ptx.parser import Instruction, Kernel, is_load, read_kernel
from hespas.price.ptx.products import products_of
from hespas.price.ptx.terms import WARP, Access, KernelAnalysis, Slots
from hespas.price.ptx.walk import AccessCounts, Walk, walk, width_bytes
from hespas.program.kernels import KernelLaunch

_NEIGHBOURS = (1, 2, 4)
_BARRIERS = frozenset({"bar", "barrier"})


@lru_cache(maxsize=1)
def walk_middle(text: str, launch: KernelLaunch) -> Walk:
    """Read a kernel's PTX and walk its middle block.

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
        return walk(kernel, launch, index=blocks // 2)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # A compiler may write anything: one unreadable kernel must not lose the program.
        raise ProgramError(f"its PTX can't be followed: {error}", location=launch.kernel) from error


def analysis_of(walked: Walk, launch: KernelLaunch) -> KernelAnalysis:
    """Analyse a kernel whose middle block was walked."""
    instructions, threads = walked.kernel.instructions, walked.threads
    warps, runs = -(-threads // WARP), walked.runs.tolist()
    inside = {number for body in walked.flow.loops.values() for number in body}
    counts = [0.0] * len(instructions)
    for block, count in zip(walked.flow.blocks, runs, strict=True):
        counts[block.start : block.stop] = [count] * (block.stop - block.start)
    executed = list(zip(instructions, counts, strict=True))
    counted = [(instructions[position], access) for position, access in walked.accesses.items()]
    accesses = [(instruction, access) for instruction, access in counted if access.warps]
    load_sectors, fresh_sectors, loop_sectors, loop_runs = walked.sums.tolist()
    return KernelAnalysis(
        name=walked.kernel.name,
        blocks=prod(launch.grid),
        threads=threads,
        slots=_slots(walked.kernel, counts),
        load_sectors=load_sectors,
        fresh_sectors=fresh_sectors,
        store_sectors=sum(
            access.sectors for instruction, access in accesses if not is_load(instruction)
        ),
        loop_sectors=loop_sectors,
        loop_runs=loop_runs,
        loop_rounds=max((runs[number] / warps for number in inside), default=0.0),
        l1_lines=sum(access.lines for _, access in accesses),
        shared_passes=sum(access.passes for _, access in counted),
        shared_bytes=launch.shared_memory_bytes,
        barriers=sum(count for instruction, count in executed if instruction.name in _BARRIERS)
        / warps,
        accesses=tuple(_access(instruction, access) for instruction, access in accesses),
        unknown_loops=len(walked.unknown_loops),
        data_branches=len(walked.data_branches),
        data_addresses=len(walked.data_addresses),
        products=products_of(walked.kernel, counts, warps=warps),
    )


def _slots(kernel: Kernel, counts: list[float]) -> Slots:
    sums: dict[Slots, float] = {}
    for slots, count in zip(slots_of(kernel.instructions), counts, strict=True):
        if count and slots is not NOTHING:
            sums[slots] = sums.get(slots, 0.0) + count
    total = NOTHING
    for slots, count in sums.items():
        total = total.plus(slots, count)
    return total


def _access(instruction: Instruction, counts: AccessCounts) -> Access:
    width = width_bytes(instruction)
    return Access(
        is_store=not is_load(instruction),
        width_bytes=width,
        stride=counts.stride,
        bytes=counts.threads * width,
        sectors=counts.sectors,
    )


def with_neighbour(kernel: KernelAnalysis, walked: Walk, launch: KernelLaunch) -> KernelAnalysis:
    """Count the sectors that a later block loads again.

    Blocks one, two and four farther on are tried: what a row of four blocks shares comes again with
    the next row.
    """
    farther = [kernel.blocks // 2 + distance for distance in _NEIGHBOURS]
    shared = [
        len(
            np.intersect1d(
                walked.seen, walk(walked.kernel, launch, index=index, flow=walked.flow).seen
            )
        )
        for index in farther
        if index < kernel.blocks
    ]
    return replace(kernel, neighbour_sectors=float(max(shared, default=0)))
