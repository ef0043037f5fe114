"""Count the kernel of a ``tpu_custom_call``.

A block is fetched when a step needs another block than the step before, and written back after its
last consecutive step: a block that stays the same from step to step stays on the chip.

Source: the JAX documentation, "Pallas: grids and BlockSpecs" and "TPU pipelining".
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import mul

import msgspec
import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.errors import CostError, HespasError, ProgramError, UnsupportedError, option
from hespas.program.attrs import MOSAIC, CustomCallAttrs, DeviceTables, Table
from hespas.program.experts import grouped_product, steps_of_tiles
from hespas.program.kernels import MosaicKernel, Window, kernel_ops
from hespas.program.operations.contraction import Multiplier, multiplier_of
from hespas.program.operations.traits import arithmetic_type
from hespas.program.program import Op
from hespas.program.types import TensorType, element_type, tensors
from hespas.program.work import Work, flop_counts, summed
from hespas.work.library_config import MosaicConfig, mosaic_config
from hespas.work.mosaic.scalars import Numbers, Scalar
from hespas.work.mosaic.tally import KernelProduct, Tally, Unit, VectorUse
from hespas.work.mosaic.walk import Walk
from hespas.xla.mlir.kernels import read_mosaic


@frozen
class Moved:
    """The blocks of an array moved, and their bytes."""

    blocks: int
    size_bytes: float


def moved(walk: Walk, window: Window, array: TensorType) -> Moved:
    """Return the blocks moved over the whole grid.

    Bytes beyond the array's edge do not count. Raises `CostError` if the blocks and the array have
    different ranks.
    """
    if window.indices is None:
        return Moved(blocks=1, size_bytes=array.size_bytes)
    indices = walk.returned(window.indices)
    if not len(indices) == len(window.bounds) == array.rank:
        raise CostError(
            f"kernel {walk.kernel.name} has blocks of {len(window.bounds)} dimensions on an array "
            f"of {array.rank}"
        )
    changes = _changes(indices, walk.grid or (1,))
    elements = changes.astype(np.float64)
    sizes = zip(indices, window.bounds, array.shape, strict=True)
    for index, bound, length in sizes:
        elements = elements * _elements_inside(index, bound, length, by_element=window.by_element)
    return Moved(
        blocks=int(changes.sum()),
        size_bytes=float(elements.sum()) * array.element.bits / 8,
    )


def _elements_inside(index: Scalar, bound: int, length: int, *, by_element: bool) -> Numbers | int:
    if not index.is_known:
        return min(bound, length)
    first = index.numbers * (1 if by_element else bound)
    return np.clip(length - first, 0, bound)


def _changes(indices: Sequence[Scalar], grid: tuple[int, ...]) -> Numbers:
    """Return the steps whose block differs from the previous step's.

    The axes of the result are those of the grid, whose last dimension varies fastest.
    """
    rank = max((index.numbers.ndim for index in indices), default=len(grid))
    shape = (*grid, *(1,) * (rank - len(grid)))
    changed = np.zeros(int(np.prod(grid)), dtype=bool)
    changed[0] = True
    for index in indices:
        if index.numbers.size == 1:
            continue
        order = np.broadcast_to(index.numbers, shape).reshape(-1)
        changed[1:] |= order[1:] != order[:-1]
    return changed.reshape(shape)


class KernelLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The work of all steps of a kernel.

    ``products`` and ``vectors`` have their repetition counts, in the kernel's order. ``bytes_read``
    and ``bytes_written`` cross the memory bus. ``is_parallel`` says that two cores of a chip can
    share the steps. ``notes`` are the assumptions.
    """

    name: str
    steps: int
    products: tuple[tuple[KernelProduct, float], ...]
    vectors: tuple[tuple[VectorUse, float], ...]
    bytes_read: int
    bytes_written: int
    is_parallel: bool
    notes: tuple[str, ...]

    @property
    def work(self) -> Work:
        """The FLOPs by type, transcendental functions and traffic."""
        parts = [_product_work(item, count) for item, count in self.products]
        parts += [_vector_work(item, count) for item, count in self.vectors if item.is_arithmetic]
        parts.append(Work(bytes_read=self.bytes_read, bytes_written=self.bytes_written))
        return summed(parts)


def multiplied(product: KernelProduct) -> Multiplier:
    """Return the product type and FLOPs of a multiply-accumulate."""
    precision = ("HIGHEST",) if product.is_full_precision else ()
    return multiplier_of(element_type(product.left), element_type(product.right), precision, "")


def _product_work(product: KernelProduct, count: float) -> Work:
    multiplier = multiplied(product)
    flops = multiplier.flops * product.multiply_accumulates * count
    return Work(flops=flop_counts(multiplier.type_name, round(flops)))


def _vector_work(use: VectorUse, count: float) -> Work:
    elements = round(use.elements * count)
    if use.unit is Unit.FUNCTIONS:
        return Work(transcendentals=elements)
    name = arithmetic_type(element_type(use.kind.element))
    return Work(flops=flop_counts(name, elements))


def kernel_load(op: Op) -> KernelLoad:
    """Return the work of a ``tpu_custom_call``'s kernel.

    Raises `CostError` for a kernel that cannot be read or has an operation without a model.
    """
    attrs = op.attrs
    if not isinstance(attrs, CustomCallAttrs):
        raise CostError("it has no kernel", location=op.location)
    operands = tuple([kind for value in op.operands for kind in tensors(value.type)])
    results = tuple([kind for value in op.results for kind in tensors(value.type)])
    kinds = attrs.tables or (DeviceTables(tables=()),)
    try:
        config, groups = mosaic_config(op), _groups(op)
        loads = [
            _load(config, device_kind.tables, operands, results, groups) for device_kind in kinds
        ]
        return _slowest(loads, [device_kind.devices for device_kind in kinds])
    except (ProgramError, UnsupportedError) as error:
        raise CostError(
            f"the work of custom call {MOSAIC!r} is not known: {error.message}",
            location=op.location,
            hint=f"give {option('custom_call')} {MOSAIC}=flops:N,type:T,bytes:N",
        ) from error
    except HespasError as error:
        error.location = op.location
        raise


def _slowest(loads: Sequence[KernelLoad], devices: Sequence[int]) -> KernelLoad:
    """Return the load of the busiest device.

    The others wait for it. ``devices`` is the number of devices with each of ``loads``.
    """
    flops = [load.work.total_flops for load in loads]
    index = flops.index(max(flops))
    mean = sum(map(mul, flops, devices)) / max(1, sum(devices))
    if len(set(flops)) == 1:
        return loads[index]
    note = (
        f"kernel {loads[index].name}: devices have different blocks to compute; it takes as long "
        f"as on the device that has most, {flops[index] / mean:.3g} times the mean"
    )
    return msgspec.structs.replace(loads[index], notes=(*loads[index].notes, note))


class _Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of each group; ``room`` rows fit in all."""

    rows: tuple[int, ...]
    room: int


def _groups(op: Op) -> _Groups | None:
    attrs, product = op.attrs, grouped_product(op)
    if not isinstance(attrs, CustomCallAttrs) or not attrs.group_rows or product is None:
        return None
    return _Groups(rows=attrs.group_rows, room=product.rows)


@lru_cache(maxsize=1024)
def _load(
    config: MosaicConfig,
    tables: tuple[Table, ...],
    operands: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
    groups: _Groups | None,
) -> KernelLoad:
    kernel = read_mosaic(_body(config))
    grid, notes = _grid(kernel, groups)
    dynamic = kernel.grid.count(None)
    inputs_of_body = operands[dynamic:]
    arrays = (*inputs_of_body[kernel.prefetched :], *results)[: len(kernel.windows) or None]
    arguments = _array_arguments(kernel)
    if len(arguments) < len(arrays):
        raise CostError(f"kernel {kernel.name} takes {len(arguments)} of {len(arrays)} arrays")
    walk = Walk(
        kernel=kernel,
        grid=grid,
        tables=_tables(kernel, tables, dynamic),
        array_bytes={
            argument: array.size_bytes for argument, array in zip(arguments, arrays, strict=False)
        },
    )
    tally = walk.total()
    if walk.guesses_loops and config.cost_estimate is not None:
        # The author's cost is better than an assumption.
        raise UnsupportedError(f"how often loops of kernel {kernel.name} run depends on data")
    inputs = len(inputs_of_body) - kernel.prefetched
    read, written = _traffic(walk, tally, arrays, inputs)
    read += sum(kind.size_bytes for kind in inputs_of_body[: kernel.prefetched])
    return KernelLoad(
        name=kernel.name,
        steps=prod(grid),
        products=tuple(tally.products.items()),
        vectors=tuple(tally.vectors.items()),
        bytes_read=round(read),
        bytes_written=round(written),
        is_parallel=any(kernel.parallel),
        notes=(*notes, *_table_assumptions(kernel, tables, dynamic), *walk.notes),
    )


def _body(config: MosaicConfig) -> bytes:
    try:
        return b64decode(config.body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProgramError(f"its kernel is not in base64: {error}") from error


def _grid(kernel: MosaicKernel, groups: _Groups | None) -> tuple[tuple[int, ...], list[str]]:
    """Return the grid and the assumptions about it.

    A length that depends on data is that of the tables that it indexes. For a product of ``groups``
    it is the number of row tiles that they touch; its tables have space for one more tile for each
    group but the first.
    """
    notes: list[str] = []
    grid: list[int] = []
    for axis, length in enumerate(kernel.grid):
        longest = _shortest_table(kernel, axis) if length is None else length
        if length is None and groups is not None:
            tiles = longest - len(groups.rows) + 1
            grid.append(max(1, steps_of_tiles(groups.rows, -(-groups.room // max(1, tiles)))))
            continue
        grid.append(longest)
        if length is None:
            notes.append(
                f"kernel {kernel.name}: the length of dimension {axis} of its grid depends on data "
                f"and is taken to be the {grid[-1]} entries of the tables that it indexes"
            )
    return tuple(grid), notes


def _shortest_table(kernel: MosaicKernel, axis: int) -> int:
    lengths: list[int] = []
    blocks = [window.indices for window in kernel.windows if window.indices is not None]
    for block in (kernel.body, *blocks):
        tables = block.arguments[len(kernel.grid) :][: kernel.prefetched]
        axis_values = {block.arguments[axis]}
        for op in kernel_ops(block):
            if op.name == "arith.index_cast" and op.operands[0] in axis_values:
                axis_values.update(op.results)
            elif op.name == "memref.load" and op.operands[0] in tables:
                table, *indices = op.operands
                sizes = zip(indices, kernel.types[table].shape, strict=True)
                lengths += [length for index, length in sizes if index in axis_values]
    if not lengths:
        raise UnsupportedError(
            f"how long dimension {axis} of the grid of kernel {kernel.name} is depends on data"
        )
    return min(lengths)


def _tables(
    kernel: MosaicKernel, tables: Sequence[Table], dynamic: int
) -> Mapping[int, NDArray[np.int64]]:
    numbers_of_argument: dict[int, NDArray[np.int64]] = {}
    arguments = kernel.table_arguments
    for table in tables:
        position = table.operand - dynamic
        if 0 <= position < len(arguments):
            numbers_of_argument[arguments[position]] = np.array(table.numbers, dtype=np.int64)
    return numbers_of_argument


def _table_assumptions(kernel: MosaicKernel, tables: Sequence[Table], dynamic: int) -> list[str]:
    known_positions = {table.operand - dynamic for table in tables}
    unknown_positions = [
        position for position in range(kernel.prefetched) if position not in known_positions
    ]
    if not unknown_positions:
        return []
    subject = f"what {len(unknown_positions)} of its tables of scalars hold is not known"
    return [f"kernel {kernel.name}: {subject}; blocks that they choose are taken to differ"]


_COPIED_BY_HAND = frozenset({"any", "hbm", "semaphore_mem"})


def _array_arguments(kernel: MosaicKernel) -> tuple[int, ...]:
    first = len(kernel.grid) + kernel.prefetched
    return kernel.window_arguments or kernel.body.arguments[first:]


def _traffic(
    walk: Walk, tally: Tally, arrays: Sequence[TensorType], inputs: int
) -> tuple[float, float]:
    """Return the bytes read and written.

    They are those of the pipeline and of explicit copies. A kernel without a grid gets each array
    whole, except those that it copies itself.
    """
    kernel = walk.kernel
    read, written = sum(tally.read.values()), sum(tally.written.values())
    windows = kernel.windows or (Window(),) * len(arrays)
    for position, (array, window) in enumerate(zip(arrays, windows, strict=False)):
        space = kernel.types[_array_arguments(kernel)[position]].space
        if not array.is_in_device_memory or space in _COPIED_BY_HAND:
            continue
        size = moved(walk, window, array).size_bytes
        if position < inputs:
            read += size
        else:
            written += size
    return read, written
