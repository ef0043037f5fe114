"""Open products of groups of rows as XLA's GPU compiler does: into products of all rows.

How many rows each group has is known only when the program runs. The compiler makes a copy of the
rows for each group, with zeros in the place of the others, and multiplies all of them: as many
times the FLOPs as there are groups. A TPU's compiler has kernels that multiply each row once.

Source: openxla/xla, ``RaggedDotRewriter`` (xla/hlo/transforms/expanders/ragged_dot_rewriter.cc,
Apache License 2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.program.attrs import (
    CompareAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
)
from hespas.program.experts import GroupedProduct, grouped_product
from hespas.program.program import Block, Op, Value, nested_ops
from hespas.program.rewrite import plain_op
from hespas.program.types import TensorType, element_type

_INDEX, _BOOLEAN = element_type("i32"), element_type("i1")


def most_groups(block: Block) -> int:
    """Return the number of groups of the product that has most of them; 0 where there is none."""
    products = (grouped_product(op) for op in nested_ops(block) if _is_opened(op))
    return max((product.groups for product in products if product is not None), default=0)


def with_groups_opened(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations with masked products in the place of those of groups of rows."""
    for op in operations:
        product = grouped_product(op) if _is_opened(op) else None
        if product is None:
            yield op
        else:
            yield from _opened(op, product)


def _is_opened(op: Op) -> bool:
    """Return whether groups divide rows: groups that divide batches are products as they are."""
    attrs = op.attrs
    if op.kind != "ragged_dot" or not isinstance(attrs, DotAttrs):
        return False
    return attrs.ragged not in attrs.lhs_batching


def _opened(op: Op, product: GroupedProduct) -> Iterator[Op]:
    attrs = op.attrs
    assert isinstance(attrs, DotAttrs)  # noqa: S101 - what is opened is a product
    assert attrs.ragged is not None  # noqa: S101 - of groups
    lhs, rhs, counts = op.operands
    mask = Value(type=TensorType(element=_BOOLEAN, shape=(product.groups, product.rows)))
    yield from _mask(op, counts, mask)
    rows = yield from _masked(op, mask, lhs, attrs.ragged)
    grouped, contracted = (0,), tuple([at + 1 for at in attrs.lhs_contracting])
    batched = tuple([at + 1 for at in attrs.lhs_batching])
    if attrs.is_divided:
        (at,) = (
            theirs
            for mine, theirs in zip(attrs.lhs_contracting, attrs.rhs_contracting, strict=True)
            if mine == attrs.ragged
        )
        rhs = yield from _masked(op, mask, rhs, at)
        plain = DotAttrs(
            lhs_batching=grouped + batched,
            rhs_batching=(0, *[each + 1 for each in attrs.rhs_batching]),
            lhs_contracting=contracted,
            rhs_contracting=tuple([each + 1 for each in attrs.rhs_contracting]),
        )
    else:
        plain = DotAttrs(
            lhs_batching=batched,
            rhs_batching=attrs.rhs_batching,
            lhs_contracting=grouped + contracted,
            rhs_contracting=(_group_dimension(rhs, attrs, product.groups), *attrs.rhs_contracting),
        )
    made = plain_op(op, "dot_general", (rows, rhs), op.results[0])
    yield replace(made, attrs=replace(plain, precision=attrs.precision, algorithm=attrs.algorithm))


def _mask(op: Op, counts: Value, mask: Value) -> Iterator[Op]:
    """Yield what tells which rows each group has."""
    kind = tensor_of(mask)
    places, ends = (Value(type=replace(kind, element=_INDEX)) for _ in range(2))
    yield replace(plain_op(op, "iota", (), places), attrs=DimensionAttrs(dimension=1))
    spread = plain_op(op, "broadcast_in_dim", (counts,), ends)
    yield replace(spread, attrs=DimensionsAttrs(dimensions=(0,)))
    compared = plain_op(op, "compare", (places, ends), mask)
    yield replace(compared, attrs=CompareAttrs(direction="LT"))


def _masked(op: Op, mask: Value, given: Value, rows: int) -> Generator[Op, None, Value]:
    """Yield a copy of an operand for each group, zero where its rows are another's; return it."""
    kind = tensor_of(given)
    shape = (tensor_of(mask).shape[0], *kind.shape)
    copies, zeros, made = (Value(type=replace(kind, shape=shape)) for _ in range(3))
    picked = Value(type=TensorType(element=_BOOLEAN, shape=shape))
    zero = Value(type=TensorType(element=kind.element, shape=()))
    yield replace(plain_op(op, "constant", (), zero), attrs=ConstantAttrs(value=0))
    for source, result, dimensions in (
        (given, copies, tuple(range(1, len(shape)))),
        (zero, zeros, ()),
        (mask, picked, (0, rows + 1)),
    ):
        spread = plain_op(op, "broadcast_in_dim", (source,), result)
        yield replace(spread, attrs=DimensionsAttrs(dimensions=dimensions))
    yield plain_op(op, "select", (picked, copies, zeros), made)
    return made


def _group_dimension(rhs: Value, attrs: DotAttrs, groups: int) -> int:
    """Return which dimension of the matrices tells the groups apart: the first of their number."""
    others = {*attrs.rhs_batching, *attrs.rhs_contracting}
    sizes = tensor_of(rhs).shape
    return next(at for at, size in enumerate(sizes) if size == groups and at not in others)
