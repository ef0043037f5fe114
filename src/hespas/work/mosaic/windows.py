"""Blocks that a kernel's pipeline moves between memory and the chip.

A block is fetched when a step needs another one than the step before, and written back when a step
is done with it: what stays the same from step to step stays on the chip.
Source: the JAX documentation, "Pallas: grids and BlockSpecs" and "TPU pipelining".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hespas.errors import CostError
from hespas.program.mosaic import Window
from hespas.program.types import TensorType
from hespas.work.mosaic.scalars import Numbers, Scalar
from hespas.work.mosaic.walk import Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What moves for one array: how many blocks, and their bytes, cut off at the array's end."""

    blocks: int
    size_bytes: float


def moved(walk: Walk, window: Window, array: TensorType) -> Moved:
    """Return the blocks of an array that move over the whole grid.

    Raises `CostError` for blocks of other dimensions than the array has.
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
        elements = elements * _inside(index, bound, length, by_element=window.by_element)
    return Moved(
        blocks=int(changes.sum()),
        size_bytes=float(elements.sum()) * array.element.bits / 8,
    )


def _inside(index: Scalar, bound: int, length: int, *, by_element: bool) -> Numbers | int:
    """Return how much of a block lies inside of its array, along one dimension."""
    if not index.is_known:
        return min(bound, length)
    first = index.numbers * (1 if by_element else bound)
    return np.clip(length - first, 0, bound)


def _changes(indices: Sequence[Scalar], grid: tuple[int, ...]) -> Numbers:
    """Return where a step's block is not that of the step before, on the axes of the grid.

    Steps follow each other with the last dimension first.
    """
    rank = max((each.numbers.ndim for each in indices), default=len(grid))
    shape = (*grid, *(1,) * (rank - len(grid)))
    changed = np.zeros(int(np.prod(grid)), dtype=bool)
    changed[0] = True
    for each in indices:
        if each.numbers.size == 1:
            continue
        order = np.broadcast_to(each.numbers, shape).reshape(-1)
        changed[1:] |= order[1:] != order[:-1]
    return changed.reshape(shape)
