"""Leave sorts to the library, as XLA's GPU compiler does where they are long and simple.

The library orders unsigned keys. Other keys are made into such before; two operands, or one that is
no unsigned integer, go along with the keys as one value, and are taken apart after.

Source: openxla/xla, ``SortRewriter`` (xla/service/gpu/transforms/sort_rewriter.cc, Apache License
2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hespas.cost.sorts import CUB_SORTS, is_for_library
from hespas.fuse.blocks import tensor_of
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import ElementType, NumberKind, TensorType, element_type

_KEYS, _PAIRS, _ = CUB_SORTS
_WIDEST = 64


def with_library_sorts(operations: Sequence[Op]) -> list[Op]:
    """Return operations in which calls of the library stand for long sorts."""
    if not any(op.kind == "sort" for op in operations):
        return list(operations)
    return [made for op in operations for made in _rewritten(op)]


def _rewritten(op: Op) -> Iterator[Op]:
    if op.kind != "sort" or not is_for_library(op):
        yield op
        return
    keys = tensor_of(op.operands[0])
    packed = _packed_type(op)
    if packed is None:
        yield op
        return
    is_unsigned = keys.element.kind is NumberKind.INTEGER
    if is_unsigned and len(op.operands) == 1:
        yield _call(op, op.operands, op.results)
        return
    key = Value(type=replace(keys, element=element_type(f"ui{keys.element.bits}")))
    yield plain_op(op, "bitcast_convert", op.operands[:1], key)
    if len(op.operands) == 1:
        yield _call(op, (key, op.operands[0]), (Value(type=key.type), op.results[0]))
        return
    wide = TensorType(element=packed, shape=keys.shape)
    parts = [Value(type=wide) for _ in op.operands]
    for operand, part in zip(op.operands, parts, strict=True):
        yield plain_op(op, "convert", (operand,), part)
    together, ordered = Value(type=wide), Value(type=wide)
    yield plain_op(op, "or", parts, together)
    yield _call(op, (key, together), (Value(type=key.type), ordered))
    for result in op.results:
        yield plain_op(op, "convert", (ordered,), result)


def _packed_type(op: Op) -> ElementType | None:
    """Return the type that holds an element of every operand; None if there is none."""
    bits = sum(
        value.type.element.bits for value in op.operands if isinstance(value.type, TensorType)
    )
    return next((element_type(f"ui{at}") for at in (8, 16, 32, _WIDEST) if bits <= at), None)


def _call(op: Op, operands: Sequence[Value], results: Sequence[Value]) -> Op:
    target = _KEYS if len(operands) == 1 else _PAIRS
    size = sum(value.type.size_bytes for value in operands if isinstance(value.type, TensorType))
    scratch = Value(type=TensorType(element=element_type("ui8"), shape=(size,)))
    return Op(
        dialect=op.dialect,
        kind="custom_call",
        operands=tuple(operands),
        results=(*results, scratch),
        attrs=CustomCallAttrs(target=target, backend_config="", called_functions=()),
        attributes=(("call_target_name", f'"{target}"'),),
        source_location=op.source_location,
        scope=op.scope,
    )
