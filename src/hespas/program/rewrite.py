"""Rewrite programs: rename values, copy operations, apply patterns, inline calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.errors import ProgramError
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CallAttrs,
    ConstantAttrs,
    CustomCallAttrs,
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
    """Copy an operation with renamed operands and fresh results, added to ``renaming``."""
    operands = _renamed(op.operands, renaming)
    regions = tuple([copied_block(region, renaming) for region in op.regions])
    results = fresh(op.results, renaming)
    return replace(op, operands=operands, results=results, regions=regions)


def copied_block(block: Block, renaming: Renaming) -> Block:
    """Copy a block with fresh arguments and results."""
    arguments = fresh(block.arguments, renaming)
    return Block(
        arguments=arguments,
        operations=tuple([copied_op(op, renaming) for op in block.operations]),
    )


def fresh(values: Iterable[Value], renaming: Renaming) -> tuple[Value, ...]:
    """Return fresh copies of values, recorded in ``renaming``."""
    copies: list[Value] = []
    for value in values:
        renaming[value] = copy = Value(type=value.type)
        copies.append(copy)
    return tuple(copies)


def renamed_op(op: Op, renaming: Renaming) -> Op:
    """Rename the operands of an operation and of its regions."""
    if not renaming or renaming.keys().isdisjoint(values_read(op)):
        return op
    regions = tuple([_renamed_block(region, renaming) for region in op.regions])
    return replace(op, operands=_renamed(op.operands, renaming), regions=regions)


def _renamed_block(block: Block, renaming: Renaming) -> Block:
    operations = tuple([renamed_op(op, renaming) for op in block.operations])
    return Block(arguments=block.arguments, operations=operations)


def _renamed(values: Iterable[Value], renaming: Renaming) -> tuple[Value, ...]:
    return tuple([renaming.get(value, value) for value in values])


def plain_op(origin: Op, kind: str, operands: Iterable[Value], result: Value) -> Op:
    """Return an operation of ``origin``'s dialect, location and scope, without attributes."""
    return Op(
        dialect=origin.dialect,
        kind=kind,
        operands=tuple(operands),
        results=(result,),
        attrs=NO_ATTRS,
        source_location=origin.source_location,
        scope=origin.scope,
    )


def call_op(
    origin: Op, attrs: CustomCallAttrs, operands: Iterable[Value], results: Iterable[Value]
) -> Op:
    """Return a call of a kernel at another operation's place."""
    return replace(
        plain_op(origin, "custom_call", operands, origin.results[0]),
        results=tuple(results),
        attrs=attrs,
        attributes=(("call_target_name", f'"{attrs.target}"'),),
    )


class Builder:
    """Collects operations that replace the operation ``origin``."""

    __slots__ = ("operations", "origin")

    def __init__(self, origin: Op) -> None:
        self.origin = origin
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
        """Append an operation and return its result.

        ``result`` is its value, or the type of a new one.
        """
        value = result if isinstance(result, Value) else Value(type=result)
        op = plain_op(self.origin, kind, operands, value)
        self.operations.append(replace(op, attrs=attrs, attributes=attributes, regions=regions))
        return value

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Reshape a tensor, unless it has that shape."""
        return self._shaped("reshape", value, shape)

    def pad(self, value: Value, shape: Sequence[int], *fillings: Value) -> Value:
        """Pad a tensor to a shape, unless it has it."""
        return self._shaped("pad", value, shape, *fillings)

    def _shaped(self, kind: str, value: Value, shape: Sequence[int], *more: Value) -> Value:
        source = tensor_of(value)
        shaped = TensorType(element=source.element, shape=tuple(shape))
        return value if source.shape == shaped.shape else self.add(kind, (value, *more), shaped)

    def convert(self, value: Value, element: ElementType) -> Value:
        """Convert a tensor's elements, unless they have that type."""
        source = tensor_of(value)
        converted = replace(source, element=element)
        return value if source.element == element else self.add("convert", (value,), converted)

    def broadcast(self, value: Value, shape: Sequence[int], dimensions: Iterable[int]) -> Value:
        """Broadcast a tensor; ``dimensions`` are its positions in ``shape``."""
        dimension_map, source = tuple(dimensions), tensor_of(value)
        if source.shape == tuple(shape) and dimension_map == tuple(range(source.rank)):
            return value
        broadcasted = TensorType(element=source.element, shape=tuple(shape))
        return self.add(
            "broadcast_in_dim", (value,), broadcasted, DimensionsAttrs(dimensions=dimension_map)
        )

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Transpose a tensor, unless the order is the identity."""
        source = tensor_of(value)
        if tuple(order) == tuple(range(source.rank)):
            return value
        transposed = TensorType(
            element=source.element, shape=tuple([source.shape[dimension] for dimension in order])
        )
        return self.add("transpose", (value,), transposed, DimensionsAttrs(dimensions=tuple(order)))

    def slice(self, value: Value, axis: int, start: int, limit: int) -> Value:
        """Slice a tensor along an axis."""
        starts, limits = [0] * len(tensor_of(value).shape), list(tensor_of(value).shape)
        starts[axis], limits[axis] = start, limit
        return self._sliced(value, tuple(starts), tuple(limits))

    def head(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Slice the first ``shape`` elements of a tensor."""
        return self._sliced(value, (0,) * len(shape), shape)

    def _sliced(self, value: Value, start: tuple[int, ...], limit: tuple[int, ...]) -> Value:
        source = tensor_of(value)
        shape = tuple(map(operator.sub, limit, start))
        if shape == source.shape:
            return value
        bounds = SliceAttrs(start=start, limit=limit, strides=(1,) * len(shape))
        return self.add("slice", (value,), TensorType(element=source.element, shape=shape), bounds)

    def concatenate(self, values: Sequence[Value], axis: int) -> Value:
        """Concatenate tensors along an axis."""
        element, shape = tensor_of(values[0]).element, tensor_of(values[0]).shape
        length = sum([tensor_of(value).shape[axis] for value in values])
        joined = TensorType(element=element, shape=(*shape[:axis], length, *shape[axis + 1 :]))
        return self.add("concatenate", values, joined, DimensionAttrs(dimension=axis))

    def sum(self, value: Value, dimensions: Sequence[int]) -> Value:
        """Sum a tensor over some dimensions."""
        return self._reduced("add", value, dimensions)

    def largest(self, value: Value) -> Value:
        """Return the largest number of a tensor."""
        return self._reduced("maximum", value, range(len(tensor_of(value).shape)))

    def _reduced(self, kind: str, value: Value, dimensions: Sequence[int]) -> Value:
        source = tensor_of(value)
        scalar = TensorType(element=source.element, shape=())
        zero = self.add("constant", (), scalar, ConstantAttrs(value=0))
        *arguments, total = [Value(type=scalar) for _ in range(3)]
        end = replace(plain_op(self.origin, "return", (total,), total), results=())
        applied = plain_op(self.origin, kind, arguments, total)
        body = Block(arguments=tuple(arguments), operations=(applied, end))
        sizes = tuple(
            [size for dimension, size in enumerate(source.shape) if dimension not in dimensions]
        )
        reduced = TensorType(element=source.element, shape=sizes)
        attrs = DimensionsAttrs(dimensions=tuple(dimensions))
        return self.add("reduce", (value, zero), reduced, attrs, regions=(body,))

    def making(self, result: Value, value: Value) -> list[Op]:
        """Return the operations with ``result`` produced in place of ``value``."""
        if not any(value in op.results for op in self.operations):
            self.operations.append(plain_op(self.origin, "reshape", (value,), result))
        return self.renamed({value: result})

    def renamed(self, renaming: Renaming) -> list[Op]:
        """Return the operations with operands and results renamed."""
        return [
            replace(
                op,
                operands=_renamed(op.operands, renaming),
                results=_renamed(op.results, renaming),
            )
            for op in self.operations
        ]


Change = Callable[[Op, Uses], Iterable[Op] | Value | None]


@frozen
class Pattern:
    """A rewrite of operations of some kinds.

    ``change`` returns the operations that replace an operation and produce its results, the value
    that its only result equals, or None if the pattern does not match. It may look at producers and
    readers, but replaces its own operation only: `live` then drops operations without readers.
    """

    kinds: Collection[str]
    change: Change


def with_patterns(block: Block, patterns: Iterable[Pattern]) -> Block:
    """Rewrite a block, but not its regions, by each pattern."""
    kinds: set[str] | None = None
    uses: Uses | None = None
    for pattern in patterns:
        if kinds is None:
            kinds = {op.kind for op in block.operations}
        if kinds.isdisjoint(pattern.kinds):
            continue
        uses = uses or Uses.of_block(block)
        changed = _with_pattern(block, pattern, uses)
        if changed is not block:
            block, kinds, uses = changed, None, None
    return block


def _with_pattern(block: Block, pattern: Pattern, uses: Uses) -> Block:
    """Rewrite a block by a pattern; ``uses`` stay valid if nothing changes."""
    operations: list[Op] = []
    renaming: Renaming = {}
    is_changed = False
    *inner, terminator = block.operations
    for original in inner:
        op = renamed_op(original, renaming) if renaming else original
        if op is not original:
            uses.replace(original, (op,))
        replacement = pattern.change(op, uses) if op.kind in pattern.kinds else None
        if replacement is None:
            operations.append(op)
            continue
        is_changed = True
        if isinstance(replacement, Value):
            renaming[op.results[0]] = replacement
            uses.stand_for(replacement, op.results[0])
            replacement = ()
        new = tuple(replacement)
        operations.extend(new)
        uses.replace(op, new)
    if not is_changed:
        return block
    end = renamed_op(terminator, renaming) if renaming else terminator
    return Block(arguments=block.arguments, operations=(*live(operations, end.operands), end))


def live(operations: Sequence[Op], outputs: Iterable[Value]) -> list[Op]:
    """Return the operations with effects or needed results, in order."""
    needed = set(outputs)
    live_operations: list[Op] = []
    for op in reversed(operations):
        if op.traits.has_effect or not needed.isdisjoint(op.results):
            live_operations.append(op)
            needed.update(values_read(op))
    live_operations.reverse()
    return live_operations


def each_block(block: Block, change: Callable[[Block], Block]) -> Block:
    """Rewrite a block after those of loops and branches."""
    operations = [
        replace(op, regions=tuple([each_block(region, change) for region in op.regions]))
        if op.traits.category is Category.CONTROL
        else op
        for op in block.operations
    ]
    return change(Block(arguments=block.arguments, operations=tuple(operations)))


def each_op(block: Block, change: Callable[[Op], Op]) -> Block:
    """Rewrite a block's operations, inner first; an unchanged block is itself."""
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
    """Rewrite the body of every function of a program."""
    functions = {
        name: Function(name=name, body=change(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def without_identities(
    block: Block, is_identity: Callable[[Op], bool], renaming: Renaming | None = None
) -> Block:
    """Drop identity operations; their operands replace their results.

    An identity has one result per operand; all other values are kept.
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
    """Return ``main`` with every ``func.call`` and ``composite`` inlined.

    Name stacks of inlined operations follow that of the call. Operations that no call touches are
    kept as they are. Raises `ProgramError` for a function that calls itself.
    """
    main = program.main
    if not _calls(main.body):
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
            # Later operations read its own results, not the copy's.
            operations.append(replace(opener.copied(op, renaming), results=op.results))
            for result in op.results:
                del renaming[result]
    body = Block(arguments=main.body.arguments, operations=tuple(operations))
    return Function(name=main.name, body=body)


def _calls(block: Block) -> bool:
    return any(map(_has_call, block.operations))


def _has_call(op: Op) -> bool:
    return op.kind in _OPENED or (bool(op.regions) and any(map(_calls, op.regions)))


class _Opener:
    """Inlines calls depth first."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stack: list[str] = []
        self._scope = ""

    def op(self, op: Op, renaming: Renaming, operations: list[Op]) -> None:
        """Append a copy of ``op``, or its inlined callee."""
        match op.attrs:
            case CallAttrs(callee=callee) if op.kind in _OPENED:
                self._call(op, callee, renaming, operations)
            case _:
                operations.append(self.copied(op, renaming))

    def copied(self, op: Op, renaming: Renaming) -> Op:
        """Copy an operation, with calls in its regions inlined."""
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
        outer_scope, self._scope = self._scope, joined_scope(self._scope, op.scope)
        for called in body.operations[:-1]:
            self.op(called, inner, operations)
        self._scope = outer_scope
        self._stack.pop()
        for result, value in zip(op.results, body.operations[-1].operands, strict=True):
            renaming[result] = inner.get(value, value)
