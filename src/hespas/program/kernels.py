"""Define the kernels of compilers, Pallas and Triton.

Pallas lowers a kernel for TPUs (`MosaicKernel`) to a function that runs once for each step of a
grid. Its windows say which block of each array a step works on; its operations are those of MLIR's
dialects ``arith``, ``math``, ``vector``, ``memref``, ``scf`` and of Mosaic's own, ``tpu``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec


class KernelType(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a value inside a kernel.

    A scalar has no shape, and no ``space``; a vector has a shape; a reference to memory has
    ``space`` too (``vmem``, ``smem``, ``any``, ``hbm``, ``semaphore_mem``). ``element`` is as MLIR
    spells it.
    """

    element: str
    shape: tuple[int, ...] = ()
    is_vector: bool = False
    space: str = ""


class KernelOp(msgspec.Struct, frozen=True, kw_only=True):
    """One operation; operands and results are indices into `MosaicKernel.types`.

    ``attributes`` are MLIR's texts by name; ``place`` is a source line or empty.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: Mapping[str, str]
    regions: tuple[KernelBlock, ...] = ()
    place: str = ""


class KernelBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Operations without branches; the last is the terminator."""

    arguments: tuple[int, ...]
    operations: tuple[KernelOp, ...]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of an array's blocks, and their selection.

    The function ``indices`` returns the indices of a block, or, with ``by_element``, of its first
    element. It is None if the kernel gets the whole array.
    """

    bounds: tuple[int, ...] = ()
    indices: KernelBlock | None = None
    by_element: bool = False


class MosaicKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A TPU kernel: grid, windows and a step's body.

    The arguments of ``body`` are the step's position in the grid, ``prefetched`` tables of scalars,
    one argument for each of ``windows`` (operands, then results), and scratch memory. A length of
    ``grid`` is None if the program decides it as it runs; those are the first operands of the call.
    ``parallel`` marks dimensions whose steps may run at the same time.
    """

    name: str
    grid: tuple[int | None, ...]
    parallel: tuple[bool, ...]
    prefetched: int
    windows: tuple[Window, ...]
    body: KernelBlock
    types: tuple[KernelType, ...]

    @property
    def window_arguments(self) -> tuple[int, ...]:
        """The body's arguments for the windows."""
        first = len(self.grid) + self.prefetched
        return self.body.arguments[first : first + len(self.windows)]

    @property
    def table_arguments(self) -> tuple[int, ...]:
        """The body's arguments for the prefetched tables."""
        first = len(self.grid)
        return self.body.arguments[first : first + self.prefetched]


def kernel_ops(block: KernelBlock) -> Iterator[KernelOp]:
    """Yield every operation of a block, outer before inner."""
    for op in block.operations:
        yield op
        for region in op.regions:
            yield from kernel_ops(region)


class TritonType(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a value: scalars have no shape, pointers the pointee's element."""

    element: str
    shape: tuple[int, ...] = ()


class TritonOp(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that runs ``count`` times; ``body`` is a reduction's."""

    name: str
    operands: tuple[TritonType, ...]
    results: tuple[TritonType, ...]
    count: int = 1
    body: tuple[TritonOp, ...] = ()
    precision: str = ""


class TritonKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A Triton kernel with loops opened and unused loads dropped.

    ``notes`` are the assumptions about loops and branches that depend on data.
    """

    name: str
    operations: tuple[TritonOp, ...]
    notes: tuple[str, ...] = ()


Extent = tuple[int, int, int]


class KernelLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch of a kernel by an instruction.

    ``instruction`` is the compiler's name for it (`Op.instruction`) in the main function,
    ``kernel`` the entry point in the PTX: equal fusions share one. ``grid`` counts blocks,
    ``block`` threads. Launches of one instruction with different ``configuration`` are
    alternatives: the fastest one runs. ``integers`` has the value of each parameter that is an
    integer, None for others; without it parameters of 32 bits are 0.
    """

    instruction: str
    kernel: str
    grid: Extent
    block: Extent
    shared_memory_bytes: int
    configuration: int = 0
    integers: tuple[int | None, ...] = ()


class CompiledKernels(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of a compiled program.

    ``launches`` stand in schedule order; ``ptx`` holds each kernel's text by its name, without
    the headers that kernels of a module share. ``target`` is what the PTX was written for
    (``sm_90a``), ``program`` the digest of the program's instructions
    (`hespas.program.program.instructions_digest`); both are empty if unknown.
    """

    launches: tuple[KernelLaunch, ...]
    ptx: Mapping[str, str]
    target: str = ""
    program: str = ""

    @property
    def launches_of_instruction(self) -> Mapping[str, tuple[KernelLaunch, ...]]:
        """The launches of each instruction."""
        launches: dict[str, tuple[KernelLaunch, ...]] = {}
        for launch in self.launches:
            launches[launch.instruction] = (*launches.get(launch.instruction, ()), launch)
        return launches


def encode_kernels(kernels: CompiledKernels) -> bytes:
    """Return the kernels as JSON."""
    return msgspec.json.encode(kernels)


def decode_kernels(source: bytes) -> CompiledKernels:
    """Return the kernels that `encode_kernels` wrote.

    Raises `msgspec.DecodeError` for anything else, and `UnicodeDecodeError` for text that is not
    UTF-8.

    >>> empty = CompiledKernels(launches=(), ptx={})
    >>> decode_kernels(encode_kernels(empty)) == empty
    True
    """
    return msgspec.json.decode(source, type=CompiledKernels)
