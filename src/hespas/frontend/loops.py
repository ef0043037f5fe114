"""Derive the trip count of a ``while``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hespas.base.frozen import frozen
from hespas.program.attrs import CompareAttrs, ConstantAttrs
from hespas.program.program import Block, Op, Value

_TRANSPARENT = frozenset(
    {"convert", "copy", "bitcast", "reshape", "broadcast_in_dim", "optimization_barrier"}
)
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_LONGEST_CHAIN = 64


@frozen
class _Loop:
    """A ``while``: initial values, condition and body."""

    start: tuple[Value, ...]
    condition: Block
    body: Block
    producer_of: Mapping[Value, Op]


@dataclass(frozen=True, slots=True)
class _TracedValue:
    """A value and the fusions around it, outermost first.

    Equal fusions share a block, so an argument is identified only together with its fusion.
    """

    value: Value
    inside: tuple[Op, ...] = ()


def trip_count(
    start: tuple[Value, ...], condition: Block, body: Block, producer: Mapping[Value, Op]
) -> int | None:
    """Return a loop's trip count, or None if unknown.

    The counter must start at a constant, change by a constant, and be compared with a constant;
    these constants may be defined anywhere, fusions included.
    """
    loop = _Loop(start=start, condition=condition, body=body, producer_of=producer)
    compared = _origin(loop, _TracedValue(condition.operations[-1].operands[0]))
    comparison = producer.get(compared.value)
    if comparison is None or not isinstance(comparison.attrs, CompareAttrs):
        return None
    left, right = (_TracedValue(operand, compared.inside) for operand in comparison.operands)
    direction = comparison.attrs.direction
    if _constant(loop, right) is None:
        left, right = right, left
        direction = _MIRRORED.get(direction, "")
    index = _argument_index(condition, _origin(loop, left).value)
    if index is None:
        return None
    limit, first = _constant(loop, right), _constant(loop, _TracedValue(start[index]))
    step = _step(loop, index)
    if limit is None or first is None or step is None:
        return None
    return _count(direction, first, limit, step)


def _count(direction: str, first: int, limit: int, step: int) -> int | None:
    """Count the iterations; None for an infinite loop.

    The counter takes the values first, first + step, ...
    """
    if direction in ("GT", "GE"):
        first, limit, step = -first, -limit, -step
    distance = limit - first
    match direction:
        case "LT" | "GT":
            return _steps_below(distance, step)
        case "LE" | "GE":
            return _steps_below(distance + 1, step)
        case "NE" if distance == 0:
            return 0
        case "NE" if step != 0 and distance % step == 0 and distance // step > 0:
            return distance // step
        case _:
            return None


def _steps_below(distance: int, step: int) -> int | None:
    if distance <= 0:
        return 0
    return -(-distance // step) if step > 0 else None


def _argument_index(block: Block, value: Value) -> int | None:
    return next(
        (position for position, argument in enumerate(block.arguments) if argument is value), None
    )


def _step(loop: _Loop, index: int) -> int | None:
    returned = _origin(loop, _TracedValue(loop.body.operations[-1].operands[index]))
    producer = loop.producer_of.get(returned.value)
    if producer is None or producer.kind not in ("add", "subtract"):
        return None
    counter = loop.body.arguments[index]
    left, right = (_TracedValue(operand, returned.inside) for operand in producer.operands)
    if _origin(loop, left).value is counter:
        step = _constant(loop, right)
    elif _origin(loop, right).value is counter and producer.kind == "add":
        step = _constant(loop, left)
    else:
        return None
    if step is None:
        return None
    return step if producer.kind == "add" else -step


def _origin(loop: _Loop, place: _TracedValue) -> _TracedValue:
    """Trace a value through operations that keep it, across fusions."""
    while True:
        producer = loop.producer_of.get(place.value)
        if producer is None:
            if not place.inside:
                return place
            *outer, fusion = place.inside
            index = _argument_index(fusion.regions[0], place.value)
            if index is None:
                return place
            place = _TracedValue(fusion.operands[index], tuple(outer))
        elif producer.kind == "fusion":
            returned = producer.regions[0].operations[-1].operands
            inner = returned[producer.results.index(place.value)]
            place = _TracedValue(inner, (*place.inside, producer))
        elif producer.kind in _TRANSPARENT and producer.operands:
            operand = producer.operands[producer.results.index(place.value)]
            place = _TracedValue(operand, place.inside)
        else:
            return place


def _constant(loop: _Loop, place: _TracedValue) -> int | None:
    """Trace a value to an integer constant, or return None."""
    for _ in range(_LONGEST_CHAIN):
        place = _origin(loop, place)
        producer = loop.producer_of.get(place.value)
        if producer is not None:
            number = producer.attrs.value if isinstance(producer.attrs, ConstantAttrs) else None
            return number if isinstance(number, int) else None
        carried = _initial_value(loop, place.value)
        if carried is None:
            return None
        place = _TracedValue(carried)
    return None


def _initial_value(loop: _Loop, value: Value) -> Value | None:
    for block in (loop.condition, loop.body):
        index = _argument_index(block, value)
        if index is None:
            continue
        next_value = loop.body.operations[-1].operands[index]
        return loop.start[index] if next_value is loop.body.arguments[index] else None
    return None
