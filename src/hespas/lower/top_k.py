"""Make one call of sorts of which only the first elements are read, as XLA's compilers do.

JAX's ``top_k`` arrives as a sort of values and their places, and slices of both. libtpu 0.0.42
calls a kernel, ``TopK``, in their place where rows are long for what is read of them: of eleven
shapes compiled for v5e, it sorts rows that are 4, 32 and 64 times as long as that, and calls the
kernel from 102 times on. For GPUs a kernel takes up to 16 of rows of 1024 elements or more, of f32
or bf16.

Source of the second: openxla/xla, ``TopkSpecializer`` (xla/service/gpu/transforms, Apache License
2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hespas.lower.blocks import tensor_of
from hespas.lower.order import readers_of
from hespas.program.attrs import (
    TOP_K,
    TOP_K_OF_GPUS,
    CompareAttrs,
    CustomCallAttrs,
    DimensionAttrs,
    SliceAttrs,
)
from hespas.program.program import Op, Value
from hespas.program.types import TensorType

_PAIR = 2
_LONG = 64
_MOST_OF_GPUS, _SHORTEST_OF_GPUS = 16, 1024
_TYPES_OF_GPUS = frozenset({"bf16", "f32"})


def with_top_k(
    operations: Sequence[Op], returned: Sequence[Value], *, for_tpu: bool = True
) -> list[Op]:
    """Return operations in which calls stand for sorts that only slices of the largest read.

    ``returned`` are the values that the block returns.
    """
    if not any(op.kind == "sort" for op in operations):
        return list(operations)
    readers = readers_of(operations)
    kept = frozenset(returned)
    slices: dict[Op, tuple[Op, Op]] = {}
    for op in operations:
        found = None if kept & set(op.results) else _slices(op, readers, for_tpu=for_tpu)
        if found is not None:
            slices[op] = found
    gone = {each for both in slices.values() for each in both}
    target = TOP_K if for_tpu else TOP_K_OF_GPUS
    return [made for op in operations if op not in gone for made in _rewritten(op, slices, target)]


def _rewritten(op: Op, slices: Mapping[Op, tuple[Op, Op]], target: str) -> Iterator[Op]:
    if op not in slices:
        yield op
        return
    yield Op(
        dialect=op.dialect,
        kind="custom_call",
        operands=op.operands[:1],
        results=tuple(each.results[0] for each in slices[op]),
        attrs=CustomCallAttrs(target=target, backend_config="", called_functions=()),
        attributes=(("call_target_name", f'"{target}"'),),
        source_location=op.source_location,
        scope=op.scope,
    )


def _slices(op: Op, readers: Mapping[Value, list[Op]], *, for_tpu: bool) -> tuple[Op, Op] | None:
    """Return the slices of the largest values and of their places; None for any other sort."""
    if op.kind != "sort" or len(op.operands) != _PAIR or not isinstance(op.attrs, DimensionAttrs):
        return None
    compared = [each.attrs for region in op.regions for each in region.operations[:-1]]
    is_descending = any(
        isinstance(each, CompareAttrs) and each.direction == "GT" for each in compared
    )
    given, along = tensor_of(op.operands[0]), op.attrs.dimension
    if not is_descending or along != given.rank - 1:
        return None
    values, places = (readers.get(result, []) for result in op.results)
    if len(values) != 1 or len(places) != 1 or values[0].attrs != places[0].attrs:
        return None
    first = values[0].attrs
    if not isinstance(first, SliceAttrs) or any(first.start) or {*first.strides} != {1}:
        return None
    *others, most = first.limit
    if others != [*given.shape[:-1]]:
        return None
    is_called = given.shape[along] > _LONG * most if for_tpu else _is_of_gpus(given, most)
    return (values[0], places[0]) if is_called else None


def _is_of_gpus(given: TensorType, most: int) -> bool:
    is_long = given.shape[-1] >= _SHORTEST_OF_GPUS and most <= _MOST_OF_GPUS
    return is_long and given.element.name in _TYPES_OF_GPUS
