"""Give every value of a block a layout, with copies where needed.

What users of a value prefer is passed back to its producer (`preferred_orders`); then each
operation takes its operands as they lie, or copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from msgspec.structs import replace

from hespas.lower.convolutions import cudnn_orders
from hespas.lower.layouts import (
    Order,
    default_order,
    layout_of,
    major,
    matching_order,
    merged_orders,
    operand_order,
    reshaped,
    result_orders,
    summed_fastest,
    sums_fastest,
    takes_order,
    transposed,
)
from hespas.lower.reductions import in_pieces, is_one_kernel, runs_of
from hespas.program.attrs import CollectiveAttrs, DimensionsAttrs, DotAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, memory_order, shape_of
from hespas.program.rewrite import plain_op
from hespas.program.types import FLOATS_OF_8_BITS, TensorType
from hespas.program.uses import Uses

_RENAMING = frozenset({"reshape", "slice", "transpose"})
"""The result may be the operand's bytes under another name."""
_ALONG_A_DIMENSION = frozenset({"all_gather", "all_to_all", "reduce_scatter"})
"""Collectives that gather or scatter along a dimension, which they want slowest."""
_UNMOVED = frozenset(
    {"all_reduce", "collective_broadcast", "collective_permute", "optimization_barrier"}
)
_MOST_STEPS = 24


def _keeps_rank(op: Op, value: Value) -> bool:
    """Return whether operand and result order their dimensions alike."""
    is_same = len(shape_of(value)) == len(shape_of(op.results[0]))
    return op.traits.keeps_dimensions and is_same


def _within(order: Order, shape: tuple[int, ...]) -> Order:
    """Return an order for another shape of the same rank."""
    if len(order) == len(default_order(shape)):
        return order
    if list(order) == sorted(order):
        return default_order(shape)
    long = [axis for axis in order if shape[axis] > 1]
    return (*[axis for axis in default_order(shape) if axis not in long], *long)


def preferred_orders(block: Block, compute_capability: float | None) -> dict[Value, Order]:
    """Return the order in which users want a value, if they care."""
    votes: dict[Value, dict[Order, int]] = {}

    def wish(value: Value, order: Order | None) -> None:
        if order is not None and len(order) > 1:
            cast = votes.setdefault(value, {})
            cast[order] = cast.get(order, 0) + 1

    *operations, end = block.operations
    chosen: dict[Value, Order] = {}
    returned = set(end.operands)
    for value in end.operands:
        wish(value, default_order(shape_of(value)))
    for op in reversed(operations):
        cast = {result: votes[result] for result in op.results if result in votes}
        for result, counts in cast.items():
            chosen[result] = max(counts, key=counts.__getitem__)
        if op.kind in _RENAMING and op.results[0] in returned:
            returned.add(op.operands[0])
        if op.kind == "optimization_barrier":
            for value, result in zip(op.operands, op.results, strict=True):
                wish(value, chosen.get(result) if result in returned else None)
            continue
        library_orders = cudnn_orders(op, compute_capability)
        orders = _preferred_of(op, chosen) if library_orders is None else library_orders[0]
        for value, order in zip(op.operands, orders, strict=True):
            wish(value, order)
    return chosen


def _preferred_of(op: Op, chosen: Mapping[Value, Order]) -> Sequence[Order | None]:
    """Return preferred operand orders, given chosen orders of results."""
    attrs, shapes = op.attrs, tuple(map(shape_of, op.operands))
    if isinstance(attrs, DotAttrs) and op.kind == "dot_general":
        if merged_orders(attrs, shapes):
            return [None] * len(shapes)
        return [
            None
            if takes_order(attrs, operand, default_order(shape), shape)
            else operand_order(attrs, operand, shape)
            for operand, shape in enumerate(shapes)
        ]
    if op.kind in _ALONG_A_DIMENSION and isinstance(attrs, CollectiveAttrs):
        return [major(attrs.dimension or 0, shape) for shape in shapes]
    best = next((chosen[result] for result in reversed(op.results) if result in chosen), None)
    return [None if best is None else _before(op, value, best) for value in op.operands]


def _before(op: Op, value: Value, best: Order) -> Order | None:
    """Return the operand order behind a result's; None if open."""
    if op.kind == "transpose" and isinstance(op.attrs, DimensionsAttrs):
        return tuple([op.attrs.dimensions[axis] for axis in best])
    if op.kind == "reshape":
        return reshaped(best, shape_of(op.results[0]), shape_of(value))
    return _within(best, shape_of(value)) if _keeps_rank(op, value) else None


@dataclass(slots=True, kw_only=True)
class Assignment:
    """The values of a program with their layouts.

    ``renamed`` maps a value to the one that stands for it, ``orders`` that one to its order: None
    for what every kernel makes in whatever order it needs. ``inputs`` are arguments
    and views of them. Where ``copies`` is False nothing is copied but operands of products of two
    in 8 bits, if ``turns_8_bits``: libraries need those with the summed dimension fastest.
    ``compute_capability`` is the part's, None if unknown.
    """

    copies: bool = True
    turns_8_bits: bool = False
    compute_capability: float | None = None
    renamed: dict[Value, Value] = field(default_factory=dict[Value, Value])
    orders: dict[Value, Order | None] = field(default_factory=dict[Value, Order | None])
    inputs: set[Value] = field(default_factory=set[Value])

    def block(self, block: Block, free: AbstractSet[Value] = frozenset()) -> Block:
        """Return a block with layouts, the default ones at its ends."""
        arguments = tuple([
            self.fresh(value, None if value in free else default_order(shape_of(value)))
            for value in block.arguments
        ])  # fmt: skip
        self.inputs.update(arguments)
        wishes = preferred_orders(block, self.compute_capability)
        walk = _Walk(outer=self, wishes=wishes, uses=Uses.of_block(block))
        *operations, last = block.operations
        for op in operations:
            walk.op(op)
        end = replace(last, operands=walk.default([self.renamed[value] for value in last.operands]))
        return Block(arguments=arguments, operations=(*walk.operations, end))

    def fresh(self, value: Value, order: Order | None, like: Order | None = None) -> Value:
        """Create a value in another's place, laid out ``like`` one."""
        lying = like if order is None else order
        new_value = Value(type=value.type) if lying is None else _lying_as(value, lying)
        self.renamed[value] = new_value
        self.orders[new_value] = order
        return new_value


def _lying_as(value: Value, order: Order) -> Value:
    """Return a new value like another one, in an order."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return Value(type=kind)
    return Value(type=_lying_type(kind, layout_of(order, kind.shape)))


@lru_cache(maxsize=4096)
def _lying_type(kind: TensorType, layout: tuple[int, ...] | None) -> TensorType:
    """Return a type in a layout, one object for all its values."""
    return kind if layout == kind.layout else replace(kind, layout=layout)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Lays out the values of a block, operation by operation."""

    outer: Assignment
    wishes: dict[Value, Order]
    uses: Uses
    operations: list[Op] = field(default_factory=list[Op])
    copied: dict[tuple[Value, Order], Value] = field(
        default_factory=dict[tuple[Value, Order], Value]
    )
    reader: Op | None = None

    def op(self, op: Op) -> None:
        """Add an operation, with its operands in accepted orders."""
        self.reader = op
        operands = [self.outer.renamed[value] for value in op.operands]
        if op.traits.category is Category.CREATION:
            self._add(op, operands, None)
        elif op.traits.category is Category.BROADCAST:
            self._add(op, operands, self._broadcast_order(op, operands))
        elif op.traits.keeps_dimensions and _keeps_rank(op, _like(op)):
            self._along(op, operands)
        else:
            _RULES.get(op.kind, _Walk.standing)(self, op, operands)

    def default(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return values in the default order."""
        return tuple([self._as(value, default_order(shape_of(value))) for value in values])

    def _as(self, value: Value, order: Order) -> Value:
        """Return a value in an order, copied if it has another one."""
        now = self.outer.orders[value]
        if now is None or now == order or not self.outer.copies:
            return value
        return self._copy(value, order)

    def _copy(self, value: Value, order: Order) -> Value:
        """Return a value's copy in an order, the existing one if any."""
        if not isinstance(value.type, TensorType):
            return value
        if (value, order) not in self.copied:
            copy = self.copied[value, order] = _lying_as(value, order)
            self.outer.orders[copy] = order
            assert self.reader is not None  # noqa: S101 - copies are made for an operation
            op = plain_op(self.reader, "copy", (value,), copy)
            self.operations.append(replace(op, dialect="mhlo"))
        return self.copied[value, order]

    def _add(
        self, op: Op, operands: Iterable[Value], order: Order | None, like: Order | None = None
    ) -> None:
        results = tuple([self.outer.fresh(value, order, like) for value in op.results])
        laid = tuple(operands)
        if op.kind in _RENAMING and laid[0] in self.outer.inputs:
            self.outer.inputs.update(results)
        self.operations.append(replace(op, operands=laid, results=results))

    def _broadcast_order(self, op: Op, operands: Sequence[Value]) -> Order | None:
        """Return the order of a broadcast that repeats nothing."""
        order, attrs = self.outer.orders[operands[0]], op.attrs
        if order is None or not isinstance(attrs, DimensionsAttrs) or op.kind == "broadcast":
            return None
        if prod(shape_of(op.results[0])) != prod(shape_of(operands[0])):
            return None
        return tuple([attrs.dimensions[axis] for axis in order])

    def _along(self, op: Op, operands: Sequence[Value]) -> None:
        """Add an operation, all in the order of most bytes."""
        result_shape, orders = shape_of(op.results[0]), self.outer.orders
        sized = [value for value in operands if len(shape_of(value)) == len(result_shape)]
        weights: dict[Order, int] = {}
        for value in dict.fromkeys(sized):
            order = orders[value]
            if order is not None and isinstance(value.type, TensorType):
                weights[order] = weights.get(order, 0) + value.type.size_bytes
        if not weights:
            self._add(op, operands, None)
            return
        best = max(weights.values())
        heaviest = [order for order, weight in weights.items() if weight == best]
        wish = self.wishes.get(op.results[0])
        order = wish if wish is not None and wish in heaviest else heaviest[0]
        laid = [
            self._as(value, _within(order, shape_of(value))) if value in sized else value
            for value in operands
        ]
        self._add(op, laid, _within(order, result_shape))

    def transpose(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a transpose: another name for the same bytes."""
        assert isinstance(op.attrs, DimensionsAttrs)  # noqa: S101 - it is a transpose
        order = self.outer.orders[operands[0]]
        lying = memory_order(operands[0])[::-1] if order is None else order
        turned = transposed(lying, op.attrs.dimensions)
        self._add(op, operands, None if order is None else turned, turned)

    def reshape(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a reshape, of a copy unless bytes stay."""
        (value,) = operands
        order, after = self.outer.orders[value], shape_of(op.results[0])
        result_order = None if order is None else reshaped(order, shape_of(value), after)
        if order is not None and result_order is None:
            value = self._as(value, default_order(shape_of(value)))
            result_order = default_order(after)
        self._add(op, (value,), result_order)

    def reduce(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a reduction, in pieces if long or strided."""
        assert isinstance(op.attrs, DimensionsAttrs)  # noqa: S101 - it is a reduction
        count, dimensions, shape = len(op.results), op.attrs.dimensions, shape_of(op.operands[0])
        orders = [self.outer.orders[value] for value in operands[:count]]
        order = next((order for order in orders if order is not None), default_order(shape))
        data = [self._as(value, order) for value in operands[:count]]
        remaining = [axis for axis in range(len(shape)) if axis not in dimensions]
        result_order = tuple([remaining.index(axis) for axis in order if axis not in dimensions])
        if count > 1:
            self._add(op, (*data, *operands[count:]), result_order)
            return
        if is_one_kernel(runs_of(shape, order, dimensions)):
            result_order = self._reduced_order(op.results[0], result_order)
        result = self.outer.fresh(op.results[0], result_order)
        reduction = replace(op, operands=(data[0], operands[1]), results=(result,))
        for piece in in_pieces(reduction, order, dimensions):
            self.operations.append(piece)
            partial = piece.results[0]
            self.outer.orders.setdefault(partial, default_order(shape_of(partial)))

    def _reduced_order(self, value: Value, order: Order) -> Order:
        """Return a reduction's order: its data's, if users accept it."""
        wish = self.wishes.get(value)
        if wish is not None and sorted(wish) == sorted(order):
            return wish
        views = [op for op in self.uses.readers(value) if op.kind == "reshape"]
        shapes = [shape_of(op.results[0]) for op in views]
        if any(reshaped(order, shape_of(value), shape) is None for shape in shapes):
            return default_order(shape_of(value))
        return order

    def dot(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a product with laid-out operands and result."""
        attrs, outer = op.attrs, self.outer
        assert isinstance(attrs, DotAttrs)  # noqa: S101 - it is a product
        shapes = tuple(map(shape_of, operands))
        merged = merged_orders(attrs, shapes) if outer.copies else ()
        turns = outer.copies and sums_fastest(op, outer.compute_capability)
        orders: list[Order] = []
        for side, (value, shape) in enumerate(zip(operands, shapes, strict=True)):
            order = outer.orders[value]
            order = default_order(shape) if order is None else order
            if merged:
                order = merged[side]
            elif not takes_order(attrs, side, order, shape):
                order = operand_order(attrs, side, shape)
            orders.append(summed_fastest(attrs, side, order) if turns else order)
        copies = [self._as(value, order) for value, order in zip(operands, orders, strict=True)]
        if outer.turns_8_bits and all(map(_is_small, copies)):
            copies = [self._turned(attrs, side, value) for side, value in enumerate(copies)]
        followed = matching_order(attrs, orders[0], orders[1], shapes[1])
        if followed != orders[1]:
            copies[1], orders[1] = self._as(copies[1], followed), followed
        ranks = len(shapes[0]), len(shapes[1])
        by_rows, by_columns = result_orders(attrs, orders[0], orders[1], ranks)
        wish = self.wishes.get(op.results[0])
        is_turned = wish == by_columns
        if wish not in (by_rows, by_columns):
            is_turned = self._meets_turned(op.results[0], by_rows, by_columns)
        self._add(op, copies, by_columns if is_turned else by_rows)

    def _turned(self, attrs: DotAttrs, operand: int, value: Value) -> Value:
        """Return a copy with summed dimensions fastest, unless a weight."""
        contracting = (attrs.lhs_contracting, attrs.rhs_contracting)[operand]
        order = self.outer.orders[value]
        if not order or order[-1] in contracting or value in self.outer.inputs:
            return value
        return self._copy(value, summed_fastest(attrs, operand, order))

    def _meets_turned(self, value: Value, by_rows: Order, by_columns: Order) -> bool:
        """Return whether a product's first partner is laid out by columns."""
        renamed, orders = self.outer.renamed, self.outer.orders
        pending, steps = [(value, by_rows, by_columns)], 0
        while pending and steps < _MOST_STEPS:
            value, rows, columns = pending.pop(0)
            for user in self.uses.readers(value):
                steps += 1
                if user.traits.is_elementwise:
                    met = {
                        orders[renamed[operand]]
                        for operand in user.operands
                        if operand in renamed and shape_of(operand) == shape_of(value)
                    }
                    if rows in met or columns in met:
                        return rows not in met
                passed = [_passed(user, order) for order in (rows, columns)]
                if passed[0] is not None and passed[1] is not None:
                    pending.append((user.results[0], passed[0], passed[1]))
        return False

    def collective(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a collective along a dimension, which is the slowest."""
        assert isinstance(op.attrs, CollectiveAttrs)  # noqa: S101 - it is a collective
        dimension = op.attrs.dimension or 0
        results: list[Value] = []
        laid: list[Value] = []
        for value, result in zip(operands, op.results, strict=True):
            order, shape, result_shape = self.outer.orders[value], shape_of(value), shape_of(result)
            if order is None or (shape[dimension] > 1 and order[:1] != (dimension,)):
                order = major(dimension, shape)
            is_same = default_order(result_shape) == default_order(shape)
            laid.append(self._as(value, order))
            after = order if is_same else major(dimension, result_shape)
            results.append(self.outer.fresh(result, after))
        self.operations.append(replace(op, operands=tuple(laid), results=tuple(results)))

    def unmoved(self, op: Op, operands: Sequence[Value]) -> None:
        """Add an operation whose results lie as its operands do."""
        results: list[Value] = []
        for value, result in zip(operands, op.results, strict=True):
            order = self.outer.orders[value]
            lying = memory_order(value)[::-1] if order is None else order
            new_result = self.outer.fresh(result, lying)
            if value in self.outer.inputs:
                self.outer.inputs.add(new_result)
            results.append(new_result)
        self.operations.append(replace(op, operands=tuple(operands), results=tuple(results)))

    def standing(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a standalone operation with operands in its own or default order."""
        of_cudnn = cudnn_orders(op, self.outer.compute_capability)
        if of_cudnn is not None:
            orders, result_order = of_cudnn
            pairs = zip(operands, orders, strict=True)
            self._add(op, [self._as(value, order) for value, order in pairs], result_order)
            return
        laid = self.default(operands)
        if op.traits.category is Category.CONTROL:
            free = self._free(op, laid)
            regions = [self.outer.block(region, free) for region in op.regions]
            op = replace(op, regions=tuple(regions))
        results = tuple([
            self.outer.fresh(value, default_order(shape_of(value))) for value in op.results
        ])  # fmt: skip
        self.operations.append(replace(op, operands=laid, results=results))

    def _free(self, op: Op, operands: Sequence[Value]) -> set[Value]:
        """Return a loop's read-only arguments of open order, which its body decides."""
        if op.kind != "while":
            return set()
        condition, body = op.regions
        handed = zip(operands, body.arguments, body.operations[-1].operands, strict=True)
        places = [
            place
            for place, (value, argument, after) in enumerate(handed)
            if self.outer.orders[value] is None and after is argument
        ]
        return {region.arguments[place] for region in (condition, body) for place in places}


_RULES: Mapping[str, Callable[[_Walk, Op, Sequence[Value]], None]] = {
    "transpose": _Walk.transpose,
    "reshape": _Walk.reshape,
    "reduce": _Walk.reduce,
    "dot_general": _Walk.dot,
    **dict.fromkeys(_ALONG_A_DIMENSION, _Walk.collective),
    **dict.fromkeys(_UNMOVED, _Walk.unmoved),
}


def _passed(op: Op, order: Order) -> Order | None:
    """Return the result's order for an operand's, if any."""
    if op.traits.is_elementwise:
        return order
    if op.kind == "transpose" and isinstance(op.attrs, DimensionsAttrs):
        return transposed(order, op.attrs.dimensions)
    if op.kind == "reshape":
        return reshaped(order, shape_of(op.operands[0]), shape_of(op.results[0]))
    return None


def _like(op: Op) -> Value:
    return op.operands[-1 if op.kind == "select" else 0]


def _is_small(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.element.name in FLOATS_OF_8_BITS
