"""Reductions as XLA has them: before reshapes, and long ones cut in two.

A reduction of what was reshaped reduces the data as they were, if no reduced dimension is another
one there. So it reads what a product wrote as it lies, where a reshape alone would need a copy.

One block of threads would take too long for a long reduction. The first part reduces runs of the
data at the same time, the second one what came of each run. As many additions are made as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.lower.layouts import Order, factors
from hespas.program.attrs import NO_ATTRS, DimensionsAttrs
from hespas.program.program import Op, Value
from hespas.program.types import TensorType

LONGEST_ROW, LONGEST_COLUMN = 16384, 4096
"""How many elements one block of threads reduces: 1024 threads with 16 each, 32 with 128 each.

Source: openxla/xla, ``ReductionDimensionRaceFreeBound`` in
xla/service/gpu/reduction_utils.cc (Apache License 2.0)."""

_FEWEST_RUNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a reduction is cut: the sizes in memory order, and which of them are reduced.

    ``at`` is the place of the long dimension, which becomes ``runs`` times its rest.
    """

    sizes: tuple[int, ...]
    reduced: tuple[bool, ...]
    at: int
    runs: int


@lru_cache(maxsize=4096)
def cut_of(shape: tuple[int, ...], order: Order, dimensions: tuple[int, ...]) -> Cut | None:
    """Return how a reduction of a value, its dimensions in an order, is cut; None if it is not.

    >>> cut_of((256, 56, 56, 64), (0, 1, 2, 3), (0, 1, 2))
    Cut(sizes=(802816, 64), reduced=(True, False), at=0, runs=512)
    >>> cut_of((4096, 576), (0, 1), (1,)) is None
    True
    """
    sizes: list[int] = []
    reduced: list[bool] = []
    for at in order:
        is_reduced = at in dimensions
        if reduced and reduced[-1] == is_reduced:
            sizes[-1] *= shape[at]
        else:
            sizes.append(shape[at])
            reduced.append(is_reduced)
    if True not in reduced:
        return None
    at = len(reduced) - 1 - reduced[::-1].index(True)
    limit = LONGEST_ROW if at == len(sizes) - 1 else LONGEST_COLUMN
    runs = _runs(sizes[at]) if sizes[at] > limit else 1
    if runs < _FEWEST_RUNS:
        return None
    return Cut(sizes=tuple(sizes), reduced=tuple(reduced), at=at, runs=runs)


def _runs(size: int) -> int:
    """Return a factor of a size near its root, a power of two if there is one."""
    root = isqrt(size)
    even = size & -size
    while even > root:
        even //= 2
    if even * _FEWEST_RUNS >= root:
        return even
    return next((each for each in range(root, 1, -1) if size % each == 0), 1)


def before_reshapes(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations; what is reshaped and reduced is reduced and reshaped."""
    reshaped: dict[Value, Value] = {}
    for op in operations:
        if op.kind == "reshape":
            reshaped[op.results[0]] = op.operands[0]
        is_one = op.kind == "reduce" and len(op.operands) == 2
        before = reshaped.get(op.operands[0]) if is_one else None
        dimensions = None if before is None else _dimensions_before(op, before)
        if before is None or dimensions is None:
            yield op
            continue
        made, kind = tensor_of(op.results[0]), tensor_of(before)
        reduced = Value(type=replace(made, shape=_without(kind.shape, dimensions)))
        yield reduction(op, (before, *op.operands[1:]), reduced, dimensions)
        yield _view(op, reduced, op.results[0])


def _dimensions_before(op: Op, before: Value) -> tuple[int, ...] | None:
    """Return which dimensions a reduction of a reshaped value reduces before the reshape."""
    assert isinstance(op.attrs, DimensionsAttrs)  # noqa: S101 - it is a reduction
    alone: dict[int, int] = {}
    for old, new in factors(tensor_of(before).shape, tensor_of(op.operands[0]).shape):
        if len(old) == 1 and len(new) == 1:
            alone.update(zip(new, old, strict=True))
    if not alone.keys() >= set(op.attrs.dimensions):
        return None
    return tuple(sorted([alone[at] for at in op.attrs.dimensions]))


def in_two(op: Op, operand: Value, init: Value, result: Value, cut: Cut) -> Iterator[Op]:
    """Yield the operations that a reduction is cut into; the last one makes ``result``."""
    kind, made = tensor_of(operand), tensor_of(result)
    before, after = cut.sizes[: cut.at], cut.sizes[cut.at + 1 :]
    sizes = (*before, cut.runs, cut.sizes[cut.at] // cut.runs, *after)
    seen = Value(type=TensorType(element=kind.element, shape=sizes))
    yield _view(op, operand, seen)
    inner = (*[at for at in range(cut.at) if cut.reduced[at]], cut.at + 1)
    runs = _without(sizes, inner)
    partial = Value(type=TensorType(element=made.element, shape=runs))
    yield reduction(op, (seen, init), partial, inner)
    outer = cut.at - len(inner) + 1
    rest = _without(runs, (outer,))
    if rest == made.shape and made.layout is None:
        yield reduction(op, (partial, init), result, (outer,))
        return
    whole = Value(type=TensorType(element=made.element, shape=rest))
    yield reduction(op, (partial, init), whole, (outer,))
    yield _view(op, whole, result)


def _without(sizes: Sequence[int], dropped: Sequence[int]) -> tuple[int, ...]:
    return tuple([size for at, size in enumerate(sizes) if at not in dropped])


def _view(op: Op, operand: Value, result: Value) -> Op:
    assert _count(operand) == _count(result)  # noqa: S101 - another shape of the same bytes
    return Op(
        dialect="stablehlo",
        kind="reshape",
        operands=(operand,),
        results=(result,),
        attrs=NO_ATTRS,
        source_location=op.source_location,
        scope=op.scope,
    )


def _count(value: Value) -> int:
    return prod(value.type.shape) if isinstance(value.type, TensorType) else 1


def reduction(
    op: Op, operands: tuple[Value, ...], result: Value, dimensions: tuple[int, ...]
) -> Op:
    """Return a reduction like another one, of other operands and dimensions."""
    text = f"array<i64: {', '.join(map(str, dimensions))}>"
    return replace(
        op,
        operands=operands,
        results=(result,),
        attrs=DimensionsAttrs(dimensions=dimensions),
        attributes=(("dimensions", text),),
    )
