"""Gather what is wanted: a convert that narrows what an all-gather gives goes before it.

Weights are kept in f32 and multiplied in bf16, so that half of the bytes need no link. Source:
XLA's pass CollectiveQuantizer; libtpu 0.0.42 does so too, for TPUs v6e and v7x.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hespas.lower.order import readers_of
from hespas.program.program import Op, Value
from hespas.program.types import ElementType, NumberKind, TensorType

_VIEWS = frozenset({"reshape", "transpose"})
_TYPE_TEXT = "xla_shape"


def with_narrow_gathers(operations: Sequence[Op], results: Iterable[Value]) -> list[Op]:
    """Return operations whose all-gathers move the type that their only reader converts to.

    Reshapes and transposes may stand between the two.
    """
    users = readers_of(operations)
    for value in results:
        users.pop(value, None)
    changed: dict[Op, tuple[Op, ...]] = {}
    for op in operations:
        if op.kind == "all_gather" and len(op.operands) == 1:
            changed.update(_narrowed(op, users))
    return [each for op in operations for each in changed.get(op, (op,))]


def _narrowed(gather: Op, users: Mapping[Value, Sequence[Op]]) -> dict[Op, tuple[Op, ...]]:
    """Return what stands for an all-gather, its views and the convert; nothing if they stay."""
    chain = [gather]
    while True:
        readers = users.get(chain[-1].results[0], ())
        if len(readers) != 1:
            # Something else wants it too, such as what follows the block.
            return {}
        (reader,) = readers
        if reader.kind not in _VIEWS:
            break
        chain.append(reader)
    narrow = _narrow_type(reader, gather)
    if narrow is None:
        return {}
    first = replace(reader, operands=gather.operands, results=(_as(gather.operands[0], narrow),))
    made: dict[Op, tuple[Op, ...]] = {reader: ()}
    value = first.results[0]
    for op in chain:
        result = reader.results[0] if op is chain[-1] else _as(op.results[0], narrow)
        attributes = tuple([each for each in op.attributes if each[0] != _TYPE_TEXT])
        again = replace(op, operands=(value,), results=(result,), attributes=attributes)
        made[op] = (first, again) if op is gather else (again,)
        value = result
    return made


def _narrow_type(convert: Op, gather: Op) -> ElementType | None:
    """Return the type that a convert narrows floating-point numbers to, None if it doesn't."""
    if convert.kind != "convert":
        return None
    narrow, wide = convert.results[0].type, gather.results[0].type
    if not isinstance(narrow, TensorType) or not isinstance(wide, TensorType):
        return None
    kinds = {narrow.element.kind, wide.element.kind}
    is_narrower = narrow.element.bits < wide.element.bits
    return narrow.element if kinds == {NumberKind.FLOAT} and is_narrower else None


def _as(value: Value, element: ElementType) -> Value:
    """Return a value like another one, of another type of numbers."""
    kind = value.type
    return Value(type=replace(kind, element=element) if isinstance(kind, TensorType) else kind)
