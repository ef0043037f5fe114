"""Count the products that a kernel computes on tensor cores.

Source of shapes and types: NVIDIA, "Parallel Thread Execution ISA": ``mma``, ``wgmma.mma_async``
and ``tcgen05.mma`` with its instruction descriptor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from hespas.price.ptx.parser import Instruction, Kernel
from hespas.price.ptx.terms import Product

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
