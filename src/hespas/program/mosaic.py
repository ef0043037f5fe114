"""A kernel of a TPU that its author wrote: what Mosaic's compiler is given, as plain values.

Pallas lowers such a kernel to a function that runs once for each step of a grid. Its windows say
which block of each array a step works on; its operations are those of MLIR's dialects ``arith``,
``math``, ``vector``, ``memref``, ``scf`` and of Mosaic's own, ``tpu``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec


class KernelType(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a value inside of a kernel.

    A scalar has no shape, and no ``space``; a vector has a shape; a reference to memory has
    ``space`` too (``vmem``, ``smem``, ``any``, ``hbm``, ``semaphore_mem``). ``element`` is as MLIR
    spells it.
    """

    element: str
    shape: tuple[int, ...] = ()
    is_vector: bool = False
    space: str = ""


class KernelOp(msgspec.Struct, frozen=True, kw_only=True):
    """One operation. Values are numbers, which `MosaicKernel.types` lists the types of.

    ``attributes`` are MLIR's texts by name; ``place`` is a source line or empty.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attributes: Mapping[str, str]
    regions: tuple[KernelBlock, ...] = ()
    place: str = ""


class KernelBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A straight list of operations and what they may use; the last one is the terminator."""

    arguments: tuple[int, ...]
    operations: tuple[KernelOp, ...]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How an array is cut into blocks: the shape of one, and the function that says which.

    ``indices`` is None where the kernel gets the array as a whole. It returns numbers of blocks,
    or, with ``by_element``, of a block's first elements.
    """

    bounds: tuple[int, ...] = ()
    indices: KernelBlock | None = None
    by_element: bool = False


class MosaicKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel: its grid, and what one step does.

    The arguments of ``body`` are the step's place in the grid, ``prefetched`` tables of scalars,
    one for each of ``windows`` (operands, then results), and scratch memory. A length of ``grid``
    is None where the program decides it as it runs; those are the first operands of the call.
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
        """The values that stand for the windows' arrays or blocks."""
        first = len(self.grid) + self.prefetched
        return self.body.arguments[first : first + len(self.windows)]

    @property
    def table_arguments(self) -> tuple[int, ...]:
        """The values that stand for the prefetched tables."""
        first = len(self.grid)
        return self.body.arguments[first : first + self.prefetched]


def kernel_ops(block: KernelBlock) -> Iterator[KernelOp]:
    """Yield every operation of a block and of the regions inside, outer before inner."""
    for op in block.operations:
        yield op
        for region in op.regions:
            yield from kernel_ops(region)
