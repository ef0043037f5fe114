"""Find the constant tables of scalars that TPU kernels read.

A kernel's index maps and conditions read such tables: which blocks of a mask are empty, which
expert a tile belongs to. They reach the call through loops, functions and copies. If a sequence is
divided over devices, each device reads its part at its own number (``partition_id``): a value
derived from that number is as well known as a constant, with one row of numbers for each kind of
device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod

import msgspec

from hespas.program.attrs import (
    CallAttrs,
    ConstantAttrs,
    CustomCallAttrs,
    DeviceTables,
    Table,
    WhileAttrs,
    is_of_pallas,
)
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Program, Value
from hespas.program.rewrite import each_op, with_bodies
from hespas.program.text import array_text, rows_text
from hespas.program.types import ElementType, NumberKind, TensorType
from hespas.xla.mlir.text import read_dense_numbers, read_integers

Row = tuple[int, ...]
MOST_BYTES = 1 << 22
"""The largest table. A mask's grows with the square of the sequence: this is 700,000 tokens."""
_MOST_OPERATIONS = 1 << 12


class DeviceNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """An integer array's row-major elements on each device.

    ``rows`` are the distinct rows, in the order of the first device that has each; ``row_of`` is
    the position of each device's row, empty if all devices have the same row.
    """

    rows: tuple[Row, ...]
    row_of: tuple[int, ...] = ()


def on_all(numbers: Row) -> DeviceNumbers:
    """Return numbers that are equal on every device."""
    return DeviceNumbers(rows=(numbers,))


def on_each(rows: Sequence[Row]) -> DeviceNumbers:
    """Return numbers from the row of each device.

    >>> on_each([(5,), (7,), (5,)])
    DeviceNumbers(rows=((5,), (7,)), row_of=(0, 1, 0))
    """
    positions = {row: position for position, row in enumerate(dict.fromkeys(rows))}
    row_of = tuple([positions[row] for row in rows]) if len(positions) > 1 else ()
    return DeviceNumbers(rows=tuple(positions), row_of=row_of)


def kinds_of_device(numbers: Sequence[DeviceNumbers]) -> dict[tuple[int, ...], int]:
    """Count the devices of each kind: each combination of rows.

    A key has the row of each of ``numbers``. The count is 0 if all devices are alike.

    >>> kinds_of_device([on_all((3,)), on_each([(5,), (7,), (5,)])])
    {(0, 0): 2, (0, 1): 1}
    """
    if not any(array.row_of for array in numbers):
        return {(0,) * len(numbers): 0}
    return dict(Counter(_row_numbers(numbers)))


def _row_numbers(numbers: Sequence[DeviceNumbers]) -> list[tuple[int, ...]]:
    """Return each device's rows, once if all are alike."""
    devices = max([len(array.row_of) for array in numbers], default=0) or 1
    return list(zip(*[array.row_of or (0,) * devices for array in numbers], strict=True))


def computed(op: Op, operands: Sequence[DeviceNumbers]) -> DeviceNumbers | None:
    """Return an operation's result on known integers, or None."""
    rule = _RULES.get(op.kind)
    shapes = _shapes(op)
    if rule is None or shapes is None or shapes[-1].size_bytes > MOST_BYTES:
        return None
    results: dict[tuple[int, ...], Row] = {}
    for kind in kinds_of_device(operands):
        rows = [array.rows[row_number] for array, row_number in zip(operands, kind, strict=True)]
        row = rule(shapes, rows)
        if row is None or not _fits(row, shapes[-1].element):
            return None
        results[kind] = row
    return on_each([results[kind] for kind in _row_numbers(operands)])


def _shapes(op: Op) -> tuple[TensorType, ...] | None:
    types = [value.type for value in (*op.operands, *op.results)]
    tensors = tuple([kind for kind in types if isinstance(kind, TensorType)])
    return tensors if len(tensors) == len(types) and len(op.results) == 1 else None


def _fits(row: Row, element: ElementType) -> bool:
    """Return whether a type holds the numbers without overflow."""
    if element.kind is not NumberKind.INTEGER:
        return False
    is_unsigned = element.name.startswith("u")
    least = 0 if is_unsigned else -(1 << (element.bits - 1))
    return least <= min(row) and max(row) < least + (1 << element.bits)


def _dynamic_slice(shapes: Sequence[TensorType], rows: Sequence[Row]) -> Row:
    """Cut out a block; starts are clamped (StableHLO)."""
    lengths, sizes = shapes[0].shape, shapes[-1].shape
    starts = [
        min(max(start, 0), length - size)
        for (start,), length, size in zip(rows[1:], lengths, sizes, strict=True)
    ]
    strides = [prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    first = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    run = sizes[-1]
    outer = product(
        *[
            range(0, size * stride, stride)
            for size, stride in zip(sizes[:-1], strides[:-1], strict=True)
        ]
    )
    numbers = rows[0]
    return tuple(
        [n for offset in map(sum, outer) for n in numbers[first + offset : first + offset + run]]
    )


def _broadcast(shapes: Sequence[TensorType], rows: Sequence[Row]) -> Row | None:
    """Repeat one number."""
    return rows[0] * shapes[-1].element_count if len(rows[0]) == 1 else None


def _clamp(_: Sequence[TensorType], rows: Sequence[Row]) -> Row | None:
    """Clamp numbers, as compilers do in slices by device."""
    least, numbers, most = rows
    if len(numbers) > _MOST_OPERATIONS or not {len(least), len(most)} <= {1, len(numbers)}:
        return None
    bounds = [bound * len(numbers) if len(bound) == 1 else bound for bound in (least, most)]
    between = zip(bounds[0], numbers, bounds[1], strict=True)
    return tuple([min(max(low, number), high) for low, number, high in between])


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


_TABLE = "table_of_operand_"
_DEVICES = "devices_of_tables"
_BYTE_BITS = 8
_UNCHANGED = frozenset({"bitcast", "convert", "copy", "optimization_barrier", "reshape"})
_RUNS_INSIDE = (Category.ASYNCHRONOUS, Category.FUSION)
_SHARDING = frozenset({"LayoutConstraint", "Sharding", "SPMDFullToShardShape"})


def is_table(kind: object) -> bool:
    """Return whether constants of a type may be tables."""
    return isinstance(kind, TensorType) and kind.rank > 0 and _is_tracked(kind)


def _is_tracked(kind: TensorType) -> bool:
    """Return whether a type's constants are tables or indices."""
    element = kind.element
    is_whole_bytes = element.kind is NumberKind.INTEGER and element.bits >= _BYTE_BITS
    return is_whole_bytes and kind.size_bytes <= MOST_BYTES


def with_tables(program: Program) -> Program:
    """Return the program with each kernel call's known tables."""
    finder = _Finder(program)
    finder.block(program.main.body)
    return with_bodies(program, lambda body: each_op(body, finder.with_known_tables))


@lru_cache(maxsize=256)
def _numbers(text: str) -> tuple[int, ...]:
    return read_dense_numbers(text)


def _devices(program: Program) -> Mapping[str, DeviceNumbers]:
    replicas, partitions = program.replicas or 1, program.partitions or 1
    if replicas * partitions == 1:
        return {}
    coordinates = [
        (replica, partition) for replica in range(replicas) for partition in range(partitions)
    ]
    return {
        "replica_id": on_each([(replica,) for replica, _ in coordinates]),
        "partition_id": on_each([(partition,) for _, partition in coordinates]),
    }


def _tables(texts: Mapping[str, str]) -> tuple[DeviceTables, ...]:
    counts = read_integers(texts[_DEVICES]) if _DEVICES in texts else (0,)
    numbers_of_operands = {
        int(name.removeprefix(_TABLE)): _numbers(text)
        for name, text in sorted(texts.items())
        if name.startswith(_TABLE)
    }
    tables: list[DeviceTables] = []
    for kind, devices in enumerate(counts):
        rows: list[Table] = []
        for operand, numbers in numbers_of_operands.items():
            length = len(numbers) // len(counts)
            row = numbers[kind * length : (kind + 1) * length]
            rows.append(Table(operand=operand, numbers=row))
        tables.append(DeviceTables(tables=tuple(rows), devices=devices))
    return tuple(tables) if numbers_of_operands else ()


class _Finder:
    """Tracks integers from their constants to their uses.

    A value with several possible numbers on one device is None.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[Value, DeviceNumbers | None] = {}
        self._devices = _devices(program)

    def block(self, block: Block) -> None:
        """Track the integers in a block."""
        for op in block.operations:
            self._op(op)

    def with_known_tables(self, op: Op) -> Op:
        """Return a kernel call with its tables; other operations unchanged."""
        if not is_of_pallas(op.attrs):
            return op
        texts = dict(op.attributes)
        # The text of a region may begin after its constants; the attributes then hold the tables.
        if not any(name.startswith(_TABLE) for name in texts):
            texts |= self._texts(op)
        attrs = msgspec.structs.replace(op.attrs, tables=_tables(texts))
        return msgspec.structs.replace(op, attrs=attrs, attributes=tuple(sorted(texts.items())))

    def _texts(self, op: Op) -> dict[str, str]:
        tables = {
            number: numbers
            for number, operand in enumerate(op.operands)
            if (numbers := self._known.get(operand)) and is_table(operand.type)
        }
        if not tables:
            return {}
        kinds = kinds_of_device(list(tables.values()))
        texts: dict[str, str] = {}
        for position, (number, numbers) in enumerate(tables.items()):
            rows = [numbers.rows[kind[position]] for kind in kinds]
            texts[f"{_TABLE}{number}"] = rows_text(rows, len(rows[0]))
        if len(kinds) > 1:
            texts[_DEVICES] = array_text(tuple(kinds.values()))
        return texts

    def _op(self, op: Op) -> None:
        match op.attrs:
            case CallAttrs(callee=callee):
                self._call(op, callee)
            case WhileAttrs():
                self._loop(op)
            case CustomCallAttrs(target=target) if target in _SHARDING:
                self._propagate(op.operands, op.results)
            case ConstantAttrs():
                self._constant(op)
            case _ if op.kind in _UNCHANGED:
                self._propagate(op.operands, op.results)
            case _ if op.traits.category in _RUNS_INSIDE:
                self._through_regions(op)
            case _ if op.regions:
                for region in op.regions:
                    self.block(region)
            case _:
                self._computed(op)

    def _constant(self, op: Op) -> None:
        text, kind = dict(op.attributes).get("value", ""), op.results[0].type
        is_whole = text.startswith("dense<") and "sha256" not in text
        if is_whole and isinstance(kind, TensorType) and _is_tracked(kind):
            self._known[op.results[0]] = on_all(_numbers(text))

    def _computed(self, op: Op) -> None:
        operands = [self._known.get(value) for value in op.operands]
        numbers = [operand for operand in operands if operand is not None]
        outcome = self._devices.get(op.kind)
        if numbers and len(numbers) == len(operands):
            outcome = computed(op, numbers)
        for result in op.results:
            self._known[result] = outcome

    def _through_regions(self, op: Op) -> None:
        """Track values through a fusion or an asynchronous copy."""
        for region in op.regions:
            for argument in region.arguments:
                self._known.pop(argument, None)
            self._propagate(op.operands, region.arguments)
            self.block(region)
            self._propagate(region.operations[-1].operands, op.results)
        if not op.regions:
            self._propagate(op.operands, op.results)

    def _propagate(self, sources: Sequence[Value], results: Sequence[Value]) -> bool:
        """Propagate numbers to equal values; return whether any changed."""
        is_new = False
        for value, result in zip(sources, results, strict=False):
            numbers = self._known.get(value)
            if result not in self._known:
                is_new = is_new or numbers is not None
                self._known[result] = numbers
            elif self._known[result] != numbers and self._known[result] is not None:
                is_new = True
                self._known[result] = None
        return is_new

    def _call(self, op: Op, callee: str) -> None:
        body = self._program.function(callee, location=op.location).body
        first = any(argument not in self._known for argument in body.arguments)
        if self._propagate(op.operands, body.arguments) or first or not body.arguments:
            self.block(body)
        self._propagate(body.operations[-1].operands, op.results)

    def _loop(self, op: Op) -> None:
        """Track values that every iteration of a loop keeps."""
        for region in op.regions:
            self._propagate(op.operands, region.arguments)
        body = op.regions[-1]
        self.block(body)
        while self._propagate(body.operations[-1].operands, body.arguments):
            self.block(body)
        self._propagate(body.arguments, op.results)
