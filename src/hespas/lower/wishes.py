"""Find in which order the users of each value would like to have its dimensions."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from hespas.lower.cudnn import taken_orders
from hespas.lower.layouts import (
    Order,
    default_order,
    is_taken,
    major,
    merged_orders,
    operand_order,
    reshaped,
)
from hespas.program.attrs import CollectiveAttrs, DimensionsAttrs, DotAttrs
from hespas.program.operations.table import kinds_where
from hespas.program.program import Block, Op, Value, shape_of

ALONG = kinds_where(lambda traits: traits.keeps_dimensions)
"""The result has its dimensions in the order of the operands that have as many."""

RENAMING = frozenset({"reshape", "slice", "transpose"})
"""The result may be the operand's bytes under another name."""

ALONG_A_DIMENSION = frozenset({"all_gather", "all_to_all", "reduce_scatter"})
"""Collectives that gather or scatter along a dimension, which they want slowest."""


def within(order: Order, shape: tuple[int, ...]) -> Order:
    """Return an order for another shape of the same rank."""
    if len(order) == len(default_order(shape)):
        return order
    if list(order) == sorted(order):
        return default_order(shape)
    known = [at for at in order if shape[at] > 1]
    rest = [at for at in default_order(shape) if at not in known]
    return (*rest, *known)


def wanted_orders(block: Block, compute_capability: float | None) -> dict[Value, Order]:
    """Return the order in which users would like to have a value, for those who care."""
    votes: dict[Value, dict[Order, int]] = {}

    def wish(value: Value, order: Order | None) -> None:
        if order is not None and len(order) > 1:
            cast = votes.setdefault(value, {})
            cast[order] = cast.get(order, 0) + 1

    chosen: dict[Value, Order] = {}
    returned = set(block.operations[-1].operands)
    for value in block.operations[-1].operands:
        wish(value, default_order(shape_of(value)))
    for op in reversed(block.operations[:-1]):
        best: Order | None = None
        for result in op.results:
            cast = votes.get(result, {})
            if cast:
                most = max(cast.values())
                best = chosen[result] = next(order for order in cast if cast[order] == most)
        if op.kind in RENAMING and op.results[0] in returned:
            returned.add(op.operands[0])
        orders = _each_wanted(op, chosen, returned, compute_capability)
        if orders is None:
            _pass_back(op, best, wish)
            continue
        for value, order in zip(op.operands, orders, strict=True):
            wish(value, order)
    return chosen


def _each_wanted(
    op: Op,
    chosen: Mapping[Value, Order],
    returned: Container[Value],
    compute_capability: float | None,
) -> Sequence[Order | None] | None:
    """Return how each operand should lie; None where that is decided for all alike.

    Through a barrier that is known of what is ``returned``, whose order is fixed.
    """
    if op.kind == "optimization_barrier":
        return [chosen.get(result) if result in returned else None for result in op.results]
    taken = taken_orders(op, compute_capability)
    return None if taken is None else taken[0]


def _pass_back(op: Op, best: Order | None, wish: Callable[[Value, Order | None], None]) -> None:
    """Pass on to an operation's operands how they should lie; ``best`` is what is wanted of it."""
    attrs = op.attrs
    if isinstance(attrs, DotAttrs) and op.kind == "dot_general":
        if merged_orders(attrs, tuple(map(shape_of, op.operands))):
            return
        for at, value in enumerate(op.operands):
            shape = shape_of(value)
            if not is_taken(attrs, at, default_order(shape), shape):
                wish(value, operand_order(attrs, at, shape))
    elif op.kind in ALONG_A_DIMENSION and isinstance(attrs, CollectiveAttrs):
        for value in op.operands:
            wish(value, major(attrs.dimension or 0, shape_of(value)))
    elif best is not None:
        for value in op.operands:
            wish(value, _before(op, value, best))


def _before(op: Op, value: Value, best: Order) -> Order | None:
    """Return the order of an operand in which the result has one; None where that is open."""
    if op.kind == "transpose" and isinstance(op.attrs, DimensionsAttrs):
        return tuple([op.attrs.dimensions[at] for at in best])
    if op.kind == "reshape":
        return reshaped(best, shape_of(op.results[0]), shape_of(value))
    if op.kind in ALONG and len(shape_of(value)) == len(shape_of(op.results[0])):
        return within(best, shape_of(value))
    return None
