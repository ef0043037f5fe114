"""Split reductions over dimensions that lie apart into one after the other.

A kernel reduces dimensions that lie together in memory, or keeps such. Of any other reduction, as
over the places and the features of a group where features are the fastest dimension, the largest
dimension is reduced first.

Source: openxla/xla, ``ReductionDimensionGrouper`` and ``ReductionSplitter``
(xla/service/gpu/transforms, Apache License 2.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import prod

from hespas.lower.blocks import tensor_of
from hespas.lower.layouts import Order
from hespas.lower.reductions import cut_of, in_two, reduction
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import TensorType

LARGEST_OF_A_LOOP = 8
"""Where no dimension that is reduced is larger, the reduction is a loop in one kernel."""


def grouped_sizes(
    shape: tuple[int, ...], order: Order, dimensions: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the sizes of runs of dimensions in memory order, and which of them are reduced.

    >>> grouped_sizes((4, 32, 8, 64, 64), (0, 3, 4, 1, 2), (2, 3, 4))
    ((4, 4096, 32, 8), (False, True, False, True))
    """
    runs = [
        (is_reduced, prod([shape[at] for at in run]))
        for is_reduced, run in groupby(order, lambda at: at in dimensions)
    ]
    return tuple([size for _, size in runs]), tuple([is_reduced for is_reduced, _ in runs])


def first_reduced(sizes: tuple[int, ...], reduced: tuple[bool, ...]) -> int | None:
    """Return which run of a reduction is reduced first; None where all of them are at once.

    >>> first_reduced((4, 4096, 32, 8), (False, True, False, True))
    1
    >>> first_reduced((4096, 32, 8), (True, False, True)) is None
    True
    """
    if sum(reduced) < 2 or len(reduced) - sum(reduced) < 2:
        return None
    largest = max(size for size, is_reduced in zip(sizes, reduced, strict=True) if is_reduced)
    if largest <= LARGEST_OF_A_LOOP:
        return None
    places = zip(sizes, reduced, strict=True)
    return next(at for at, place in enumerate(places) if place == (largest, True))


def is_one_kernel(shape: tuple[int, ...], order: Order, dimensions: tuple[int, ...]) -> bool:
    """Return whether a reduction is neither split nor cut.

    >>> is_one_kernel((4, 32, 64), (0, 1, 2), (2,)), is_one_kernel((4, 32, 65536), (0, 1, 2), (2,))
    (True, False)
    """
    is_whole = first_reduced(*grouped_sizes(shape, order, dimensions)) is None
    return is_whole and cut_of(shape, order, dimensions) is None


def in_pieces(op: Op, order: Order, dimensions: tuple[int, ...]) -> Iterator[Op]:
    """Yield the reductions of one whose operand has its dimensions in an order.

    The last of them makes its result. Those that are long are cut in two.
    """
    operand, init = op.operands
    (result,) = op.results
    sizes, reduced = grouped_sizes(tensor_of(operand).shape, order, dimensions)
    first = first_reduced(sizes, reduced)
    if first is None:
        yield from _cut(op, order, dimensions)
        return
    kind = tensor_of(operand).element
    seen = Value(type=TensorType(element=kind, shape=sizes))
    yield plain_op(op, "reshape", (operand,), seen)
    rest = (*sizes[:first], *sizes[first + 1 :])
    between = Value(type=TensorType(element=kind, shape=rest))
    yield from _cut(reduction(op, (seen, init), between, (first,)), _all(sizes), (first,))
    others = tuple([at - (at > first) for at, each in enumerate(reduced) if each and at != first])
    made = tensor_of(result)
    kept = tuple([size for at, size in enumerate(rest) if at not in others])
    last = Value(type=TensorType(element=made.element, shape=kept))
    yield from in_pieces(reduction(op, (between, init), last, others), _all(rest), others)
    yield plain_op(op, "reshape", (last,), result)


def _all(sizes: tuple[int, ...]) -> Order:
    return tuple([at for at, size in enumerate(sizes) if size > 1])


def _cut(op: Op, order: Order, dimensions: tuple[int, ...]) -> Iterator[Op]:
    (operand, init), (result,) = op.operands, op.results
    cut = cut_of(tensor_of(operand).shape, order, dimensions)
    if cut is None:
        yield op
    else:
        yield from in_two(op, operand, init, result, cut)
