"""Analyse kernels: walk a block of each and count its work.

Source of shapes and types of products: NVIDIA, "Parallel Thread Execution ISA": ``mma``,
``wgmma.mma_async`` and ``tcgen05.mma`` with its instruction descriptor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.price.ptx.opcodes import NOTHING, slots_of
from hespas.price.ptx.parser import Instruction, Kernel, is_load, read_kernel
from hespas.price.ptx.terms import WARP, Access, KernelAnalysis, Product, Slots
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


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_WARPS_OF_GROUP = 4
_DATATYPES = {
    "bf16": "bf16",
    "f16": "f16",
    "tf32": "tf32",
    "e4m3": "f8E4M3FN",
    "e5m2": "f8E5M2",
    "s8": "i8",
    "u8": "i8",
    "f64": "f64",
}
# The datatype and the depth of one product, by the kind of `tcgen05.mma`.
_KINDS = {
    "f16": ("bf16", 16),
    "tf32": ("tf32", 8),
    "f8f6f4": ("f8E4M3FN", 32),
    "i8": ("i8", 32),
    "mxf8f6f4": ("f8E4M3FN", 32),
    "mxf4": ("f4E2M1FN", 64),
    "mxf4nvf4": ("f4E2M1FN", 64),
}
_COLUMNS_AT, _COLUMNS_MASK, _COLUMNS_UNIT = 17, 0x3F, 8
_ROWS_AT, _ROWS_MASK, _ROWS_UNIT = 24, 0x1F, 16


def products_of(kernel: Kernel, counts: Sequence[float], *, warps: int) -> tuple[Product, ...]:
    """Sum the products of a block; ``counts`` has the warps that executed each instruction.

    >>> from hespas.price.ptx.parser import read_kernel
    >>> text = ".entry k() { mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2}, "
    >>> kernel = read_kernel(text + "{%r3}, {%r4}; ret; }")
    >>> [each.flops for each in products_of(kernel, [4.0, 4.0], warps=4)]
    [16384.0]
    """
    sums: dict[tuple[str, bool], float] = {}
    constants = _constants(kernel)
    for instruction, count in zip(kernel.instructions, counts, strict=True):
        if count and instruction.name in {"mma", "wgmma", "tcgen05"}:
            for datatype, flops, executions in _product(instruction, constants, count, warps):
                key = (datatype, instruction.name == "mma")
                sums[key] = sums.get(key, 0.0) + flops * executions
    return tuple(
        Product(datatype=datatype, flops=flops, is_of_warp=is_of_warp)
        for (datatype, is_of_warp), flops in sums.items()
    )


def _product(
    instruction: Instruction, constants: Mapping[str, int], count: float, warps: int
) -> Iterator[tuple[str, float, float]]:
    """Yield the datatype, the operations, and how often the block executes the instruction."""
    if instruction.name == "tcgen05":
        if "mma" in instruction.parts:
            yield from _fifth_generation(instruction, constants, count / warps)
        return
    types = [_DATATYPES[part] for part in instruction.parts if part in _DATATYPES]
    shape = _SHAPE.search(instruction.opcode)
    if shape is not None and types:
        executions = count if instruction.name == "mma" else count / _WARPS_OF_GROUP
        yield types[0], 2.0 * prod(map(int, shape.groups())), executions


def _fifth_generation(
    instruction: Instruction, constants: Mapping[str, int], executions: float
) -> Iterator[tuple[str, float, float]]:
    """Read the shape in the descriptor, which one thread hands over."""
    words = instruction.opcode.replace("::", ".").split(".")
    kind = next((word for word in words[words.index("kind") + 1 :] if word in _KINDS), None)
    descriptor = constants.get(str(instruction.sources[3]))
    if kind is None or descriptor is None:
        return
    datatype, depth = _KINDS[kind]
    rows = (descriptor >> _ROWS_AT & _ROWS_MASK) * _ROWS_UNIT
    columns = (descriptor >> _COLUMNS_AT & _COLUMNS_MASK) * _COLUMNS_UNIT
    yield datatype, 2.0 * rows * columns * depth, executions


def _constants(kernel: Kernel) -> dict[str, int]:
    return {
        instruction.writes[0]: instruction.sources[0]
        for instruction in kernel.instructions
        if instruction.name == "mov"
        and len(instruction.writes) == 1
        and isinstance(instruction.sources[0], int)
    }
