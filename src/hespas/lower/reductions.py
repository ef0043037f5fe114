"""Reductions as XLA's GPU pipeline has them, in pieces; scans too.

A kernel reduces dimensions that lie together in memory, or keeps such; of any other reduction the
largest dimension is reduced first. One block of threads would take too long for a long reduction: a
first kernel reduces runs of the data at the same time, a second one what came of each run. As many
additions are made as before.

Source: openxla/xla, ``ReductionDimensionGrouper``, ``ReductionSplitter``, ``TreeReductionRewriter``
(xla/service/gpu/transforms) and ``ReduceWindowRewriter`` (xla/hlo/transforms/expanders, Apache
License 2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from math import isqrt, prod

from msgspec.structs import replace

from hespas.lower.layouts import Order, factors
from hespas.program.attrs import DimensionsAttrs, WindowAttrs
from hespas.program.program import Op, Value, shape_of, tensor_of
from hespas.program.rewrite import Builder, Pattern, Renaming, copied_op, plain_op
from hespas.program.types import TensorType
from hespas.program.uses import Uses

LONGEST_ROW, LONGEST_COLUMN = 16384, 4096
"""How many elements one block of threads reduces: 1024 threads with 16 each, 32 with 128 each.

Source: openxla/xla, ``ReductionDimensionRaceFreeBound`` in
xla/service/gpu/reduction_utils.cc (Apache License 2.0)."""

PIECE = 16
"""The elements of a piece of a scan."""

LARGEST_OF_A_LOOP = 8
"""Where no dimension that is reduced is larger, the reduction is a loop in one kernel."""

_FEWEST_RUNS = 8

Runs = tuple[tuple[int, bool], ...]
"""Sizes of runs of dimensions in memory order, and whether each is reduced."""


def _before_reshape(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a reduction of the data before a reshape, and a reshape."""
    view = uses.producer(op.operands[0])
    attrs = op.attrs
    if len(op.operands) != 2 or view is None or view.kind != "reshape":
        return None
    assert isinstance(attrs, DimensionsAttrs)  # noqa: S101 - it is a reduction
    before = view.operands[0]
    alone = {
        new[0]: old[0]
        for old, new in factors(shape_of(before), shape_of(op.operands[0]))
        if len(old) == len(new) == 1
    }
    if not alone.keys() >= set(attrs.dimensions):
        return None
    dimensions = sorted([alone[axis] for axis in attrs.dimensions])
    build = Builder(op)
    reduced = _reduce(build, op, before, dimensions)
    return (*build.operations, plain_op(op, "reshape", (reduced,), op.results[0]))


BEFORE_RESHAPES = Pattern(kinds=("reduce",), change=_before_reshape)


def _reduce(build: Builder, op: Op, value: Value, dimensions: Sequence[int]) -> Value:
    """Add a reduction over a value's dimensions."""
    shape = tuple([size for axis, size in enumerate(shape_of(value)) if axis not in dimensions])
    reduced = TensorType(element=tensor_of(op.results[0]).element, shape=shape)
    attrs = DimensionsAttrs(dimensions=tuple(dimensions))
    return build.add("reduce", (value, *op.operands[1:]), reduced, attrs, regions=op.regions)


@lru_cache(maxsize=4096)
def runs_of(shape: tuple[int, ...], order: Order, dimensions: tuple[int, ...]) -> Runs:
    """Return the runs of a value's dimensions in memory order.

    >>> runs_of((4, 32, 8, 64, 64), (0, 3, 4, 1, 2), (2, 3, 4))
    ((4, False), (4096, True), (32, False), (8, True))
    """
    return tuple([
        (prod([shape[axis] for axis in run]), is_reduced)
        for is_reduced, run in groupby(order, lambda axis: axis in dimensions)
    ])  # fmt: skip


def first_reduced(runs: Runs) -> tuple[int, ...]:
    """Return which runs the first kernel of a reduction reduces.

    >>> first_reduced(((4, False), (4096, True), (32, False), (8, True)))
    (1,)
    >>> first_reduced(((4096, True), (32, False), (8, True)))
    (0, 2)
    """
    places = tuple([place for place, (_, is_reduced) in enumerate(runs) if is_reduced])
    largest = max(places, key=lambda place: runs[place][0], default=0)
    is_apart = len(places) > 1 and len(runs) - len(places) > 1
    return (largest,) if is_apart and runs[largest][0] > LARGEST_OF_A_LOOP else places


def cut_of(runs: Runs, places: Sequence[int]) -> int:
    """Return how many pieces the last reduced run has.

    >>> cut_of(((802816, True), (64, False)), [0]), cut_of(((4096, False), (576, True)), [1])
    (512, 1)
    """
    size = runs[places[-1]][0] if places else 1
    limit = LONGEST_ROW if places and places[-1] == len(runs) - 1 else LONGEST_COLUMN
    count = _factor(size) if size > limit else 1
    return count if count >= _FEWEST_RUNS else 1


def _factor(size: int) -> int:
    """Return a factor near the root, preferably a power of two."""
    root = isqrt(size)
    even = size & -size
    while even > root:
        even //= 2
    if even * _FEWEST_RUNS >= root:
        return even
    return next((divisor for divisor in range(root, 1, -1) if size % divisor == 0), 1)


def is_one_kernel(runs: Runs) -> bool:
    """Return whether a reduction is neither split nor cut.

    >>> is_one_kernel(((128, False), (64, True))), is_one_kernel(((128, False), (65536, True)))
    (True, False)
    """
    places = first_reduced(runs)
    return len(places) == sum([is_reduced for _, is_reduced in runs]) and cut_of(runs, places) == 1


def in_pieces(op: Op, order: Order, dimensions: tuple[int, ...]) -> list[Op]:
    """Return a reduction's pieces for its operand's order; the last makes the result."""
    runs = runs_of(shape_of(op.operands[0]), order, dimensions)
    if is_one_kernel(runs):
        return [op]
    build, value = Builder(op), op.operands[0]
    value = build.add("reshape", (value,), _sized(value, runs))
    while any(is_reduced for _, is_reduced in runs):
        places = first_reduced(runs)
        count, last = cut_of(runs, places), places[-1]
        if count > 1:
            cut = ((count, True), (runs[last][0] // count, True))
            runs = (*runs[:last], *cut, *runs[last + 1 :])
            value = build.reshape(value, [size for size, _ in runs])
            places = (*places[:-1], last + 1)
        value = _reduce(build, op, value, places)
        unreduced = [run for place, run in enumerate(runs) if place not in places]
        runs = tuple([
            (prod([size for size, _ in run]), is_reduced)
            for is_reduced, run in groupby(unreduced, lambda each: each[1])
        ])  # fmt: skip
        if any(is_reduced for _, is_reduced in runs):
            value = build.reshape(value, [size for size, _ in runs])
    result = tensor_of(op.results[0])
    if shape_of(value) == result.shape and result.layout is None:
        return build.making(op.results[0], value)
    return [*build.operations, plain_op(op, "reshape", (value,), op.results[0])]


def _sized(value: Value, runs: Runs) -> TensorType:
    return TensorType(element=tensor_of(value).element, shape=tuple([size for size, _ in runs]))


def _opened_scan(op: Op, _uses: Uses) -> Sequence[Op] | None:
    """Compute a cumulative sum, product or maximum in pieces.

    Each piece is scanned by itself, what each piece ends with is scanned, again in pieces, and
    combined with all of the next piece. A length that is no multiple is filled up, and cut after.
    """
    axis = _scanned_axis(op)
    if axis is None or not isinstance(op.attrs, WindowAttrs):
        return None
    build = Builder(op)
    is_reversed = op.attrs.padding[axis][0] == 0
    values = _scanned(build, op, op.operands[: len(op.results)], axis, is_reversed=is_reversed)
    return build.renamed(dict(zip(values, op.results, strict=True)))


SCANS = Pattern(kinds=("reduce_window",), change=_opened_scan)


def _scanned_axis(op: Op) -> int | None:
    """Return the axis that a long window accumulates along."""
    attrs, shape = op.attrs, shape_of(op.operands[0])
    if not isinstance(attrs, WindowAttrs):
        return None
    axes = [dimension for dimension, size in enumerate(attrs.size) if size > 1]
    plain = (*attrs.strides, *attrs.base_dilation, *attrs.window_dilation)
    if len(axes) != 1 or any(step != 1 for step in plain):
        return None
    (axis,) = axes
    length = shape[axis]
    padding = list(attrs.padding)
    own = padding.pop(axis)
    is_scan = attrs.size[axis] == length and own in ((length - 1, 0), (0, length - 1))
    return axis if is_scan and length > PIECE and not any(map(any, padding)) else None


def _scanned(
    build: Builder, op: Op, values: Sequence[Value], axis: int, *, is_reversed: bool
) -> Sequence[Value]:
    """Scan values along an axis, in pieces."""
    shape = shape_of(values[0])
    length, pieces = shape[axis], -(-shape[axis] // PIECE)
    if length <= PIECE:
        return _window(build, op, values, axis, is_reversed=is_reversed)

    def sizes(*along: int) -> tuple[int, ...]:
        return (*shape[:axis], *along, *shape[axis + 1 :])

    inits = op.operands[len(op.results) :]
    filled = [build.pad(v, sizes(pieces * PIECE), i) for v, i in zip(values, inits, strict=True)]
    cut = [build.reshape(value, sizes(pieces, PIECE)) for value in filled]
    inner = _window(build, op, cut, axis + 1, is_reversed=is_reversed)
    last = 0 if is_reversed else PIECE - 1
    ends = [build.slice(value, axis + 1, last, last + 1) for value in inner]
    ends = [build.reshape(value, sizes(pieces)) for value in ends]
    ends = _scanned(build, op, ends, axis, is_reversed=is_reversed)
    start = 1 if is_reversed else 0
    shifted = [build.pad(v, sizes(pieces + 1), i) for v, i in zip(ends, inits, strict=True)]
    shifted = [build.slice(value, axis, start, start + pieces) for value in shifted]
    outer = [dimension for dimension in range(len(shape) + 1) if dimension != axis + 1]
    before = [build.broadcast(value, sizes(pieces, PIECE), outer) for value in shifted]
    combined = _combined(build, op, (*before, *inner), sizes(pieces, PIECE))
    combined = [build.reshape(value, sizes(pieces * PIECE)) for value in combined]
    return [build.slice(value, axis, 0, length) for value in combined]


def _window(
    build: Builder, op: Op, values: Sequence[Value], axis: int, *, is_reversed: bool
) -> Sequence[Value]:
    """Scan a dimension as a whole by a window."""
    shape = shape_of(values[0])
    ones, length = (1,) * len(shape), shape[axis]
    size, padding = list(ones), [(0, 0)] * len(shape)
    size[axis] = length
    padding[axis] = (0, length - 1) if is_reversed else (length - 1, 0)
    attrs = WindowAttrs(
        size=tuple(size),
        strides=ones,
        base_dilation=ones,
        window_dilation=ones,
        padding=tuple(padding),
    )
    results = tuple([Value(type=value.type) for value in values])
    window = plain_op(op, op.kind, (*values, *op.operands[len(op.results) :]), results[0])
    build.operations.append(replace(window, results=results, attrs=attrs, regions=op.regions))
    return results


def _combined(
    build: Builder, op: Op, operands: Sequence[Value], shape: tuple[int, ...]
) -> Sequence[Value]:
    """Apply the function of a window to whole tensors."""
    (body,) = op.regions
    renaming: Renaming = dict(zip(body.arguments, operands, strict=True))
    for inner in body.operations[:-1]:
        copy = copied_op(inner, renaming)
        wide = tuple([Value(type=replace(tensor_of(it), shape=shape)) for it in copy.results])
        renaming.update(zip(inner.results, wide, strict=True))
        build.operations.append(replace(copy, results=wide))
    return [renaming[value] for value in body.operations[-1].operands]
