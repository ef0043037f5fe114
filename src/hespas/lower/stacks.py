"""Loops over layers where layers have arrays of their own.

Libraries have no stacks: PyTorch's layers are written out, and each has arrays of its own. What a
loop cuts out of a stack moves nothing there, what it puts into one is written by what makes it, and
no stack is filled with zeros first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from hespas.lower.layouts import VIEWS
from hespas.program.attrs import CustomCallAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, needed_for, tensor_of
from hespas.program.rewrite import Pattern, call_op, fresh, plain_op
from hespas.program.uses import Uses

_ALLOCATION = CustomCallAttrs(target="AllocateBuffer")
_OF_TYPE = {"bf16": ("8", "7"), "f16": ("5", "10"), "f32": ("8", "23")}
"""The bits of a type's exponent and mantissa."""


def _kept(op: Op, _uses: Uses) -> Value | None:
    """Return the value that a rounding to its own type leaves as it is."""
    given = {name: text.partition(" ")[0] for name, text in op.attributes}
    bits = given.get("exponent_bits"), given.get("mantissa_bits")
    return op.operands[0] if bits == _OF_TYPE.get(tensor_of(op.results[0]).element.name) else None


KEPT_AS_THEY_ARE = Pattern(kinds=("reduce_precision",), change=_kept)
"""JAX rounds what a layer keeps to the type that it has; frameworks keep the array itself."""


def puts_row(op: Op) -> bool:
    """Return whether an operation puts a row into a stack."""
    return op.kind == "dynamic_update_slice" and _is_row(op.operands[1], op.operands[0])


def with_empty_stacks(block: Block) -> Block:
    """Return a block whose loops get stacks to fill without zeros in them."""
    uses = Uses.of_block(block)
    return Block(
        arguments=block.arguments,
        operations=tuple([
            changed for op in block.operations for changed in _with_empty_stacks(op, uses)
        ]),
    )  # fmt: skip


def _with_empty_stacks(loop: Op, uses: Uses) -> Iterator[Op]:
    if loop.kind != "while":
        yield loop
        return
    operands = list(loop.operands)
    for place in _filled_places(loop):
        maker = uses.producer(operands[place])
        if maker is not None and maker.traits.category is Category.BROADCAST:
            operands[place] = Value(type=operands[place].type)
            yield call_op(maker, _ALLOCATION, (), operands[place : place + 1])
    yield replace(loop, operands=tuple(operands))


def _filled_places(loop: Op) -> Iterator[int]:
    """Yield the places of stacks that each turn only puts a row into."""
    body = loop.regions[1]
    uses = Uses.of_block(body)
    outputs = body.operations[-1].operands
    for place, argument in enumerate(body.arguments):
        reader = uses.only_reader(argument)
        if reader is None or not puts_row(reader) or reader.operands[0] is not argument:
            continue
        if outputs[place] is reader.results[0]:
            yield place


def with_own_arrays(block: Block) -> Block:
    """Return a block of kernels that moves nothing between layers and stacks."""
    operations = [kernel for op in block.operations for kernel in _own_arrays(op)]
    return Block(arguments=block.arguments, operations=tuple(operations))


def _own_arrays(op: Op) -> Sequence[Op]:
    """Return a row in a stack as another name, slices of stacks, and what else a kernel does."""
    if puts_row(op):
        stack, row, *_ = op.operands
        barrier = plain_op(op, "optimization_barrier", (stack, row), op.results[0])
        return (replace(barrier, results=(*op.results, *fresh((row,), {}))),)
    if op.kind not in {"fusion", "dynamic_slice"}:
        return (op,)
    inner, outputs, outside = (op,), op.results, {value: value for value in op.operands}
    if op.kind == "fusion":
        (block,) = op.regions
        inner, outputs = block.operations, block.operations[-1].operands
        outside = dict(zip(block.arguments, op.operands, strict=True))
    maker = {value: inside for inside in inner for value in inside.results}
    slices, others = list[Op](), list[int]()
    for place, (value, result) in enumerate(zip(outputs, op.results, strict=True)):
        row = _row_behind(value, maker)
        stack = None if row is None else outside.get(row.operands[0])
        if stack is None:
            others.append(place)
        else:
            slices.append(plain_op(op, "bitcast", (stack,), result))
    if not slices:
        return (op,)
    return (*slices, _with_results(op, others)) if others else slices


def _row_behind(value: Value, maker: Mapping[Value, Op]) -> Op | None:
    """Return the slice that a value is, if it is a row of a stack and nothing else."""
    op = maker.get(value)
    while op is not None and op.kind in {*VIEWS, "bitcast"}:
        op = maker.get(op.operands[0])
    if op is None or op.kind != "dynamic_slice":
        return None
    return op if _is_row(op.results[0], op.operands[0]) else None


def _with_results(op: Op, places: Sequence[int]) -> Op:
    """Return a kernel with a part of its results."""
    (block,) = op.regions
    *inner, end = block.operations
    outputs = tuple([end.operands[place] for place in places])
    last = replace(end, operands=outputs)
    body = Block(arguments=block.arguments, operations=(*needed_for(inner, outputs), last))
    return replace(op, results=tuple([op.results[place] for place in places]), regions=(body,))


def _is_row(part: Value, stack: Value) -> bool:
    """Return whether a slice is whole in all dimensions but the first."""
    part_shape, stack_shape = tensor_of(part).shape, tensor_of(stack).shape
    return len(stack_shape) > 1 and part_shape == (1, *stack_shape[1:])
