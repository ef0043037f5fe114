"""Products of groups of rows, each group with a matrix of its own: the experts of a mixture."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hespas.program.attrs import MOSAIC, CustomCallAttrs, DotAttrs
from hespas.program.program import Op
from hespas.program.types import NumberKind, TensorType


class GroupedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """Room for ``rows``, in ``groups``: how many each group has is data."""

    rows: int
    groups: int


def grouped_product(op: Op) -> GroupedProduct | None:
    """Return the rows and groups of a product of groups of rows; None for any other operation."""
    tensors = [value.type for value in op.operands if isinstance(value.type, TensorType)]
    match op.attrs:
        case DotAttrs(ragged=int(ragged)):
            return GroupedProduct(rows=tensors[0].shape[ragged], groups=tensors[2].shape[-1])
        case CustomCallAttrs(target=target) if target == MOSAIC:
            return _kernel(op, tensors)
        case _:
            return None


def _kernel(op: Op, operands: Sequence[TensorType]) -> GroupedProduct | None:
    """Return what a TPU's kernel multiplies if its arrays are those of a product of groups.

    Such a kernel is given where each group begins and the last ends: one number more than there
    are groups. Of its three arrays one has a matrix for each group, the others a row for each row.
    """
    results = [value.type for value in op.results if isinstance(value.type, TensorType)]
    tables = {each.shape[0] for each in operands if _is_table(each)}
    arrays = [each for each in (*operands, *results) if each.rank > 1]
    stacked = [each for each in arrays if each.rank == 3 and each.shape[0] + 1 in tables]
    others = [each for each in arrays if each.rank == 2]
    if len(arrays) != 3 or len(stacked) != 1 or len(others) != 2:
        return None
    sizes = set(stacked[0].shape[1:])
    rows = [size for size in others[0].shape if size in others[1].shape and size not in sizes]
    if len(rows) != 1:
        # Its rows are as many as one of the sizes of a matrix: of others they are the first.
        rows = [others[0].shape[0]]
    return GroupedProduct(rows=rows[0], groups=stacked[0].shape[0])


def _is_table(kind: TensorType) -> bool:
    return kind.rank == 1 and kind.element.kind is NumberKind.INTEGER


def steps_of_tiles(group_rows: Sequence[int], tile: int) -> int:
    """Return how many tiles of rows groups touch that lie one behind the other.

    A tile in which a group ends and the next begins is touched by both.

    >>> steps_of_tiles((100, 28, 0, 128), 128)
    3
    """
    steps, start = 0, 0
    for rows in group_rows:
        if rows:
            steps += -(-(start + rows) // tile) - start // tile
        start += rows
    return steps
