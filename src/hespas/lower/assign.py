"""Give every value of a block a layout, with copies where an operation takes another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod

from msgspec.structs import replace

from hespas.lower.contiguous import in_pieces, is_one_kernel
from hespas.lower.cudnn import taken_orders
from hespas.lower.kinds import BROADCASTS, CREATING, ELEMENTWISE, HOLDING
from hespas.lower.layouts import (
    Order,
    default_order,
    following,
    is_taken,
    layout_of,
    major,
    merged_orders,
    operand_order,
    reshaped,
    result_orders,
    summed_fastest,
    sums_fastest,
    transposed,
)
from hespas.lower.libraries import Libraries
from hespas.lower.wishes import ALONG, ALONG_A_DIMENSION, RENAMING, wanted_orders, within
from hespas.program.attrs import NO_ATTRS, CollectiveAttrs, DimensionsAttrs, DotAttrs
from hespas.program.program import Block, Op, Value, shape_of
from hespas.program.types import TensorType, Type

_SMALL = frozenset({"f8E4M3FN", "f8E5M2"})
_UNMOVED = frozenset({"all_reduce", "collective_broadcast", "collective_permute"})


def _with_order(kind: TensorType, order: Order) -> TensorType:
    layout = layout_of(order, kind.shape)
    if layout == kind.layout:
        return kind
    return replace(kind, layout=layout)


def _ordered(kind: Type, order: Order) -> Type:
    return _with_order(kind, order) if isinstance(kind, TensorType) else kind


@dataclass(slots=True, kw_only=True)
class Assignment:
    """The values of a program with their layouts.

    ``named`` maps a value to the one that stands for it, ``orders`` that one to its order: None
    for what is made inside every kernel, in whatever order it is needed. With ``libraries`` there
    are no copies but those that their products of 8 bits need. ``compute_capability`` is the
    part's, None if unknown.
    """

    libraries: Libraries | None = None
    compute_capability: float | None = None
    named: dict[Value, Value] = field(default_factory=dict[Value, Value])
    orders: dict[Value, Order | None] = field(default_factory=dict[Value, Order | None])
    given: dict[Value, None] = field(default_factory=dict[Value, None])

    def block(self, block: Block, free: AbstractSet[Value] = frozenset()) -> Block:
        """Return a block whose values have layouts; arguments and results have the default.

        Arguments that are ``free`` lie as each of their users takes them.
        """
        arguments = tuple(
            [
                self._fresh(value, None if value in free else default_order(shape_of(value)))
                for value in block.arguments
            ]
        )
        self.given.update(dict.fromkeys(arguments))
        wishes = wanted_orders(block, self.compute_capability)
        walk = _Walk(outer=self, wishes=wishes, users=_users(block))
        for op in block.operations[:-1]:
            walk.op(op)
        last = block.operations[-1]
        results = tuple([walk.default(value) for value in last.operands])
        end = replace(last, operands=results)
        return Block(arguments=arguments, operations=(*walk.operations, end))

    def _fresh(self, value: Value, order: Order | None, like: Order | None = None) -> Value:
        kind = value.type
        named = order if order is not None else like
        made = Value(type=kind if named is None else _ordered(kind, named))
        self.named[value] = made
        self.orders[made] = order
        return made

    fresh = _fresh


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block.

    ``copies`` are those made so far, by value and order; ``place`` is where the operation stands
    that they are made for.
    """

    outer: Assignment
    wishes: dict[Value, Order]
    users: dict[Value, list[Op]]
    operations: list[Op] = field(default_factory=list[Op])
    copies: dict[tuple[Value, Order], Value] = field(
        default_factory=dict[tuple[Value, Order], Value]
    )
    place: tuple[str, str] = ("", "")

    def op(self, op: Op) -> None:
        """Add an operation, its operands in the orders in which it takes them."""
        named, orders = self.outer.named, self.outer.orders
        operands = [named[value] for value in op.operands]
        self.place = (op.source_location, op.scope)
        kind, attrs = op.kind, op.attrs
        if kind in CREATING:
            self._add(op, operands, None)
        elif kind in BROADCASTS:
            self._add(op, operands, _broadcast_order(op, operands, orders))
        elif kind in ALONG and _has_rank(op):
            self._along(op, operands)
        elif kind == "transpose" and isinstance(attrs, DimensionsAttrs):
            self._transpose(op, operands, attrs.dimensions)
        elif kind == "reshape":
            self._reshape(op, operands)
        elif kind == "reduce" and isinstance(attrs, DimensionsAttrs):
            self._reduce(op, operands, attrs.dimensions)
        elif isinstance(attrs, DotAttrs) and kind == "dot_general":
            self._dot(op, operands, attrs)
        elif kind in ALONG_A_DIMENSION and isinstance(attrs, CollectiveAttrs):
            self._collective(op, operands, attrs.dimension or 0)
        elif kind in _UNMOVED or kind == "optimization_barrier":
            self._unmoved(op, operands)
        else:
            self._standing(op, operands)

    def default(self, value: Value) -> Value:
        """Return what stands for a value, in the default order."""
        return self._as(self.outer.named[value], default_order(shape_of(value)))

    def _as(self, value: Value, order: Order) -> Value:
        """Return a value in an order, copied if it has another one."""
        now = self.outer.orders[value]
        if now is None or now == order or self.outer.libraries is not None:
            return value
        return self._copied(value, order)

    def _copied(self, value: Value, order: Order) -> Value:
        """Return a copy of a value in an order, the one that there is already if there is one."""
        if not isinstance(value.type, TensorType):
            return value
        found = self.copies.get((value, order))
        if found is None:
            found = Value(type=_with_order(value.type, order))
            self.outer.orders[found] = order
            copy = Op(
                dialect="mhlo",
                kind="copy",
                operands=(value,),
                results=(found,),
                attrs=NO_ATTRS,
                source_location=self.place[0],
                scope=self.place[1],
            )
            self.operations.append(copy)
            self.copies[value, order] = found
        return found

    def _add(
        self,
        op: Op,
        operands: Iterable[Value],
        order: Order | None,
        like: Order | None = None,
    ) -> None:
        results = tuple([self.outer.fresh(value, order, like) for value in op.results])
        taken = tuple(operands)
        if op.kind in RENAMING and taken[0] in self.outer.given:
            self.outer.given.update(dict.fromkeys(results))
        self.operations.append(replace(op, operands=taken, results=results))

    def _along(self, op: Op, operands: Sequence[Value]) -> None:
        made = shape_of(op.results[0])
        orders = self.outer.orders
        sized = [value for value in operands if len(shape_of(value)) == len(made)]
        order = self._chosen(op, sized)
        if order is None:
            self._add(op, operands, None)
            return
        taken = [
            self._as(value, within(order, shape_of(value)))
            if value in sized and orders[value] is not None
            else value
            for value in operands
        ]
        self._add(op, taken, within(order, made))

    def _chosen(self, op: Op, sized: Sequence[Value]) -> Order | None:
        """Return the order that an operation takes: that of most bytes, or the wanted one."""
        weights: dict[Order, int] = {}
        for value in dict.fromkeys(sized):
            order = self.outer.orders[value]
            if order is not None and isinstance(value.type, TensorType):
                weights[order] = weights.get(order, 0) + value.type.size_bytes
        if not weights:
            return None
        wish = self.wishes.get(op.results[0])
        best = max(weights.values())
        heaviest = [order for order, weight in weights.items() if weight == best]
        return wish if wish is not None and wish in heaviest else heaviest[0]

    def _transpose(self, op: Op, operands: Sequence[Value], permutation: tuple[int, ...]) -> None:
        (value,) = operands
        order = self.outer.orders[value]
        lying = _lying(value) if order is None else order
        made = transposed(lying, permutation)
        self._add(op, operands, None if order is None else made, made)

    def _reshape(self, op: Op, operands: Sequence[Value]) -> None:
        (value,) = operands
        order, after = self.outer.orders[value], shape_of(op.results[0])
        if order is None:
            self._add(op, operands, None)
            return
        made = reshaped(order, shape_of(value), after)
        if made is None:
            value = self._as(value, default_order(shape_of(value)))
            made = default_order(after)
        self._add(op, (value,), made)

    def _reduce(self, op: Op, operands: Sequence[Value], dimensions: tuple[int, ...]) -> None:
        count = len(op.results)
        orders = self.outer.orders
        order = next((each for each in map(orders.get, operands[:count]) if each is not None), None)
        shape = shape_of(op.operands[0])
        if order is None:
            order = default_order(shape)
        taken = [self._as(value, order) for value in operands[:count]]
        kept = [at for at in range(len(shape)) if at not in dimensions]
        number = {at: new for new, at in enumerate(kept)}
        made = tuple([number[at] for at in order if at in number])
        if count > 1:
            self._add(op, (*taken, *operands[count:]), made)
            return
        if is_one_kernel(shape, order, dimensions):
            made = self._reduced_order(op.results[0], made)
        result = self.outer.fresh(op.results[0], made)
        reduction = replace(op, operands=(taken[0], operands[1]), results=(result,))
        for each in in_pieces(reduction, order, dimensions):
            self.operations.append(each)
            self.outer.orders.setdefault(each.results[0], default_order(shape_of(each.results[0])))

    def _reduced_order(self, value: Value, made: Order) -> Order:
        """Return the order in which a reduction writes: that of its data, if users take it so."""
        wish = self.wishes.get(value)
        if wish is not None and sorted(wish) == sorted(made):
            return wish
        reshapes = [op for op in self.users.get(value, ()) if op.kind == "reshape"]
        shapes = [shape_of(op.results[0]) for op in reshapes]
        if any(reshaped(made, shape_of(value), shape) is None for shape in shapes):
            return default_order(shape_of(value))
        return made

    def _dot(self, op: Op, operands: Sequence[Value], attrs: DotAttrs) -> None:
        taken: list[Value] = []
        orders: list[Order] = []
        shapes = tuple(map(shape_of, operands))
        merged = merged_orders(attrs, shapes) if self.outer.libraries is None else ()
        turns = self.outer.libraries is None and sums_fastest(op, self.outer.compute_capability)
        for at, value in enumerate(operands):
            shape = shapes[at]
            order = self.outer.orders[value]
            if order is None:
                order = default_order(shape)
            if merged:
                order = merged[at]
            elif not is_taken(attrs, at, order, shape):
                order = operand_order(attrs, at, shape)
            if turns:
                order = summed_fastest(attrs, at, order)
            taken.append(self._as(value, order))
            orders.append(order)
        if self.outer.libraries is not None and self.outer.libraries.turns_8_bits:
            taken = [self._turned(attrs, at, value) for at, value in enumerate(taken)]
        other = following(attrs, orders[0], orders[1], shape_of(operands[1]))
        if other != orders[1]:
            taken[1], orders[1] = self._as(taken[1], other), other
        by_rows, by_columns = result_orders(attrs, orders[0], orders[1], len(shape_of(operands[0])))
        wish = self.wishes.get(op.results[0])
        is_turned = wish == by_columns
        if wish not in (by_rows, by_columns):
            is_turned = self._meets_turned(op.results[0], by_rows, by_columns)
        self._add(op, taken, by_columns if is_turned else by_rows)

    def _turned(self, attrs: DotAttrs, operand: int, value: Value) -> Value:
        """Return an operand of 8 bits with its summed dimensions fastest; weights are kept so."""
        contracting = (attrs.lhs_contracting, attrs.rhs_contracting)[operand]
        order = self.outer.orders[value]
        is_small = isinstance(value.type, TensorType) and value.type.element.name in _SMALL
        if not is_small or not order or order[-1] in contracting or value in self.outer.given:
            return value
        return self._copied(value, summed_fastest(attrs, operand, order))

    def _meets_turned(self, value: Value, by_rows: Order, by_columns: Order) -> bool:
        """Return whether what a product is combined with first lies as its columns would."""
        named, orders = self.outer.named, self.outer.orders
        pending, steps = [(value, by_rows, by_columns)], 0
        while pending and steps < _MOST_STEPS:
            value, rows, columns = pending.pop(0)
            for user in self.users.get(value, ()):
                steps += 1
                if user.kind in ELEMENTWISE:
                    met = {
                        orders[named[other]]
                        for other in user.operands
                        if other in named and shape_of(other) == shape_of(value)
                    }
                    if rows in met:
                        return False
                    if columns in met:
                        return True
                passed = _passed(user, rows, columns)
                if passed is not None:
                    pending.append((user.results[0], *passed))
        return False

    def _collective(self, op: Op, operands: Sequence[Value], dimension: int) -> None:
        results: list[Value] = []
        taken: list[Value] = []
        for value, result in zip(operands, op.results, strict=True):
            order = self.outer.orders[value]
            shape = shape_of(value)
            if order is None or (shape[dimension] > 1 and order[:1] != (dimension,)):
                order = major(dimension, shape)
            whole = shape_of(result)
            wanted = (
                order if default_order(whole) == default_order(shape) else major(dimension, whole)
            )
            taken.append(self._as(value, order))
            results.append(self.outer.fresh(result, wanted))
        self.operations.append(replace(op, operands=tuple(taken), results=tuple(results)))

    def _unmoved(self, op: Op, operands: Sequence[Value]) -> None:
        results: list[Value] = []
        for value, result in zip(operands, op.results, strict=True):
            order = self.outer.orders[value]
            made = self.outer.fresh(result, _lying(value) if order is None else order)
            if value in self.outer.given:
                self.outer.given[made] = None
            results.append(made)
        self.operations.append(replace(op, operands=tuple(operands), results=tuple(results)))

    def _standing(self, op: Op, operands: Sequence[Value]) -> None:
        """Add what stands alone, or ends a kernel: its operands lie as it says."""
        taken = taken_orders(op, self.outer.compute_capability)
        if taken is not None:
            self._cudnn(op, operands, *taken)
        elif op.kind == "scatter" and len(op.results) == 1:
            self._scatter(op, operands)
        else:
            self._library(op, operands)

    def _scatter(self, op: Op, operands: Sequence[Value]) -> None:
        """Add a scatter: its result lies as what it writes over, zeros as its users want them."""
        start, *others = operands
        order = self.outer.orders[start]
        if order is None:
            shape = shape_of(start)
            order = self.wishes.get(op.results[0], default_order(shape))
        taken = [self._as(value, default_order(shape_of(value))) for value in others]
        self._add(op, (start, *taken), order)

    def _cudnn(
        self, op: Op, operands: Sequence[Value], orders: Sequence[Order], made: Order
    ) -> None:
        taken = [self._as(value, order) for value, order in zip(operands, orders, strict=True)]
        self._add(op, taken, made)

    def _library(self, op: Op, operands: Sequence[Value]) -> None:
        taken = [self._as(value, default_order(shape_of(value))) for value in operands]
        if op.kind in HOLDING:
            free = self._free(op, taken)
            regions = [self.outer.block(region, free) for region in op.regions]
            op = replace(op, regions=tuple(regions))
        results = tuple(
            [self.outer.fresh(value, default_order(shape_of(value))) for value in op.results]
        )
        self.operations.append(replace(op, operands=tuple(taken), results=results))

    def _free(self, op: Op, operands: Sequence[Value]) -> set[Value]:
        """Return the arguments of a loop that are only read, of values whose order is open.

        The compiler lays them out as the loop's body wants them.
        """
        if op.kind != "while":
            return set()
        condition, body = op.regions
        open_orders = {
            at
            for at, value in enumerate(operands)
            if self.outer.orders[value] is None
            and body.operations[-1].operands[at] is body.arguments[at]
        }
        return {region.arguments[at] for region in (condition, body) for at in open_orders}


_MOST_STEPS = 24


def _passed(op: Op, rows: Order, columns: Order) -> tuple[Order, Order] | None:
    """Return what two orders of an operand become in the result; None where they are lost."""
    if op.kind in ELEMENTWISE:
        return rows, columns
    if op.kind == "transpose" and isinstance(op.attrs, DimensionsAttrs):
        return transposed(rows, op.attrs.dimensions), transposed(columns, op.attrs.dimensions)
    if op.kind == "reshape":
        before, after = shape_of(op.operands[0]), shape_of(op.results[0])
        made = reshaped(rows, before, after), reshaped(columns, before, after)
        return None if made[0] is None or made[1] is None else (made[0], made[1])
    return None


def _users(block: Block) -> dict[Value, list[Op]]:
    users: dict[Value, list[Op]] = {}
    for op in block.operations[:-1]:
        for value in dict.fromkeys(op.operands):
            users.setdefault(value, []).append(op)
    return users


def _has_rank(op: Op) -> bool:
    like = op.operands[-1 if op.kind == "select" else 0]
    return len(shape_of(op.results[0])) == len(shape_of(like))


def _lying(value: Value) -> Order:
    """Return the order that a value's type says."""
    shape = shape_of(value)
    layout = value.type.layout if isinstance(value.type, TensorType) else None
    if layout is None:
        return default_order(shape)
    return tuple([at for at in reversed(layout) if shape[at] > 1])


def _broadcast_order(
    op: Op, operands: Sequence[Value], orders: dict[Value, Order | None]
) -> Order | None:
    """Return the order of a broadcast that repeats nothing; None of any other."""
    value = operands[0]
    order, made = orders[value], shape_of(op.results[0])
    if order is None or not isinstance(op.attrs, DimensionsAttrs) or op.kind == "broadcast":
        return None
    if prod(made) != prod(shape_of(value)):
        return None
    return tuple([op.attrs.dimensions[at] for at in order])
