"""Cut long reductions in two, as XLA does where one block of threads would take too long.

The first part reduces runs of the data at the same time, the second one what came of each run. As
many additions are made as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod

from msgspec.structs import replace

from hespas.fuse.blocks import tensor_of
from hespas.fuse.layouts import Order
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
