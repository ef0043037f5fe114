"""Pad matrix products whose sizes tensor cores don't take, as XLA's GPU pipeline does.

Rows, columns and what is summed are filled up to multiples of 8 elements of bf16 and f16, of 4 of
i8 and of 16 of f8, as cuBLAS wants them; what is too much of the result is cut off. Products with a
vector stay as they are. What is added to a product is padded with it, so that the library still
adds it. Several dimensions are padded as one, if they lie beside each other, or not at all.

Source: openxla/xla, ``CublasPadForGemms``, ``GemmRewriter`` (xla/service/gpu/transforms, Apache
License 2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.lower.kinds import BROADCASTS, CREATING
from hespas.lower.order import times_read
from hespas.program.attrs import DotAttrs, SliceAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import ElementType, TensorType

_MULTIPLES = {"bf16": 8, "f16": 8, "i8": 4}
_MULTIPLE_OF_F8 = 16


def with_padded_dots(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return operations in which products have sizes that tensor cores take.

    ``results`` are those of the block.
    """
    padded = {op: dot for op in operations if (dot := _padded(op)) is not None}
    if not padded:
        return [*operations]
    additions = _additions(operations, padded, results)
    inside = {op for each in additions.values() for op in each.replaced}
    made: list[Op] = []
    for op in operations:
        if op in additions:
            product = additions[op].replaced[0]
            made.extend(_with_addition(op, product, padded[product], additions[op].other))
        elif op in padded and op not in inside:
            made.extend(_alone(op, padded[op]))
        elif op not in inside:
            made.append(op)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Padded:
    """A product as it is computed: operands reshaped to ``flat``, then padded to ``wide``.

    Its result is ``made``, of which ``cut`` is left.
    """

    attrs: DotAttrs
    flat: tuple[TensorType, TensorType]
    wide: tuple[TensorType, TensorType]
    made: TensorType
    cut: TensorType


@dataclass(frozen=True, slots=True, kw_only=True)
class _Addition:
    """What is added to a product; ``replaced`` are the product and its reshapes."""

    replaced: tuple[Op, ...]
    other: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """An operand of a product: which of its dimensions are what."""

    kind: TensorType
    batching: tuple[int, ...]
    contracting: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        """The dimensions that are in the result alone."""
        used = {*self.batching, *self.contracting}
        return tuple(at for at in range(self.kind.rank) if at not in used)

    def size(self, dimensions: Sequence[int]) -> int:
        """Return the elements along some dimensions."""
        return prod(self.kind.shape[at] for at in dimensions)

    def flat(self, multiple: int) -> _Side:
        """Return it with its free dimensions as one, where that has to be padded and can be."""
        free = self.free
        is_one = _the_one(self.kind, free) is not None
        is_beside = free == tuple(range(free[0], free[-1] + 1))
        if is_one or not is_beside or self.size(free) % multiple == 0:
            return self
        shape = self.kind.shape
        merged = (*shape[: free[0]], self.size(free), *shape[free[-1] + 1 :])

        def moved(dimensions: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(at if at < free[0] else at - len(free) + 1 for at in dimensions)

        return _Side(
            kind=_shaped(self.kind.element, merged),
            batching=moved(self.batching),
            contracting=moved(self.contracting),
        )

    def wide(self, multiple: int) -> TensorType:
        """Return its type with all padded that can be."""
        shape = list(self.kind.shape)
        for dimensions in (self.free, self.contracting):
            at = _the_one(self.kind, dimensions)
            if at is not None:
                shape[at] = ceil(shape[at] / multiple) * multiple
        return _shaped(self.kind.element, tuple(shape))


def _the_one(kind: TensorType, dimensions: Sequence[int]) -> int | None:
    """Return the one dimension of several that is longer than 1; None where more than one is."""
    long = [at for at in dimensions if kind.shape[at] > 1]
    if len(long) > 1:
        return None
    return long[0] if long else next(iter(dimensions), None)


def _shaped(element: ElementType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(element=element, shape=shape)


def _multiple(kind: TensorType) -> int:
    name = kind.element.name
    return _MULTIPLE_OF_F8 if name.lower().startswith("f8") else _MULTIPLES.get(name, 1)


def _padded(op: Op) -> _Padded | None:
    """Return how a product is padded; None for one that is not, and any other operation."""
    attrs = op.attrs
    if op.kind != "dot_general" or not isinstance(attrs, DotAttrs):
        return None
    left, right = map(tensor_of, op.operands)
    multiple = _multiple(left)
    lhs = _Side(kind=left, batching=attrs.lhs_batching, contracting=attrs.lhs_contracting)
    rhs = _Side(kind=right, batching=attrs.rhs_batching, contracting=attrs.rhs_contracting)
    if multiple == 1 or _multiple(right) != multiple or min(map(_rows, (lhs, rhs))) <= 1:
        return None
    lhs, rhs = lhs.flat(multiple), rhs.flat(multiple)
    wide = lhs.wide(multiple), rhs.wide(multiple)
    if wide == (lhs.kind, rhs.kind):
        return None
    element = tensor_of(op.results[0]).element
    return _Padded(
        attrs=replace(
            attrs,
            lhs_batching=lhs.batching,
            lhs_contracting=lhs.contracting,
            rhs_batching=rhs.batching,
            rhs_contracting=rhs.contracting,
        ),
        flat=(lhs.kind, rhs.kind),
        wide=wide,
        made=_shaped(element, _result_shape(lhs, rhs, wide)),
        cut=_shaped(element, _result_shape(lhs, rhs, (lhs.kind, rhs.kind))),
    )


def _rows(side: _Side) -> int:
    return side.size(side.free)


def _result_shape(lhs: _Side, rhs: _Side, kinds: tuple[TensorType, TensorType]) -> tuple[int, ...]:
    left, right = kinds
    of_left = [left.shape[at] for at in (*lhs.batching, *lhs.free)]
    return (*of_left, *(right.shape[at] for at in rhs.free))


def _additions(
    operations: Sequence[Op], padded: Mapping[Op, _Padded], results: Sequence[Value]
) -> dict[Op, _Addition]:
    """Return the additions to products whose results are padded, of which nothing else is read."""
    reads = times_read(operations, results)
    maker = {result: op for op in operations for result in op.results}
    found: dict[Op, _Addition] = {}
    taken: set[Op] = set()
    for op in operations:
        if op.kind != "add":
            continue
        for value, other in (op.operands, op.operands[::-1]):
            chain = _product_behind(value, maker, reads)
            if not chain or chain[0] not in padded or chain[0] in taken:
                continue
            dot, made = padded[chain[0]], maker.get(other)
            is_made = made is not None and made.kind in BROADCASTS | CREATING
            if dot.made != dot.cut and not is_made:
                found[op] = _Addition(replaced=chain, other=other)
                taken.add(chain[0])
                break
    return found


def _product_behind(
    value: Value, maker: Mapping[Value, Op], reads: Mapping[Value, int]
) -> tuple[Op, ...]:
    """Return the product that a value is, and its reshapes; nothing where others read it."""
    chain: list[Op] = []
    op = maker.get(value)
    while op is not None and op.kind in ("reshape", "dot_general") and reads[op.results[0]] == 1:
        chain.append(op)
        if op.kind == "dot_general":
            return tuple(chain[::-1])
        op = maker.get(op.operands[0])
    return ()


def _with_addition(addition: Op, product: Op, dot: _Padded, other: Value) -> Iterator[Op]:
    """Yield the product and the addition to it, both padded, and what is cut out of them."""
    whole = Value(type=dot.made)
    yield from _product(product, dot, whole)
    added = yield from _reshaped(addition, other, dot.cut)
    added = yield from _filled(addition, added, dot.made)
    total = Value(type=dot.made)
    yield replace(addition, operands=(whole, added), results=(total,))
    yield from _cut(addition, total, dot)


def _alone(op: Op, dot: _Padded) -> Iterator[Op]:
    """Yield a product of padded operands, and what is cut out of its result."""
    result = op.results[0]
    whole = result if tensor_of(result).shape == dot.made.shape else Value(type=dot.made)
    yield from _product(op, dot, whole)
    if whole is not result:
        yield from _cut(op, whole, dot)


def _product(op: Op, dot: _Padded, result: Value) -> Iterator[Op]:
    operands: list[Value] = []
    for value, flat, wide in zip(op.operands, dot.flat, dot.wide, strict=True):
        reshaped = yield from _reshaped(op, value, flat)
        operands.append((yield from _filled(op, reshaped, wide)))
    yield replace(op, operands=tuple(operands), results=(result,), attrs=dot.attrs)


def _cut(op: Op, whole: Value, dot: _Padded) -> Iterator[Op]:
    """Yield what makes the result of ``op`` of the padded one."""
    result = op.results[0]
    is_flat = dot.cut.shape != tensor_of(result).shape
    part = Value(type=dot.cut) if is_flat else result
    if dot.cut == dot.made:
        part = whole
    else:
        shape = dot.cut.shape
        bounds = SliceAttrs(start=(0,) * len(shape), limit=shape, strides=(1,) * len(shape))
        yield replace(plain_op(op, "slice", (whole,), part), attrs=bounds)
    if is_flat:
        yield plain_op(op, "reshape", (part,), result)


def _reshaped(op: Op, value: Value, kind: TensorType) -> Generator[Op, None, Value]:
    if tensor_of(value).shape == kind.shape:
        return value
    made = Value(type=kind)
    yield plain_op(op, "reshape", (value,), made)
    return made


def _filled(op: Op, value: Value, kind: TensorType) -> Generator[Op, None, Value]:
    if tensor_of(value).shape == kind.shape:
        return value
    made = Value(type=kind)
    yield plain_op(op, "pad", (value,), made)
    return made
