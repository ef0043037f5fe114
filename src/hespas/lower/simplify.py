"""Simplify a block as every compiler does, where that decides which bytes and kernels there are.

Copies and operations that change nothing are dropped, chains of reshapes, transposes and converts
are one, equal operations are one, and what nothing reads is left out. A barrier keeps what passes
through it apart from what does not, so that what is computed again stays so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec.structs import replace

from hespas.lower.kinds import BROADCASTS, CREATING, ELEMENTWISE, HOLDING, KEPT, MOVING
from hespas.lower.order import needed_by, readers_of, times_read
from hespas.program.attrs import (
    NO_ATTRS,
    CollectiveAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionsAttrs,
    SliceAttrs,
)
from hespas.program.operations.table import kinds_of
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, is_communication_op, size_of, values_read
from hespas.program.rewrite import plain_op
from hespas.program.text import structure_key
from hespas.program.types import NumberKind, TensorType, Type

_LIBRARY = kinds_of(Category.PRODUCT)
_SHARED = ELEMENTWISE | CREATING | MOVING | _LIBRARY
_LAYOUT_NAMES = frozenset({"result_layout", "xla_shape", "mhlo.sharding"})
_FOLDED: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "convert": float,
    "multiply": operator.mul,
    "subtract": operator.sub,
}
"""What is done with numbers that are known before, as in a variance without a correction."""

_SMALL = 1 << 24
_COMPARED: Mapping[str, Callable[..., float]] = {
    "EQ": operator.eq,
    "GE": operator.ge,
    "GT": operator.gt,
    "LE": operator.le,
    "LT": operator.lt,
    "NE": operator.ne,
}


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
        for op in block.operations[:-1]:
            walk.op(op)
        operands = walk.local(block.operations[-1].operands)
        end = replace(block.operations[-1], operands=operands)
        return Block(arguments=block.arguments, operations=(*live(walk.operations, operands), end))


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block; ``known`` are its operations by what they compute."""

    outer: Simplifier
    operations: list[Op] = field(default_factory=list[Op])
    known: dict[Hashable, Op] = field(default_factory=dict[Hashable, Op])
    inside: set[Value] = field(default_factory=set[Value])
    sunk: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def local(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return what stands for values here."""
        return tuple([self._local(value) for value in values])

    def _local(self, value: Value) -> Value:
        value = self.outer.renamed.get(value, value)
        if value in self.inside:
            return value
        made = self.outer.producer.get(value)
        if made is None or not self._is_made_anywhere(made):
            return value
        if value not in self.sunk:
            operands = self.local(made.operands)
            copy = replace(made, operands=operands, results=(Value(type=value.type),))
            self.sunk[value] = self._add(copy).results[0]
        return self.sunk[value]

    def op(self, op: Op) -> None:
        """Add an operation, or record what stands for its results."""
        op = _without_reduction(op)
        operands = self.local(op.operands)
        op = self._folded(op, operands)
        operands = operands if op.operands else ()
        same = self._identity(op, operands)
        if same is not None:
            self.outer.renamed[op.results[0]] = same
            return
        op = self._with_regions(op, operands)
        op = self._joined(op)
        found = self._add(op)
        if found is not op:
            self.outer.renamed.update(zip(op.results, found.results, strict=True))

    def _folded(self, op: Op, operands: Sequence[Value]) -> Op:
        """Return the number that an operation makes of known numbers; any other one as it is."""
        make = _direction(op) if op.kind == "compare" else _FOLDED.get(op.kind)
        if make is None or not operands or size_of(op.results[0]) != 1:
            return op
        numbers = [self._number(value) for value in operands]
        known = [each for each in numbers if each is not None]
        if len(known) < len(numbers):
            return op
        attrs = ConstantAttrs(value=make(*known))
        made = plain_op(op, "constant", (), op.results[0])
        return replace(made, attrs=attrs, attributes=(("value", f"dense<{attrs.value}>"),))

    def _number(self, value: Value) -> float | None:
        """Return the whole number that a value is, where that is known; a small one."""
        made = self.outer.producer.get(value)
        number = made.attrs.value if made and isinstance(made.attrs, ConstantAttrs) else None
        is_whole = number is not None and float(number).is_integer()
        return number if is_whole and abs(number or 0) < _SMALL else None

    def _chosen(self, operands: Sequence[Value], made: Type) -> Value | None:
        """Return the value that a choice by a known number takes."""
        which = self._number(operands[0])
        value = operands[1 if which else 2]
        return value if which is not None and value.type == made else None

    def _with_regions(self, op: Op, operands: tuple[Value, ...]) -> Op:
        if op.kind in HOLDING:
            op, operands = self._without_invariants(op, operands)
            regions = tuple([self.outer.block(region) for region in op.regions])
            return replace(op, operands=operands, regions=regions)
        if operands == op.operands:
            return op
        return replace(op, operands=operands)

    def _without_invariants(
        self, op: Op, operands: tuple[Value, ...]
    ) -> tuple[Op, tuple[Value, ...]]:
        """Return a loop that no longer carries what every turn could make again by itself."""
        if op.kind != "while":
            return op, operands
        condition, body = op.regions
        end = body.operations[-1]
        dropped = {
            at
            for at, value in enumerate(operands)
            if end.operands[at] is body.arguments[at] and self._is_sunk(value)
        }
        if not dropped:
            return op, operands
        for at in dropped:
            for value in (condition.arguments[at], body.arguments[at], op.results[at]):
                self.outer.renamed[value] = operands[at]
        end = replace(end, operands=_kept(end.operands, dropped))
        inner = Block(
            arguments=_kept(body.arguments, dropped), operations=(*body.operations[:-1], end)
        )
        tested = Block(
            arguments=_kept(condition.arguments, dropped), operations=condition.operations
        )
        changed = replace(op, results=_kept(op.results, dropped), regions=(tested, inner))
        return changed, _kept(operands, dropped)

    def _is_sunk(self, value: Value) -> bool:
        made = self.outer.producer.get(value)
        return made is not None and self._is_made_anywhere(made)

    def _is_made_anywhere(self, op: Op) -> bool:
        """Return whether an inner block makes something again: a constant, also broadcast.

        Source: openxla/xla, ``WhileLoopConstantSinking`` (xla/service, Apache License 2.0).
        """
        if op.kind not in BROADCASTS:
            return op.kind in CREATING
        made = self.outer.producer.get(op.operands[0])
        return made is not None and made.kind == "constant"

    def _add(self, op: Op) -> Op:
        """Add an operation unless there is an equal one, which is returned."""
        key = _key(op)
        if key is not None:
            equal = self.known.get(key)
            if equal is not None:
                return equal
            self.known[key] = op
        self.operations.append(op)
        for result in op.results:
            self.outer.producer[result] = op
            self.inside.add(result)
        return op

    def _identity(self, op: Op, operands: Sequence[Value]) -> Value | None:
        """Return the value that an operation's only result equals, if there is one."""
        if len(op.results) != 1 or not operands:
            return None
        value, made = operands[0], op.results[0].type
        if op.kind in ("copy", "select"):
            return value if op.kind == "copy" else self._chosen(operands, made)
        if op.kind in _KEEPING and value.type == made and _keeps(op):
            return value
        if op.kind == "reduce_precision" and _keeps_precision(op):
            return value
        if op.kind == "convert":
            before = self.outer.producer.get(value)
            if before is not None and before.kind == "convert":
                source = before.operands[0]
                if source.type == made and _is_lossless(source.type, value.type):
                    return source
        return None

    def _joined(self, op: Op) -> Op:
        """Return a reshape or a transpose of the like as one."""
        if op.kind not in ("reshape", "transpose"):
            return op
        before = self.outer.producer.get(op.operands[0])
        if before is None or before.kind != op.kind or before.results[0] not in self.inside:
            return op
        attrs = op.attrs
        if isinstance(attrs, DimensionsAttrs) and isinstance(before.attrs, DimensionsAttrs):
            order = before.attrs.dimensions
            attrs = DimensionsAttrs(dimensions=tuple([order[at] for at in attrs.dimensions]))
            text = f"array<i64: {', '.join(map(str, attrs.dimensions))}>"
            return replace(
                op, operands=before.operands, attrs=attrs, attributes=(("permutation", text),)
            )
        return replace(op, operands=before.operands)


def _direction(op: Op) -> Callable[..., float] | None:
    return _COMPARED.get(op.attrs.direction) if isinstance(op.attrs, CompareAttrs) else None


def _without_reduction(op: Op) -> Op:
    """Return a reshape for a reduction of dimensions of one element, with nothing to combine.

    Source: openxla/xla, ``AlgebraicSimplifier`` (HandleReduce, Apache License 2.0).
    """
    if op.kind != "reduce" or len(op.results) != 1:
        return op
    given, made = op.operands[0].type, op.results[0].type
    if not isinstance(given, TensorType) or not isinstance(made, TensorType):
        return op
    is_alone = given.element == made.element and given.element_count == made.element_count
    return plain_op(op, "reshape", op.operands[:1], op.results[0]) if is_alone else op


_KEEPING = BROADCASTS | {
    "bitcast_convert",
    "concatenate",
    "convert",
    "pad",
    "reduce",
    "reshape",
    "slice",
    "transpose",
}


def _keeps(op: Op) -> bool:
    """Return whether an operation whose result has its operand's type changes nothing."""
    match op.kind, op.attrs:
        case ("concatenate", _):
            return len(op.operands) == 1
        case ("transpose" | "broadcast_in_dim", DimensionsAttrs(dimensions=dimensions)):
            return dimensions == tuple(range(len(dimensions)))
        case ("slice", SliceAttrs(start=start)):
            return not any(start)
        case ("reduce" | "pad" | "broadcast", _):
            return False
        case _:
            return True


_PRECISIONS = {"bf16": (8, 7), "f16": (5, 10), "f32": (8, 23), "f64": (11, 52)}
"""The bits of exponent and mantissa of a type."""


def _keeps_precision(op: Op) -> bool:
    """Return whether an operation rounds to the precision that its operand has already.

    JAX marks what a rematerialised layer keeps so; XLA drops the mark.
    """
    made = op.results[0].type
    if not isinstance(made, TensorType):
        return False
    given = dict(op.attributes)
    bits = [given.get(name, "").partition(" ")[0] for name in ("exponent_bits", "mantissa_bits")]
    return bits == [str(each) for each in _PRECISIONS.get(made.element.name, ())]


def _is_lossless(narrow: Type, wide: Type) -> bool:
    if not isinstance(narrow, TensorType) or not isinstance(wide, TensorType):
        return False
    both = NumberKind.FLOAT
    return (
        narrow.element.kind is both
        and wide.element.kind is both
        and narrow.element.name in ("bf16", "f16", "f32")
        and (
            wide.element.name == "f64" or (wide.element.name == "f32" and narrow.element.bits < 32)
        )
    )


def _kept(values: Sequence[Value], dropped: AbstractSet[int]) -> tuple[Value, ...]:
    return tuple([value for at, value in enumerate(values) if at not in dropped])


def _key(op: Op) -> Hashable | None:
    """Return what two operations share only if they compute the same; None if that is open."""
    if op.kind in _SHARED and not op.regions:
        attributes = _attributes(op.attributes) if op.attributes else ()
        return (op.kind, op.operands, _types(op), attributes)
    if op.kind == "reduce" and all(_is_closed(region) for region in op.regions):
        bodies = tuple(
            [structure_key(each.operations, each.operations[-1].operands) for each in op.regions]
        )
        return (op.kind, op.operands, _types(op), op.attrs, bodies)
    return None


def _types(op: Op) -> tuple[object, ...]:
    return tuple([_type(result.type) for result in op.results])


def _type(kind: Type) -> object:
    return (kind.element.name, kind.shape) if isinstance(kind, TensorType) else str(kind)


def _is_closed(block: Block) -> bool:
    known = set(block.arguments)
    for op in block.operations:
        if not known.issuperset(values_read(op)):
            return False
        known.update(op.results)
    return True


@lru_cache(maxsize=65536)
def _attributes(attributes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple([each for each in attributes if each[0] not in _LAYOUT_NAMES])


def live(operations: Sequence[Op], results: Iterable[Value]) -> Iterator[Op]:
    """Yield the operations that something needs, in order."""
    needed = set(results)
    kept: list[Op] = []
    for op in reversed(operations):
        if op.kind not in KEPT and needed.isdisjoint(op.results):
            continue
        kept.append(op)
        needed.update(needed_by(op))
    return reversed(kept)


def with_sums_joined(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return operations in which a sum of what is all-reduced is summed first, and reduced once.

    Source: XLA's pass AllReduceReassociate, which does so where nothing else reads either of both.
    """
    counts = times_read(operations, results)
    reduced: dict[Value, Op] = {}
    changed: list[Op] = []
    gone: set[int] = set()
    for op in operations:
        both = [reduced.get(value) for value in op.operands] if op.kind == "add" else []
        keys = {None if each is None else _sum_key(each) for each in both}
        if (
            len(both) < 2
            or len(keys) > 1
            or None in keys
            or any(counts[value] > 1 for value in op.operands)
        ):
            changed.append(op)
            if op.kind == "all_reduce" and len(op.results) == 1:
                reduced[op.results[0]] = op
            continue
        summed = Value(type=op.results[0].type)
        firsts = tuple([each.operands[0] for each in both if each is not None])
        last = reduced[op.operands[1]]
        made = replace(last, operands=(summed,), results=op.results)
        changed.extend((replace(op, operands=firsts, results=(summed,)), made))
        reduced[op.results[0]] = made
        gone.update(id(each) for each in both)
    return [each for each in changed if id(each) not in gone]


def _sum_key(op: Op) -> Hashable | None:
    """Return what two all-reduces that sum have in common if their sum may be reduced once."""
    bodies = tuple(
        [structure_key(each.operations, each.operations[-1].operands) for each in op.regions]
    )
    kinds = [each.kind for region in op.regions for each in region.operations[:-1]]
    attrs = op.attrs
    if kinds != ["add"] or not isinstance(attrs, CollectiveAttrs):
        return None
    return attrs.groups, attrs.mode, op.results[0].type, bodies


def without_scatters(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return operations in which an all-reduce of which a device keeps a slice scatters at once.

    That is what XLA makes of the slice, by the device's own number, of what was reduced.
    """
    users = readers_of(operations)
    kept: set[Value] = set(results)
    producer = {result: op for op in operations for result in op.results}
    scattered: dict[Op, Op] = {}
    dropped: set[Op] = set()
    for op in operations:
        if op.kind != "all_reduce" or len(op.results) != 1 or op.results[0] in kept:
            continue
        reading = users.get(op.results[0], [])
        views: list[Op] = []
        while len(reading) == 1 and reading[0].kind == "reshape":
            views.append(reading[0])
            reading = users.get(reading[0].results[0], [])
        if len(reading) != 1 or views:
            continue
        (part,) = reading
        if part.kind == "dynamic_slice" and _by_device(part.operands[1:], producer):
            made = _scatter(op, part)
            if made is not None:
                scattered[part] = made
                dropped.add(op)
    if not scattered:
        return list(operations)
    changed = (scattered.get(op, op) for op in operations if op not in dropped)
    return list(live(list(changed), results))


def _by_device(starts: Iterable[Value], producer: Mapping[Value, Op]) -> bool:
    """Return whether one of the starts is computed from the device's number, and from no data."""
    found = False
    pending, seen = list(starts), set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        op = producer.get(value)
        if op is None or len(seen) > 64:
            return False
        found = found or op.kind in ("partition_id", "replica_id")
        if op.kind not in CREATING:
            if op.kind not in _INDEXING:
                return False
            pending.extend(op.operands)
    return found


_INDEXING = ELEMENTWISE | {"reshape", "slice", "dynamic_slice", "broadcast_in_dim"}


def _scatter(reduced: Op, part: Op) -> Op | None:
    whole, kept = reduced.results[0].type, part.results[0].type
    if not isinstance(whole, TensorType) or not isinstance(kept, TensorType):
        return None
    sizes = zip(whole.shape, kept.shape, strict=True)
    differing = [at for at, (long, short) in enumerate(sizes) if long != short]
    if len(differing) != 1:
        return None
    attrs = reduced.attrs
    attrs = attrs if attrs is NO_ATTRS else replace(attrs, dimension=differing[0])
    text = (("scatter_dimension", f"{differing[0]} : i64"),)
    return replace(
        reduced,
        kind="reduce_scatter",
        results=part.results,
        attrs=attrs,
        attributes=tuple(sorted((*reduced.attributes, *text))),
    )


def collectives_of(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield the collectives among operations."""
    return filter(is_communication_op, operations)
