"""Sorts as XLA's compilers call libraries and kernels for them.

The library orders integers, and floats by their bits. Floats that `jax.lax.sort` orders, as NumPy
does, are made into unsigned integers before; they, and a second operand, go along with these keys
as one value, and are taken apart after. Sorts of which only the first elements are read are a
kernel of their own.

Source: openxla/xla, ``SortRewriter``, ``TopkSpecializer`` (xla/service/gpu/transforms) and
``StableSortExpander`` (xla/hlo/transforms/expanders, Apache License 2.0), and what jaxlib 0.10.2
compiles for H100.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hespas.program.attrs import (
    TOP_K,
    TOP_K_OF_GPUS,
    CompareAttrs,
    CustomCallAttrs,
    DimensionAttrs,
    SliceAttrs,
)
from hespas.program.program import Block, Op, Value, applied_ops, tensor_of
from hespas.program.rewrite import Builder, Pattern, call_op, plain_op
from hespas.program.types import ElementType, TensorType, element_type
from hespas.program.uses import Uses
from hespas.work.sorts import CUB_SORTS, is_for_library, is_plain

_KEYS, _PAIRS, _ = CUB_SORTS
_LONG_OF_TPUS = 64
"""libtpu 0.0.42 calls ``TopK`` where rows are longer than so many times what is read of them: of
eleven shapes compiled for v5e, it sorts rows that are 4, 32 and 64 times as long, and calls the
kernel from 102 times on."""
_MOST_OF_GPUS, _SHORTEST_OF_GPUS = 16, 1024
_TYPES_OF_GPUS = frozenset({"bf16", "f32"})


def _sorted_by_library(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return library calls for a sort, or a stable network over places."""
    if not is_for_library(op):
        is_stable = dict(op.attributes).get("is_stable") == "true"
        makers = [uses.producer(value) for value in op.operands]
        has_places = any(it is not None and it.kind == "iota" for it in makers)
        return _by_places(op) if is_stable and not (has_places and _shows_places(op)) else None
    if is_plain(op):
        return [_call(op, op.operands, op.results)]
    keys, packed = tensor_of(op.operands[0]), _packed_type(op)
    if packed is None:
        return None
    build = Builder(op)
    kind = replace(keys, element=element_type(f"ui{keys.element.bits}"))
    key = build.add("bitcast_convert", op.operands[:1], kind)
    if len(op.operands) == 1:
        call = _call(op, (key, op.operands[0]), (Value(type=kind), op.results[0]))
        return (*build.operations, call)
    wide = TensorType(element=packed, shape=keys.shape)
    parts = [build.add("convert", (operand,), wide) for operand in op.operands]
    together, ordered = build.add("or", parts, wide), Value(type=wide)
    build.operations.append(_call(op, (key, together), (Value(type=kind), ordered)))
    for result in op.results:
        build.add("convert", (ordered,), result)
    return build.operations


LIBRARY_SORTS = Pattern(kinds=("sort",), change=_sorted_by_library)


def _is_descending(op: Op) -> bool:
    return any(it.attrs == CompareAttrs(direction="GT") for it in applied_ops(op))


def _shows_places(op: Op) -> bool:
    """Return whether XLA sees an operand's places: in vectors and of `top_k`.

    Those of rows it has made a broadcast of a vector before it looks; `top_k` it opens after that.
    """
    return _is_descending(op) or tensor_of(op.operands[0]).rank == 1


def _by_places(op: Op) -> list[Op]:
    """Return a sort with element indices as an additional operand."""
    place = element_type("i32")
    kind = TensorType(element=place, shape=tensor_of(op.operands[0]).shape)
    numbers, ordered = Value(type=kind), Value(type=kind)
    (body,) = op.regions
    scalar = TensorType(element=place, shape=())
    more = Value(type=scalar), Value(type=scalar)
    inner = Block(arguments=(*body.arguments, *more), operations=body.operations)
    operands, results = (*op.operands, numbers), (*op.results, ordered)
    return [
        replace(plain_op(op, "iota", (), numbers), attrs=op.attrs),
        replace(op, operands=operands, results=results, regions=(inner,)),
    ]


def _packed_type(op: Op) -> ElementType | None:
    """Return the type that holds an element of every operand, if any."""
    bits = sum([tensor_of(value).element.bits for value in op.operands])
    widths = (8, 16, 32, 64)
    return next((element_type(f"ui{width}") for width in widths if bits <= width), None)


def _call(op: Op, operands: Sequence[Value], results: Sequence[Value]) -> Op:
    size = sum([tensor_of(value).size_bytes for value in operands])
    scratch = Value(type=TensorType(element=element_type("ui8"), shape=(size,)))
    target = _KEYS if len(operands) == 1 else _PAIRS
    return call_op(op, CustomCallAttrs(target=target), operands, (*results, scratch))


def top_k(*, for_tpu: bool) -> Pattern:
    """Return the rule that calls a kernel for `top_k` of rows.

    JAX's ``top_k`` arrives as a sort of values and their places, and slices of both.
    """

    def change(op: Op, uses: Uses) -> Sequence[Op] | None:
        if uses.producer(op.results[0]) is not op:
            return ()  # the call in the place of the other slice makes it
        maker = uses.producer(op.operands[0])
        if maker is None or maker.kind != "sort":
            return None
        both = _slices(maker, uses)
        if both is None or not _is_called(maker, both[0], for_tpu=for_tpu):
            return None
        attrs = CustomCallAttrs(target=TOP_K if for_tpu else TOP_K_OF_GPUS)
        results = [part.results[0] for part in both]
        return [call_op(maker, attrs, maker.operands[:1], results)]

    return Pattern(kinds=("slice",), change=change)


def _slices(op: Op, uses: Uses) -> tuple[Op, Op] | None:
    """Return the slices of the largest values and their places, if any."""
    if len(op.operands) != 2 or not isinstance(op.attrs, DimensionAttrs):
        return None
    operand_type = tensor_of(op.operands[0])
    if not _is_descending(op) or op.attrs.dimension != operand_type.rank - 1:
        return None
    values, places = map(uses.only_reader, op.results)
    if values is None or places is None or values.attrs != places.attrs:
        return None
    cut = values.attrs
    if not isinstance(cut, SliceAttrs) or any(cut.start) or {*cut.strides} != {1}:
        return None
    return (values, places) if cut.limit[:-1] == operand_type.shape[:-1] else None


def _is_called(op: Op, values: Op, *, for_tpu: bool) -> bool:
    operand_type, most = tensor_of(op.operands[0]), tensor_of(values.results[0]).shape[-1]
    if for_tpu:
        return operand_type.shape[-1] > _LONG_OF_TPUS * most
    is_long = operand_type.shape[-1] >= _SHORTEST_OF_GPUS and most <= _MOST_OF_GPUS
    return is_long and operand_type.element.name in _TYPES_OF_GPUS
