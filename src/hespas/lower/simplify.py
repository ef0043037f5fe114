"""Simplify blocks as every compiler does, where that decides bytes and kernels.

Copies and operations that change nothing are dropped, numbers that are known are computed, equal
operations are one, and what nothing reads is left out. A barrier keeps what passes through it apart
from what does not, so that what is computed again stays so. Loops make constants again, also
broadcast ones, instead of carrying them.

Source: openxla/xla, ``AlgebraicSimplifier``, ``WhileLoopConstantSinking`` (Apache License 2.0).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.program.attrs import CompareAttrs, ConstantAttrs, DimensionsAttrs, SliceAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, size_of, values_read
from hespas.program.rewrite import live, plain_op, renamed_op
from hespas.program.text import structure_key
from hespas.program.types import NumberKind, TensorType, Type

_SHARED = (
    Category.ELEMENTWISE,
    Category.CREATION,
    Category.BROADCAST,
    Category.MOVEMENT,
    Category.PRODUCT,
)
_LAYOUT_NAMES = frozenset({"result_layout", "xla_shape", "mhlo.sharding"})
_FOLDED: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "convert": float,
    "multiply": operator.mul,
    "subtract": operator.sub,
    "EQ": operator.eq,
    "GE": operator.ge,
    "GT": operator.gt,
    "LE": operator.le,
    "LT": operator.lt,
    "NE": operator.ne,
}
"""What is done with numbers that are known before, as in a variance without a correction."""
_SMALL = 1 << 24
_HALVES = frozenset({"bf16", "f16"})


@dataclass(slots=True, kw_only=True)
class Simplifier:
    """Simplifies blocks, outer before inner.

    ``renamed`` maps a value to what stands for it, ``producer`` a value to its operation. An outer
    constant that an inner block reads is made anew in that block.
    """

    renamed: dict[Value, Value] = field(default_factory=dict[Value, Value])
    producer: dict[Value, Op] = field(default_factory=dict[Value, Op])

    def block(self, block: Block) -> Block:
        """Return a block, simplified; its arguments are kept."""
        walk = _Walk(outer=self)
        *operations, end = block.operations
        for op in operations:
            walk.op(op)
        operands = walk.local(end.operands)
        live_ops = live(walk.operations, operands)
        end = replace(end, operands=operands)
        return Block(arguments=block.arguments, operations=(*live_ops, end))

    def number(self, value: Value) -> float | None:
        """Return the small whole number that a value is known to be."""
        maker = self.producer.get(value)
        number = maker.attrs.value if maker and isinstance(maker.attrs, ConstantAttrs) else None
        is_whole = number is not None and float(number).is_integer()
        return number if is_whole and abs(number or 0) < _SMALL else None

    def is_made_anywhere(self, value: Value) -> bool:
        """Return whether a value is a constant, or its broadcast."""
        op = self.producer.get(value)
        if op is not None and op.traits.category is Category.BROADCAST:
            op = self.producer.get(op.operands[0])
            return op is not None and op.kind == "constant"
        return op is not None and op.traits.category is Category.CREATION


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block; ``by_key`` are operations by what they compute."""

    outer: Simplifier
    operations: list[Op] = field(default_factory=list[Op])
    by_key: dict[Hashable, Op] = field(default_factory=dict[Hashable, Op])
    inside: set[Value] = field(default_factory=set[Value])
    sunk: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def local(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return what stands for values here."""
        return tuple([self._local(value) for value in values])

    def _local(self, value: Value) -> Value:
        value = self.outer.renamed.get(value, value)
        if value in self.inside or not self.outer.is_made_anywhere(value):
            return value
        if value not in self.sunk:
            producer = self.outer.producer[value]
            operands = self.local(producer.operands)
            copy = replace(producer, operands=operands, results=(Value(type=value.type),))
            self.sunk[value] = self._add(copy).results[0]
        return self.sunk[value]

    def op(self, op: Op) -> None:
        """Add an operation, or record what stands for its results."""
        read = op.operands if op.traits.category is Category.CONTROL else values_read(op)
        operands = self.local(read)
        if operands != tuple(read):
            op = renamed_op(op, dict(zip(read, operands, strict=True)))
        op = self._folded(_without_reduction(op))
        same = self._identity(op)
        if same is not None:
            self.outer.renamed[op.results[0]] = same
            return
        if op.traits.category is Category.CONTROL:
            op = self._without_invariants(op) if op.kind == "while" else op
            op = replace(op, regions=tuple([self.outer.block(region) for region in op.regions]))
        added = self._add(op)
        if added is not op:
            self.outer.renamed.update(zip(op.results, added.results, strict=True))

    def _folded(self, op: Op) -> Op:
        """Return a constant for an operation of known numbers."""
        name = op.attrs.direction if isinstance(op.attrs, CompareAttrs) else op.kind
        make = _FOLDED.get(name)
        if make is None or not op.operands or size_of(op.results[0]) != 1:
            return op
        numbers = [self.outer.number(value) for value in op.operands]
        if None in numbers:
            return op
        attrs = ConstantAttrs(value=make(*numbers))
        constant = plain_op(op, "constant", (), op.results[0])
        return replace(constant, attrs=attrs, attributes=(("value", f"dense<{attrs.value}>"),))

    def _without_invariants(self, op: Op) -> Op:
        """Return a loop without carried constants."""
        condition, body = op.regions
        *operations, end = body.operations
        dropped = {
            place
            for place, value in enumerate(op.operands)
            if end.operands[place] is body.arguments[place] and self.outer.is_made_anywhere(value)
        }
        for place in dropped:
            for value in (condition.arguments[place], body.arguments[place], op.results[place]):
                self.outer.renamed[value] = op.operands[place]

        def remaining(values: Sequence[Value]) -> tuple[Value, ...]:
            return tuple([value for place, value in enumerate(values) if place not in dropped])

        end = replace(end, operands=remaining(end.operands))
        inner = Block(arguments=remaining(body.arguments), operations=(*operations, end))
        tested = replace(condition, arguments=remaining(condition.arguments))
        operands, results = remaining(op.operands), remaining(op.results)
        return replace(op, operands=operands, results=results, regions=(tested, inner))

    def _add(self, op: Op) -> Op:
        """Add an operation unless there is an equal one, which is returned."""
        key = _key(op)
        if key is not None:
            equal = self.by_key.setdefault(key, op)
            if equal is not op:
                return equal
        self.operations.append(op)
        self.inside.update(op.results)
        self.outer.producer.update(dict.fromkeys(op.results, op))
        return op

    def _identity(self, op: Op) -> Value | None:
        """Return the value that an operation returns unchanged."""
        if len(op.results) != 1 or not op.operands:
            return None
        value, after = op.operands[0], op.results[0].type
        if op.kind == "copy" or (value.type == after and _keeps(op)):
            return value
        if op.kind == "add" and self.outer.number(value) == 0:
            return op.operands[1]
        before = self.outer.producer.get(value)
        if op.kind != "convert" or before is None or before.kind != "convert":
            return None
        (source,) = before.operands
        return source if source.type == after and _is_lossless(after, value.type) else None


def _without_reduction(op: Op) -> Op:
    """Return a reshape for a reduction of one element."""
    if op.kind != "reduce" or len(op.results) != 1:
        return op
    before, after = op.operands[0].type, op.results[0].type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return op
    is_alone = before.element == after.element and before.element_count == after.element_count
    return plain_op(op, "reshape", op.operands[:1], op.results[0]) if is_alone else op


def _keeps(op: Op) -> bool:
    """Return whether an operation of equal types changes nothing."""
    match op.kind, op.attrs:
        case ("concatenate", _):
            return len(op.operands) == 1
        case ("transpose" | "broadcast_in_dim", DimensionsAttrs(dimensions=dimensions)):
            return dimensions == tuple(range(len(dimensions)))
        case ("slice", SliceAttrs(start=start)):
            return not any(start)
        case ("bitcast_convert" | "convert" | "reshape", _):
            return True
        case _:
            return False


def _is_lossless(narrow: Type, wide: Type) -> bool:
    if not isinstance(narrow, TensorType) or not isinstance(wide, TensorType):
        return False
    if {narrow.element.kind, wide.element.kind} != {NumberKind.FLOAT}:
        return False
    names = narrow.element.name, wide.element.name
    return (names[0] in _HALVES and names[1] in ("f32", "f64")) or names == ("f32", "f64")


def _key(op: Op) -> Hashable | None:
    """Return a key that equal computations share; None if that is open."""
    types = tuple([_type(result.type) for result in op.results])
    if op.traits.category in _SHARED and not op.regions:
        attributes = tuple([pair for pair in op.attributes if pair[0] not in _LAYOUT_NAMES])
        return (op.kind, op.operands, types, attributes)
    if op.kind == "reduce" and all(map(_is_closed, op.regions)):
        bodies = [structure_key(it.operations, it.operations[-1].operands) for it in op.regions]
        return (op.kind, op.operands, types, op.attrs, *bodies)
    return None


def _type(kind: Type) -> object:
    return (kind.element.name, kind.shape) if isinstance(kind, TensorType) else str(kind)


def _is_closed(block: Block) -> bool:
    """Return whether a block reads nothing from around it."""
    local = set(block.arguments)
    for op in block.operations:
        if not local.issuperset(values_read(op)):
            return False
        local.update(op.results)
    return True
