"""How often a ``while`` runs: read from its condition, its start and its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hespas.program.attrs import CompareAttrs, ConstantAttrs
from hespas.program.program import Block, Op, Value

_TRANSPARENT = frozenset(
    {"convert", "copy", "bitcast", "reshape", "broadcast_in_dim", "optimization_barrier"}
)
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}
_LONGEST_CHAIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A ``while``: what it starts from, its condition and its body."""

    start: tuple[Value, ...]
    condition: Block
    body: Block
    producer_of: Mapping[Value, Op]


def trip_count(
    start: tuple[Value, ...], condition: Block, body: Block, producer: Mapping[Value, Op]
) -> int | None:
    """Return how often the body runs, or None where that cannot be read off.

    Understands a counter that starts at a constant, grows or shrinks by a constant, and is
    compared with a constant, wherever those constants are defined.
    """
    loop = _Loop(start=start, condition=condition, body=body, producer_of=producer)
    comparison = producer.get(_copied(loop, condition.operations[-1].operands[0]))
    if comparison is None or not isinstance(comparison.attrs, CompareAttrs):
        return None
    left, right = comparison.operands
    direction = comparison.attrs.direction
    left, right = _copied(loop, left), _copied(loop, right)
    index = _argument_index(condition, left)
    if index is None or _constant(loop, right) is None:
        left, right = right, left
        direction = _MIRRORED.get(direction, "")
        index = _argument_index(condition, left)
    if index is None:
        return None
    limit, first = _constant(loop, right), _constant(loop, start[index])
    step = _step(loop, index)
    if limit is None or first is None or step is None:
        return None
    return _count(direction, first, limit, step)


def _count(direction: str, first: int, limit: int, step: int) -> int | None:
    """Count how often first, first + step, ... passes the comparison; None if for ever."""
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
    return next((at for at, argument in enumerate(block.arguments) if argument is value), None)


def _step(loop: _Loop, index: int) -> int | None:
    producer = loop.producer_of.get(loop.body.operations[-1].operands[index])
    if producer is None or producer.kind not in ("add", "subtract"):
        return None
    counter = loop.body.arguments[index]
    left, right = producer.operands
    if _copied(loop, left) is counter:
        step = _constant(loop, right)
    elif _copied(loop, right) is counter and producer.kind == "add":
        step = _constant(loop, left)
    else:
        return None
    if step is None:
        return None
    return step if producer.kind == "add" else -step


def _copied(loop: _Loop, value: Value) -> Value:
    """Follow a value back through what doesn't change it."""
    producer = loop.producer_of.get(value)
    while producer is not None and producer.kind in _TRANSPARENT and producer.operands:
        value = producer.operands[producer.results.index(value)]
        producer = loop.producer_of.get(value)
    return value


def _constant(loop: _Loop, value: Value) -> int | None:
    """Follow a value to an integer constant, through what doesn't change it."""
    for _ in range(_LONGEST_CHAIN):
        producer = loop.producer_of.get(value)
        if producer is None:
            carried = _unchanged(loop, value)
            if carried is None:
                return None
            value = carried
        elif isinstance(producer.attrs, ConstantAttrs):
            number = producer.attrs.value
            return number if isinstance(number, int) else None
        elif producer.kind in _TRANSPARENT:
            value = producer.operands[producer.results.index(value)] if producer.operands else value
        else:
            return None
    return None


def _unchanged(loop: _Loop, value: Value) -> Value | None:
    """Return what the loop starts with for an argument that the body hands on as it is."""
    for block in (loop.condition, loop.body):
        index = _argument_index(block, value)
        if index is None:
            continue
        handed_on = loop.body.operations[-1].operands[index]
        return loop.start[index] if handed_on is loop.body.arguments[index] else None
    return None
