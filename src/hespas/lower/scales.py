"""Rounding to few bits by a scale of the whole tensor, which takes its largest number first.

torchao's tensor-wise scaling, Transformer Engine's current scaling and NVFP4 divide a tensor by a
scale that follows from its largest absolute number. So what makes the tensor writes it, and another
kernel reads and rounds it; a tensor that is in memory already is read once more before. MXFP8 has
a scale for each 32 numbers, which its kernel finds as it rounds. Sources: pytorch/ao,
torchao/float8/float8_scaling_utils.py, ``hp_tensor_to_float8_dynamic``; NVIDIA/TransformerEngine,
``Float8CurrentScaling`` and ``NVFP4BlockScaling``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from hespas.lower.build import Names, fusion_around
from hespas.program.attrs import FusionAttrs
from hespas.program.program import Block, Op, Value, needed_for, tensor_of
from hespas.program.rewrite import Builder, plain_op
from hespas.program.types import TensorType, element_type

ASSUMPTION = (
    "tensors are rounded to few bits by a scale of the whole: a pass over memory finds their "
    "largest number before"
)
_SMALL = frozenset({"f8E4M3FN", "f8E5M2", "f4E2M1FN"})
_ROUNDING = frozenset({"convert", "copy", "divide", "maximum", "minimum", "reshape", "transpose"})
_CASTING = frozenset({"convert", "copy", "reduce_precision", "reshape", "transpose"})
_FEWEST = 1 << 16
"""Elements below which a tensor's rounding is not worth a look."""


def with_scales(operations: Sequence[Op], names: Names, *, writer: str) -> Iterator[Op]:
    """Yield kernels; none makes a tensor and rounds it by the tensor's scale."""
    for op in operations:
        yield from _scaled(op, names, writer) if _may_round(op) else (op,)


def _may_round(op: Op) -> bool:
    return (
        isinstance(op.attrs, FusionAttrs)
        and not op.attrs.in_place
        and any(map(_is_small, op.results))
    )


def _is_small(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    return kind.element.name in _SMALL and kind.element_count >= _FEWEST


def _scaled(op: Op, names: Names, writer: str) -> Iterator[Op]:
    (block,) = op.regions
    maker = {value: each for each in block.operations for value in each.results}
    outside = dict(zip(block.arguments, op.operands, strict=True))
    places: dict[Value, list[int]] = {}
    for at, value in enumerate(block.operations[-1].operands):
        source = _source(value, maker) if _is_small(value) else None
        if source is not None:
            places.setdefault(source, []).append(at)
    made: list[Value] = []
    for source in places:
        read = outside.get(_behind(source, maker, _CASTING))
        if read is None:
            made.append(source)
        else:
            yield _largest(op, read, names, writer)
    if not made:
        yield op
        return
    yield from _apart(op, {source: places[source] for source in made}, names, writer)


def _source(value: Value, maker: Mapping[Value, Op]) -> Value | None:
    """Return the wide value that one of few bits is rounded from; None without one here."""
    source = _behind(value, maker, _ROUNDING)
    return None if tensor_of(source).element.name in _SMALL else source


def _behind(value: Value, maker: Mapping[Value, Op], kinds: AbstractSet[str]) -> Value:
    """Return what a value is before operations of some kinds, of first operands each."""
    op = maker.get(value)
    while op is not None and op.kind in kinds:
        large = [each for each in op.operands if isinstance(each.type, TensorType)]
        value = next((each for each in large if not _is_spread(each, maker)), large[0])
        op = maker.get(value)
    return value


def _is_spread(value: Value, maker: Mapping[Value, Op]) -> bool:
    op = maker.get(value)
    return op is not None and op.kind in {"broadcast_in_dim", "constant"}


def _largest(op: Op, value: Value, names: Names, writer: str) -> Op:
    """Return the kernel that reads a tensor for its largest number."""
    build = Builder(op)
    largest = build.largest(value)
    name = names.next("largest_fusion")
    return fusion_around(build.operations, [largest], op, name, kind="kInput", writer=writer)


def _apart(
    op: Op, places: Mapping[Value, Sequence[int]], names: Names, writer: str
) -> Iterator[Op]:
    """Yield a kernel that writes what it rounded, in 16 bits, and those that round it."""
    (block,) = op.regions
    *inner, end = block.operations
    moved = {at for each in places.values() for at in each}
    wide, narrow = dict[Value, Value](), list[Op]()
    for source in places:
        kind = tensor_of(source)
        half = Value(type=replace(kind, element=element_type("bf16")))
        narrow.append(plain_op(op, "convert", (source,), half))
        wide[source] = Value(type=half.type)
    kept = [at for at in range(len(op.results)) if at not in moved]
    operands = (
        *[end.operands[at] for at in kept],
        *[each.results[0] for each in narrow],
    )
    last = replace(end, operands=operands)
    body = Block(
        arguments=block.arguments,
        operations=(*needed_for((*inner, *narrow), operands), last),
    )
    results = (*[op.results[at] for at in kept], *wide.values())
    yield replace(op, results=results, regions=(body,))
    for source, own in places.items():
        values = [end.operands[at] for at in own]
        rounding = needed_for(inner, values, given=source)
        again = plain_op(op, "convert", (wide[source],), source)
        made = fusion_around(
            [again, *rounding], values, op, names.next("rounding_fusion"), writer=writer
        )
        yield replace(made, results=tuple([op.results[at] for at in own]))
