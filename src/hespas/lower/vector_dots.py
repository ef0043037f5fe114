"""Write products with vectors as multiplications and sums, as XLA's GPU compiler does.

A product that sums over nothing multiplies. One of which an operand has only dimensions that are
batched or summed, as a step of decode of one sequence has, is multiplied element by element and
summed if that operand is a vector of few enough: the other operand of one batch, and the vector,
have fewer than 10,000,000 elements. So are products of two vectors.

Source: openxla/xla, ``AlgebraicSimplifier`` (HandleDot), ``ShouldStrengthReduceDotToReduce``
(xla/service/gpu/transforms/algebraic_simplifier.cc, Apache License 2.0), and what jaxlib 0.10.2
compiles for H100: bf16 of 4096 x 2048 is summed, of 4096 x 2560 cuBLAS's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.lower.reductions import reduction
from hespas.program.attrs import DimensionsAttrs, DotAttrs
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import ElementType, TensorType

FEWEST_OF_LIBRARY = 10_000_000


def with_vector_dots_opened(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations; small products with vectors are multiplications and sums."""
    for op in operations:
        if op.kind == "dot_general" and isinstance(op.attrs, DotAttrs) and _is_opened(op, op.attrs):
            yield from _opened(op, op.attrs)
        else:
            yield op


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """An operand of a product: its dimensions that are batched, summed and in the result alone."""

    value: Value
    batching: Sequence[int]
    contracting: Sequence[int]

    @property
    def shape(self) -> tuple[int, ...]:
        return tensor_of(self.value).shape

    @property
    def free(self) -> list[int]:
        used = {*self.batching, *self.contracting}
        return [at for at in range(len(self.shape)) if at not in used]

    def size(self, dimensions: Iterable[int]) -> int:
        return prod(self.shape[at] for at in dimensions)


def _sides(op: Op, attrs: DotAttrs) -> tuple[_Side, _Side]:
    left, right = op.operands
    return (
        _Side(value=left, batching=attrs.lhs_batching, contracting=attrs.lhs_contracting),
        _Side(value=right, batching=attrs.rhs_batching, contracting=attrs.rhs_contracting),
    )


def _is_opened(op: Op, attrs: DotAttrs) -> bool:
    if attrs.algorithm:
        return False
    left, right = _sides(op, attrs)
    summed, rows, columns = (
        left.size(left.contracting),
        left.size(left.free),
        right.size(right.free),
    )
    if summed == 1 or rows == columns == 1:
        return True
    return min(rows, columns) == 1 and (rows + columns) * summed < FEWEST_OF_LIBRARY


def _opened(op: Op, attrs: DotAttrs) -> Iterator[Op]:
    """Yield a multiplication of both operands as the larger one lies, its sum, and its place."""
    left, right = _sides(op, attrs)
    large, small = (left, right) if left.size(left.free) > right.size(right.free) else (right, left)
    result = tensor_of(op.results[0])
    extra = [at for at in small.free if small.shape[at] > 1]
    places = {*range(len(extra), len(extra) + len(large.shape))}
    shape = (*[small.shape[at] for at in extra], *large.shape)
    kind = TensorType(element=result.element, shape=shape)
    spread_large = yield from _spread(op, large.value, kind, sorted(places))
    number = {at: len(extra) + other for at, other in _matched(small, large)}
    number.update({at: place for place, at in enumerate(extra)})
    kept = [at for at in range(len(small.shape)) if at in number]
    thin = yield from _shaped(op, small.value, [small.shape[at] for at in kept])
    turned = sorted(kept, key=lambda at: number[at])
    if turned != kept:
        order = tuple([kept.index(at) for at in turned])
        thin = yield from _turned(op, thin, order)
    spread_small = yield from _spread(op, thin, kind, [number[at] for at in turned])
    made = Value(type=kind)
    yield plain_op(op, "multiply", (spread_large, spread_small), made)
    summed = tuple([len(extra) + at for at in large.contracting if large.shape[at] > 1])
    if summed:
        rest = [size for at, size in enumerate(shape) if at not in summed]
        total = Value(type=TensorType(element=result.element, shape=tuple(rest)))
        yield from _sum(op, made, total, summed)
        made = total
    yield from _placed(op, made, large, extra, is_left=large is left)


def _matched(small: _Side, large: _Side) -> list[tuple[int, int]]:
    """Return the dimensions that both have, with their numbers in each."""
    pairs = [
        *zip(small.batching, large.batching, strict=True),
        *zip(small.contracting, large.contracting, strict=True),
    ]
    return [pair for pair in pairs if small.shape[pair[0]] > 1]


def _spread(
    op: Op, value: Value, kind: TensorType, places: Sequence[int]
) -> Generator[Op, None, Value]:
    """Yield a value in the type of the products, one element for each of them."""
    given = tensor_of(value)
    if given.element != kind.element:
        value = yield from _made(op, "convert", value, kind.element, given.shape)
    if given.shape == kind.shape:
        return value
    wide = Value(type=kind)
    spread = plain_op(op, "broadcast_in_dim", (value,), wide)
    yield replace(spread, attrs=DimensionsAttrs(dimensions=tuple(places)))
    return wide


def _shaped(op: Op, value: Value, shape: Sequence[int]) -> Generator[Op, None, Value]:
    given = tensor_of(value)
    if given.shape == tuple(shape):
        return value
    return (yield from _made(op, "reshape", value, given.element, tuple(shape)))


def _turned(op: Op, value: Value, order: tuple[int, ...]) -> Generator[Op, None, Value]:
    given = tensor_of(value)
    made = Value(type=replace(given, shape=tuple([given.shape[at] for at in order])))
    turned = plain_op(op, "transpose", (value,), made)
    text = f"array<i64: {', '.join(map(str, order))}>"
    attributes = (("permutation", text),)
    yield replace(turned, attrs=DimensionsAttrs(dimensions=order), attributes=attributes)
    return made


def _made(
    op: Op, kind: str, value: Value, element: ElementType, shape: tuple[int, ...]
) -> Generator[Op, None, Value]:
    made = Value(type=TensorType(element=element, shape=shape))
    yield plain_op(op, kind, (value,), made)
    return made


def _sum(op: Op, values: Value, total: Value, dimensions: tuple[int, ...]) -> Iterator[Op]:
    scalar = TensorType(element=tensor_of(values).element, shape=())
    zero, one, other, both = [Value(type=scalar) for _ in range(4)]
    yield replace(plain_op(op, "constant", (), zero), attributes=(("value", "dense<0>"),))
    end = replace(plain_op(op, "return", (both,), both), results=())
    body = Block(arguments=(one, other), operations=(plain_op(op, "add", (one, other), both), end))
    summed = plain_op(op, "reduce", (values, zero), total)
    made = reduction(summed, (values, zero), total, dimensions)
    yield replace(made, regions=(body,))


def _placed(
    op: Op, made: Value, large: _Side, extra: Sequence[int], *, is_left: bool
) -> Iterator[Op]:
    """Yield what gives a sum the dimensions of the product's result."""
    summed = {at for at in large.contracting if large.shape[at] > 1}
    ours = [*[-1 - at for at in extra], *[at for at in range(len(large.shape)) if at not in summed]]
    frees = (
        (large.free, [-1 - at for at in extra])
        if is_left
        else ([-1 - at for at in extra], large.free)
    )
    wanted = [*large.batching, *frees[0], *frees[1]]
    rest = [at for at in ours if at not in wanted]
    order = tuple([ours.index(at) for at in (*wanted, *rest)])
    if order != tuple(range(len(order))):
        made = yield from _turned(op, made, order)
    yield plain_op(op, "reshape", (made,), op.results[0])
