"""Integers that are known before a program runs, though devices may differ in them.

A program of all devices is divided by tables that a device reads at its own number
(``partition_id``). What follows from such a number is as well known as a constant: there is one
row of numbers for each kind of device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

import msgspec

from hespas.program.program import Op
from hespas.program.types import ElementType, NumberKind, TensorType

Row = tuple[int, ...]
MOST_BYTES = 1 << 22
"""A table of a mask grows with the square of the sequence: this is one of 700,000 tokens."""
_MOST_OPERATIONS = 1 << 12


class DeviceNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The elements of an array of integers, in row-major order, on each device.

    ``rows`` are the different ones, in the order of the first device that has each; ``row_of`` is
    the position of each device's, empty where all devices have the same.
    """

    rows: tuple[Row, ...]
    row_of: tuple[int, ...] = ()


def on_all(numbers: Row) -> DeviceNumbers:
    """Return numbers that are the same on every device."""
    return DeviceNumbers(rows=(numbers,))


def on_each(rows: Sequence[Row]) -> DeviceNumbers:
    """Return numbers from the row of each device.

    >>> on_each([(5,), (7,), (5,)])
    DeviceNumbers(rows=((5,), (7,)), row_of=(0, 1, 0))
    """
    positions = {row: at for at, row in enumerate(dict.fromkeys(rows))}
    row_of = tuple([positions[row] for row in rows]) if len(positions) > 1 else ()
    return DeviceNumbers(rows=tuple(positions), row_of=row_of)


def kinds_of_device(numbers: Sequence[DeviceNumbers]) -> dict[tuple[int, ...], int]:
    """Return the kinds of device: the row of each of ``numbers``, and how many devices have them.

    The count is 0 where all devices are alike.

    >>> kinds_of_device([on_all((3,)), on_each([(5,), (7,), (5,)])])
    {(0, 0): 2, (0, 1): 1}
    """
    devices = max([len(each.row_of) for each in numbers], default=0)
    if not devices:
        return {(0,) * len(numbers): 0}
    counts: dict[tuple[int, ...], int] = {}
    for kind in zip(*[each.row_of or (0,) * devices for each in numbers], strict=True):
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def computed(op: Op, operands: Sequence[DeviceNumbers]) -> DeviceNumbers | None:
    """Return what an operation makes of known integers; None where there is no rule for it."""
    rule = _RULES.get(op.kind)
    shapes = _shapes(op)
    if rule is None or shapes is None or shapes[-1].size_bytes > MOST_BYTES:
        return None
    made: dict[tuple[int, ...], Row] = {}
    for kind in kinds_of_device(operands):
        rows = [each.rows[at] for each, at in zip(operands, kind, strict=True)]
        row = rule(shapes, rows)
        if row is None or not _fits(row, shapes[-1].element):
            return None
        made[kind] = row
    devices = max([len(each.row_of) for each in operands], default=0)
    if not devices:
        return on_all(next(iter(made.values())))
    kinds = zip(*[each.row_of or (0,) * devices for each in operands], strict=True)
    return on_each([made[kind] for kind in kinds])


def _shapes(op: Op) -> tuple[TensorType, ...] | None:
    """Return the types of the operands and of the result."""
    types = [value.type for value in (*op.operands, *op.results)]
    tensors = tuple([each for each in types if isinstance(each, TensorType)])
    return tensors if len(tensors) == len(types) and len(op.results) == 1 else None


def _fits(row: Row, element: ElementType) -> bool:
    """Return whether a type can hold the numbers, so that none was wrapped around."""
    if element.kind is not NumberKind.INTEGER:
        return False
    is_unsigned = element.name.startswith("u")
    least = 0 if is_unsigned else -(1 << (element.bits - 1))
    return least <= min(row) and max(row) < least + (1 << element.bits)


def _dynamic_slice(shapes: Sequence[TensorType], rows: Sequence[Row]) -> Row:
    """Cut a block out; a start that would leave the array is moved back (StableHLO)."""
    whole, sizes = shapes[0].shape, shapes[-1].shape
    starts = [
        min(max(start, 0), length - size)
        for (start,), length, size in zip(rows[1:], whole, sizes, strict=True)
    ]
    strides = [prod(whole[axis + 1 :]) for axis in range(len(whole))]
    first = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    run = sizes[-1]
    outer = product(
        *[
            range(0, size * stride, stride)
            for size, stride in zip(sizes[:-1], strides[:-1], strict=True)
        ]
    )
    numbers = rows[0]
    return tuple([n for at in map(sum, outer) for n in numbers[first + at : first + at + run]])


def _broadcast(shapes: Sequence[TensorType], rows: Sequence[Row]) -> Row | None:
    """Repeat one number."""
    return rows[0] * shapes[-1].element_count if len(rows[0]) == 1 else None


def _clamp(_: Sequence[TensorType], rows: Sequence[Row]) -> Row | None:
    """Keep numbers between two bounds; compilers make it of a slice by a device's number."""
    least, numbers, most = rows
    if len(numbers) > _MOST_OPERATIONS or not {len(least), len(most)} <= {1, len(numbers)}:
        return None
    bounds = [bound * len(numbers) if len(bound) == 1 else bound for bound in (least, most)]
    between = zip(bounds[0], numbers, bounds[1], strict=True)
    return tuple([min(max(low, at), high) for low, at, high in between])


def _elementwise(function: Callable[[int, int], int]) -> Rule:
    def rule(_: Sequence[TensorType], rows: Sequence[Row]) -> Row | None:
        return tuple(map(function, *rows)) if len(rows[0]) <= _MOST_OPERATIONS else None

    return rule


Rule = Callable[[Sequence[TensorType], Sequence[Row]], Row | None]

_RULES: Mapping[str, Rule] = {
    "add": _elementwise(int.__add__),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "dynamic_slice": _dynamic_slice,
    "maximum": _elementwise(max),
    "minimum": _elementwise(min),
    "multiply": _elementwise(int.__mul__),
    "subtract": _elementwise(int.__sub__),
}
