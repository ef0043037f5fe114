"""Rewrite programs: rename values, copy operations, apply patterns, open calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CallAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    SliceAttrs,
)
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Function, Op, Program, Value, tensor_of, values_read
from hespas.program.scopes import joined_scope
from hespas.program.types import ElementType, TensorType, Type
from hespas.program.uses import Uses

Renaming = dict[Value, Value]

_OPENED = frozenset({"call", "composite"})


def copied_op(op: Op, renaming: Renaming) -> Op:
    """Copy an operation with renamed operands and fresh results, which ``renaming`` records."""
    operands = _renamed(op.operands, renaming)
    regions = tuple([copied_block(region, renaming) for region in op.regions])
    results = fresh(op.results, renaming)
    return replace(op, operands=operands, results=results, regions=regions)


def copied_block(block: Block, renaming: Renaming) -> Block:
    """Copy a block with renamed operands, fresh arguments and fresh results."""
    arguments = fresh(block.arguments, renaming)
    return Block(
        arguments=arguments,
        operations=tuple([copied_op(op, renaming) for op in block.operations]),
    )


def fresh(values: Iterable[Value], renaming: Renaming) -> tuple[Value, ...]:
    """Return a new value for each of ``values``, and record it in ``renaming``."""
    copies: list[Value] = []
    for value in values:
        renaming[value] = copy = Value(type=value.type)
        copies.append(copy)
    return tuple(copies)


def renamed_op(op: Op, renaming: Renaming) -> Op:
    """Return an operation with renamed operands, in its regions too, and its own results."""
    if not renaming or renaming.keys().isdisjoint(values_read(op)):
        return op
    regions = tuple([_renamed_block(region, renaming) for region in op.regions])
    return replace(op, operands=_renamed(op.operands, renaming), regions=regions)


def _renamed_block(block: Block, renaming: Renaming) -> Block:
    operations = tuple([renamed_op(op, renaming) for op in block.operations])
    return Block(arguments=block.arguments, operations=operations)


def _renamed(values: Iterable[Value], renaming: Renaming) -> tuple[Value, ...]:
    return tuple([renaming.get(value, value) for value in values])


def plain_op(at: Op, kind: str, operands: Iterable[Value], result: Value) -> Op:
    """Return an operation without attributes, in the place and under the name of another one."""
    return Op(
        dialect=at.dialect,
        kind=kind,
        operands=tuple(operands),
        results=(result,),
        attrs=NO_ATTRS,
        source_location=at.source_location,
        scope=at.scope,
    )


class Builder:
    """Collects operations that stand in the place of another one, ``at``."""

    __slots__ = ("at", "operations")

    def __init__(self, at: Op) -> None:
        self.at = at
        self.operations: list[Op] = []

    def add(
        self,
        kind: str,
        operands: Iterable[Value],
        result: Value | Type,
        attrs: Attrs = NO_ATTRS,
        *,
        attributes: tuple[tuple[str, str], ...] = (),
        regions: tuple[Block, ...] = (),
    ) -> Value:
        """Append an operation and return its result: ``result``, or a new value of a type."""
        value = result if isinstance(result, Value) else Value(type=result)
        op = plain_op(self.at, kind, operands, value)
        self.operations.append(replace(op, attrs=attrs, attributes=attributes, regions=regions))
        return value

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a tensor in another shape, itself where it has that shape."""
        return self._shaped("reshape", value, shape)

    def pad(self, value: Value, shape: Sequence[int], *fillings: Value) -> Value:
        """Return a tensor filled up to a shape, itself where it has that shape."""
        return self._shaped("pad", value, shape, *fillings)

    def _shaped(self, kind: str, value: Value, shape: Sequence[int], *more: Value) -> Value:
        given = tensor_of(value)
        made = TensorType(element=given.element, shape=tuple(shape))
        return value if given.shape == made.shape else self.add(kind, (value, *more), made)

    def convert(self, value: Value, element: ElementType) -> Value:
        """Return a tensor with elements of another type, itself where it has that type."""
        given = tensor_of(value)
        made = replace(given, element=element)
        return value if given.element == element else self.add("convert", (value,), made)

    def broadcast(self, value: Value, shape: Sequence[int], dimensions: Iterable[int]) -> Value:
        """Return a tensor repeated; ``dimensions`` are where its own ones stand in ``shape``."""
        places, given = tuple(dimensions), tensor_of(value)
        if given.shape == tuple(shape) and places == tuple(range(given.rank)):
            return value
        made = TensorType(element=given.element, shape=tuple(shape))
        return self.add("broadcast_in_dim", (value,), made, DimensionsAttrs(dimensions=places))

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Return a tensor with its dimensions in another order, itself if that is the same."""
        given = tensor_of(value)
        if tuple(order) == tuple(range(given.rank)):
            return value
        made = TensorType(element=given.element, shape=tuple([given.shape[at] for at in order]))
        return self.add("transpose", (value,), made, DimensionsAttrs(dimensions=tuple(order)))

    def slice(self, value: Value, axis: int, start: int, limit: int) -> Value:
        """Return the elements of a tensor from ``start`` to ``limit`` along an axis."""
        element, shape = tensor_of(value).element, tensor_of(value).shape
        if (start, limit) == (0, shape[axis]):
            return value
        starts, limits = [0] * len(shape), list(shape)
        starts[axis], limits[axis] = start, limit
        cut = (*shape[:axis], limit - start, *shape[axis + 1 :])
        bounds = SliceAttrs(start=tuple(starts), limit=tuple(limits), strides=(1,) * len(shape))
        return self.add("slice", (value,), TensorType(element=element, shape=cut), bounds)

    def head(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the first elements of a tensor along every axis."""
        given = tensor_of(value)
        if given.shape == shape:
            return value
        bounds = SliceAttrs(start=(0,) * len(shape), limit=shape, strides=(1,) * len(shape))
        return self.add("slice", (value,), TensorType(element=given.element, shape=shape), bounds)

    def concatenate(self, values: Sequence[Value], axis: int) -> Value:
        """Return tensors one behind the other along an axis."""
        element, shape = tensor_of(values[0]).element, tensor_of(values[0]).shape
        length = sum([tensor_of(value).shape[axis] for value in values])
        made = TensorType(element=element, shape=(*shape[:axis], length, *shape[axis + 1 :]))
        return self.add("concatenate", values, made, DimensionAttrs(dimension=axis))

    def sum(self, value: Value, dimensions: Sequence[int]) -> Value:
        """Return the sums of a tensor over some dimensions."""
        given = tensor_of(value)
        scalar = TensorType(element=given.element, shape=())
        zero = self.add("constant", (), scalar, ConstantAttrs(value=0))
        one, other, both = [Value(type=scalar) for _ in range(3)]
        end = replace(plain_op(self.at, "return", (both,), both), results=())
        added = plain_op(self.at, "add", (one, other), both)
        body = Block(arguments=(one, other), operations=(added, end))
        kept = tuple([size for at, size in enumerate(given.shape) if at not in dimensions])
        made = TensorType(element=given.element, shape=kept)
        attrs = DimensionsAttrs(dimensions=tuple(dimensions))
        return self.add("reduce", (value, zero), made, attrs, regions=(body,))

    def making(self, result: Value, value: Value) -> list[Op]:
        """Return the operations, of which the one that makes ``value`` makes ``result`` instead."""
        if not any(value in op.results for op in self.operations):
            self.operations.append(plain_op(self.at, "reshape", (value,), result))
        return self.renamed({value: result})

    def renamed(self, renaming: Renaming) -> list[Op]:
        """Return the operations with other values in the place of some, as results too."""
        return [
            replace(
                op,
                operands=_renamed(op.operands, renaming),
                results=_renamed(op.results, renaming),
            )
            for op in self.operations
        ]


Change = Callable[[Op, Uses], Iterable[Op] | Value | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A rewrite of operations of some kinds.

    ``change`` returns the operations that stand for an operation and make its results, or the value
    that its only result equals, or None where it does not match. It may look at producers and
    readers, but replaces its own operation alone: `live` then drops what nothing reads any more.
    """

    kinds: Collection[str]
    change: Change


def with_patterns(block: Block, patterns: Iterable[Pattern]) -> Block:
    """Return a block rewritten by each pattern in turn; regions are left as they are."""
    for pattern in patterns:
        if any(op.kind in pattern.kinds for op in block.operations):
            block = _with_pattern(block, pattern)
    return block


def _with_pattern(block: Block, pattern: Pattern) -> Block:
    uses = Uses.of_block(block)
    operations: list[Op] = []
    renaming: Renaming = {}
    is_changed = False
    for given in block.operations:
        op = renamed_op(given, renaming)
        if op is not given:
            uses.replace(given, (op,))
        replacement = pattern.change(op, uses) if op.kind in pattern.kinds else None
        if replacement is None:
            operations.append(op)
            continue
        is_changed = True
        if isinstance(replacement, Value):
            renaming[op.results[0]] = replacement
            replacement = ()
        new = tuple(replacement)
        operations.extend(new)
        uses.replace(op, new)
    if not is_changed:
        return block
    end = operations.pop()
    return Block(arguments=block.arguments, operations=(*live(operations, end.operands), end))


def live(operations: Sequence[Op], outputs: Iterable[Value]) -> list[Op]:
    """Return the operations that an output needs, or that have an effect, in order."""
    needed = set(outputs)
    kept: list[Op] = []
    for op in reversed(operations):
        if op.traits.has_effect or not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(values_read(op))
    kept.reverse()
    return kept


def each_block(block: Block, change: Callable[[Block], Block]) -> Block:
    """Return a block changed, those of its loops and branches first."""
    operations = [
        replace(op, regions=tuple([each_block(region, change) for region in op.regions]))
        if op.traits.category is Category.CONTROL
        else op
        for op in block.operations
    ]
    return change(Block(arguments=block.arguments, operations=tuple(operations)))


def each_op(block: Block, change: Callable[[Op], Op]) -> Block:
    """Return a block with every operation changed, those in regions first; itself if none is."""
    operations = tuple([_each_op(op, change) for op in block.operations])
    if all(map(operator.is_, operations, block.operations)):
        return block
    return Block(arguments=block.arguments, operations=operations)


def _each_op(op: Op, change: Callable[[Op], Op]) -> Op:
    if op.regions:
        regions = tuple([each_op(region, change) for region in op.regions])
        if not all(map(operator.is_, regions, op.regions)):
            op = replace(op, regions=regions)
    return change(op)


def with_bodies(program: Program, change: Callable[[Block], Block]) -> Program:
    """Return a program with the body of every function changed."""
    functions = {
        name: Function(name=name, body=change(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def without_identities(
    block: Block, is_identity: Callable[[Op], bool], renaming: Renaming | None = None
) -> Block:
    """Return a block without its identity operations: operands replace their results.

    An identity has as many results as operands; all other values are kept.
    """
    renaming = {} if renaming is None else renaming
    remaining: list[Op] = []
    for op in block.operations:
        operands = _renamed(op.operands, renaming)
        if is_identity(op):
            renaming.update(zip(op.results, operands, strict=True))
            continue
        regions = [without_identities(region, is_identity, renaming) for region in op.regions]
        remaining.append(replace(op, operands=operands, regions=tuple(regions)))
    return Block(arguments=block.arguments, operations=tuple(remaining))


def with_calls_opened(program: Program) -> Function:
    """Return ``main`` with every ``func.call`` and ``composite`` replaced by what it calls.

    Name stacks of what is called stand behind that of the call. Operations that no call touches are
    kept as they are. Raises `ProgramError` for a function that calls itself.
    """
    main = program.main
    if not any(_has_call(op) for op in main.body.operations):
        return main
    opener = _Opener(program)
    operations: list[Op] = []
    renaming: Renaming = {}
    for op in main.body.operations:
        untouched = not _has_call(op) and renaming.keys().isdisjoint(values_read(op))
        if untouched:
            operations.append(op)
        elif op.kind in _OPENED:
            opener.op(op, renaming, operations)
        else:
            operations.append(_with_results(opener.copied(op, renaming), op.results, renaming))
    body = Block(arguments=main.body.arguments, operations=tuple(operations))
    return Function(name=main.name, body=body)


def _with_results(op: Op, results: tuple[Value, ...], renaming: Renaming) -> Op:
    for result in results:
        del renaming[result]
    return replace(op, results=results)


def _has_call(op: Op) -> bool:
    if op.kind in _OPENED:
        return True
    return any(_has_call(inner) for region in op.regions for inner in region.operations)


class _Opener:
    """Opens calls depth first, with the stack of functions being opened."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stack: list[str] = []
        self._scope = ""

    def op(self, op: Op, renaming: Renaming, operations: list[Op]) -> None:
        """Append a copy of ``op``, or of what it calls."""
        match op.attrs:
            case CallAttrs(callee=callee) if op.kind in _OPENED:
                self._call(op, callee, renaming, operations)
            case _:
                operations.append(self.copied(op, renaming))

    def copied(self, op: Op, renaming: Renaming) -> Op:
        """Copy an operation, calls in its regions opened."""
        regions = tuple([self._block(region, renaming) for region in op.regions])
        operands = _renamed(op.operands, renaming)
        results = fresh(op.results, renaming)
        scope = joined_scope(self._scope, op.scope)
        return replace(op, operands=operands, results=results, regions=regions, scope=scope)

    def _block(self, block: Block, renaming: Renaming) -> Block:
        arguments = fresh(block.arguments, renaming)
        operations: list[Op] = []
        for op in block.operations:
            self.op(op, renaming, operations)
        return Block(arguments=arguments, operations=tuple(operations))

    def _call(self, op: Op, callee: str, renaming: Renaming, operations: list[Op]) -> None:
        if callee in self._stack:
            raise ProgramError(f"function @{callee} calls itself", location=op.location)
        body = self._program.function(callee, location=op.location).body
        operands = _renamed(op.operands, renaming)
        inner: Renaming = dict(zip(body.arguments, operands, strict=True))
        self._stack.append(callee)
        around, self._scope = self._scope, joined_scope(self._scope, op.scope)
        for called in body.operations[:-1]:
            self.op(called, inner, operations)
        self._scope = around
        self._stack.pop()
        for result, value in zip(op.results, body.operations[-1].operands, strict=True):
            renaming[result] = inner.get(value, value)
