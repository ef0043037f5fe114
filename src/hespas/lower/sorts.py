"""Leave sorts to the library, as XLA's GPU compiler does where they are long and simple.

The library orders integers, and floats by their bits. Floats that `jax.lax.sort` orders, as NumPy
does, are made into unsigned integers before; they, and a second operand, go along with these keys
as one value, and are taken apart after.

Source: openxla/xla, ``SortRewriter`` (xla/service/gpu/transforms/sort_rewriter.cc, Apache License
2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.program.attrs import CompareAttrs, CustomCallAttrs
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import ElementType, TensorType, element_type
from hespas.work.sorts import CUB_SORTS, is_for_library, is_plain

_KEYS, _PAIRS, _ = CUB_SORTS
_WIDEST = 64


def with_library_sorts(operations: Sequence[Op]) -> list[Op]:
    """Return operations in which calls of the library stand for long sorts.

    A network that has to keep the order of equal keys sorts by places too.
    """
    if not any(op.kind == "sort" for op in operations):
        return list(operations)
    places = {result for op in operations if op.kind == "iota" for result in op.results}
    return [made for op in operations for made in _rewritten(op, places)]


def _rewritten(op: Op, places: Container[Value]) -> Iterator[Op]:
    if op.kind != "sort":
        yield op
        return
    if not is_for_library(op):
        is_stable = dict(op.attributes).get("is_stable") == "true"
        has_places = any(value in places for value in op.operands) and _shows_places(op)
        yield from _by_places(op) if is_stable and not has_places else (op,)
        return
    keys = tensor_of(op.operands[0])
    packed = _packed_type(op)
    if is_plain(op):
        yield _call(op, op.operands, op.results)
        return
    if packed is None:
        yield op
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


def _shows_places(op: Op) -> bool:
    """Return whether XLA sees that an operand has the places: in a vector, and of `top_k`.

    Those of rows it has made a broadcast of a vector before it looks; `top_k` it opens after that.
    """
    compared = [each.attrs for region in op.regions for each in region.operations[:-1]]
    is_largest = any(isinstance(each, CompareAttrs) and each.direction == "GT" for each in compared)
    return is_largest or tensor_of(op.operands[0]).rank == 1


def _by_places(op: Op) -> Iterator[Op]:
    """Yield a sort with the place of each element as one operand more, as XLA adds it.

    Source: openxla/xla, ``StableSortExpander`` (xla/hlo/transforms/expanders, Apache License 2.0).
    """
    place = element_type("i32")
    kind = TensorType(element=place, shape=tensor_of(op.operands[0]).shape)
    numbers, ordered = Value(type=kind), Value(type=kind)
    yield replace(plain_op(op, "iota", (), numbers), attrs=op.attrs)
    (body,) = op.regions
    scalar = TensorType(element=place, shape=())
    more = Value(type=scalar), Value(type=scalar)
    inner = Block(arguments=(*body.arguments, *more), operations=body.operations)
    operands, results = (*op.operands, numbers), (*op.results, ordered)
    yield replace(op, operands=operands, results=results, regions=(inner,))


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
