"""Merge matrix products that share an operand, as XLA's GPU pipeline does with small ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.lower.order import in_order, needed_by
from hespas.program.attrs import NO_ATTRS, DimensionAttrs, DotAttrs, SliceAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import TensorType, element_type

MERGED_BYTES = 64 * 2**20
"""Products of more bytes, operands and result together, are merged with no other.

Source: openxla/xla, ``xla_gpu_dot_merger_threshold_mb`` (xla/debug_options_flags.cc)."""

_MOST_VISITED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    """A product: where it stands, and which of its operands is shared with others."""

    at: int
    op: Op
    shared: int


def with_merged_dots(operations: Sequence[Op]) -> list[Op]:
    """Return operations in which small products that share an operand are one."""
    groups = [group for group in _groups(operations) if len(group) > 1]
    if not groups:
        return list(operations)
    replaced: dict[int, list[Op]] = {}
    producer = {result: at for at, op in enumerate(operations) for result in op.results}
    merged: set[int] = set()
    for group in groups:
        free = [dot for dot in group if dot.at not in merged]
        chosen = _independent(free, operations, producer)
        if len(chosen) < 2:
            continue
        merged.update(dot.at for dot in chosen)
        replaced[chosen[-1].at] = list(_merged(chosen))
    if not merged:
        return list(operations)
    changed: list[Op] = []
    for at, op in enumerate(operations):
        if at in replaced:
            changed.extend(replaced[at])
        elif at not in merged:
            changed.append(op)
    return in_order(changed, range(len(changed)))


def with_rounded_operands(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations; what a product rounds by its algorithm is rounded by a kernel before.

    Source: openxla/xla, ``DotAlgorithmRewriter`` (xla/service/gpu/transforms, Apache License 2.0).
    """
    for op in operations:
        if op.kind != "dot_general" or not isinstance(op.attrs, DotAttrs):
            yield op
            continue
        operands: list[Value] = []
        for value, side in zip(op.operands, ("lhs", "rhs"), strict=True):
            kind = tensor_of(value)
            is_rounded = f"{side}_precision_type = bf16" in op.attrs.algorithm
            if is_rounded and kind.element.name == "f32":
                rounded = Value(type=replace(kind, element=element_type("bf16")))
                yield plain_op(op, "convert", (value,), rounded)
                operands.append(rounded)
            else:
                operands.append(value)
        yield replace(op, operands=tuple(operands))


def _groups(operations: Sequence[Op]) -> list[list[_Dot]]:
    """Return the products that could be merged, by what they share."""
    found: dict[tuple[object, ...], list[_Dot]] = {}
    for at, op in enumerate(operations):
        if op.kind != "dot_general" or not isinstance(op.attrs, DotAttrs):
            continue
        if op.attrs.lhs_batching or op.operands[0] is op.operands[1]:
            continue
        for shared in (0, 1):
            if not _is_flat(op, op.attrs, 1 - shared):
                continue
            contracting = (op.attrs.lhs_contracting, op.attrs.rhs_contracting)[shared]
            other = tensor_of(op.operands[1 - shared])
            side = _contracted_first(op.attrs, 1 - shared)
            key = (op.operands[shared], shared, contracting, side, other.element, op.attributes)
            found.setdefault(key, []).append(_Dot(at=at, op=op, shared=shared))
    return list(found.values())


def _is_flat(op: Op, attrs: DotAttrs, operand: int) -> bool:
    """Return whether an operand is a matrix but for reshaping."""
    contracting = (attrs.lhs_contracting, attrs.rhs_contracting)[operand]
    kind = op.operands[operand].type
    if not isinstance(kind, TensorType) or len(contracting) >= kind.rank:
        return False
    rank, count = kind.rank, len(contracting)
    return contracting in (tuple(range(count)), tuple(range(rank - count, rank)))


def _contracted_first(attrs: DotAttrs, operand: int) -> bool:
    return (attrs.lhs_contracting, attrs.rhs_contracting)[operand][0] == 0


def _bytes(op: Op) -> int:
    values = (*op.operands, *op.results)
    return sum([value.type.size_bytes for value in values if isinstance(value.type, TensorType)])


def _independent(
    dots: Sequence[_Dot], operations: Sequence[Op], producer: dict[Value, int]
) -> list[_Dot]:
    """Return those of which none needs another one, and of which no two are large.

    What needs one that needs a chosen one needs that too.
    """
    chosen: list[_Dot] = []
    size = 0
    earlier: set[int] = set()
    for dot in dots:
        if chosen and size > MERGED_BYTES and _bytes(dot.op) > MERGED_BYTES:
            continue
        if not earlier or not _needs(dot, earlier, operations, producer, first=dots[0].at):
            chosen.append(dot)
            size = max(size, _bytes(dot.op))
        earlier.add(dot.at)
    return chosen


def _needs(
    dot: _Dot,
    earlier: set[int],
    operations: Sequence[Op],
    producer: dict[Value, int],
    *,
    first: int,
) -> bool:
    """Return whether a product needs one of others, of which one is the first.

    True where that takes long to say.
    """
    pending, seen = [dot.at], {dot.at}
    while pending:
        for value in needed_by(operations[pending.pop()]):
            at = producer.get(value, -1)
            if at in earlier:
                return True
            if at > first and at not in seen:
                seen.add(at)
                pending.append(at)
        if len(seen) > _MOST_VISITED:
            return True
    return False


def _merged(dots: Sequence[_Dot]) -> Iterator[Op]:
    """Yield the operations that compute all products as one: concatenated, multiplied, sliced."""
    shared = dots[0].shared
    first = dots[0].op
    attrs = first.attrs
    assert isinstance(attrs, DotAttrs)  # noqa: S101 - checked where they were found
    other = 1 - shared
    contracting = (attrs.lhs_contracting, attrs.rhs_contracting)[other]
    is_first = _contracted_first(attrs, other)
    flat: list[Value] = []
    for dot in dots:
        value = dot.op.operands[other]
        kind = tensor_of(value)
        count = len(contracting)
        kept = kind.shape[count:] if is_first else kind.shape[:-count]
        sizes = kind.shape[:count] if is_first else kind.shape[-count:]
        shape = (*sizes, prod(kept)) if is_first else (prod(kept), *sizes)
        reshaped = Value(type=TensorType(element=kind.element, shape=shape))
        if shape != kind.shape:
            yield _op("reshape", (value,), reshaped, first)
            value = reshaped
        flat.append(value)
    axis = len(contracting) if is_first else 0
    widths = [tensor_of(value).shape[axis] for value in flat]
    joined = _with_size(tensor_of(flat[0]), axis, sum(widths))
    yield _op("concatenate", tuple(flat), joined, first, DimensionAttrs(dimension=axis))
    numbers = tuple(range(axis)) if is_first else tuple(range(1, len(contracting) + 1))
    changed = DotAttrs(
        lhs_batching=(),
        rhs_batching=(),
        lhs_contracting=attrs.lhs_contracting if other else numbers,
        rhs_contracting=numbers if other else attrs.rhs_contracting,
        precision=attrs.precision,
        algorithm=attrs.algorithm,
    )
    both = tensor_of(first.operands[shared])
    kept = [
        size
        for at, size in enumerate(both.shape)
        if at not in (attrs.lhs_contracting, attrs.rhs_contracting)[shared]
    ]
    total = sum(widths)
    shape = (*kept, total) if other else (total, *kept)
    made = Value(type=TensorType(element=tensor_of(first.results[0]).element, shape=shape))
    operands = (first.operands[shared], joined) if other else (joined, first.operands[shared])
    yield Op(
        dialect=first.dialect,
        kind="dot_general",
        operands=operands,
        results=(made,),
        attrs=changed,
        attributes=attributes_of_dot(changed, first),
        source_location=first.source_location,
        scope=first.scope,
    )
    where = len(shape) - 1 if other else 0
    start = 0
    for dot, width in zip(dots, widths, strict=True):
        starts, limits = [0] * len(shape), list(shape)
        starts[where], limits[where] = start, start + width
        start += width
        bounds = SliceAttrs(start=tuple(starts), limit=tuple(limits), strides=(1,) * len(shape))
        cut = _with_size(tensor_of(made), where, width)
        result = dot.op.results[0]
        is_same = tensor_of(cut).shape == tensor_of(result).shape
        yield _op("slice", (made,), result if is_same else cut, dot.op, bounds)
        if not is_same:
            yield _op("reshape", (cut,), result, dot.op)


def _with_size(kind: TensorType, axis: int, size: int) -> Value:
    shape = (*kind.shape[:axis], size, *kind.shape[axis + 1 :])
    return Value(type=TensorType(element=kind.element, shape=shape))


def attributes_of_dot(attrs: DotAttrs, first: Op) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a product with these dimensions, the others those of ``first``."""
    numbers = (
        "#stablehlo.dot<lhs_contracting_dimensions = "
        f"{list(attrs.lhs_contracting)}, rhs_contracting_dimensions = "
        f"{list(attrs.rhs_contracting)}>"
    )
    kept = [each for each in first.attributes if each[0] != "dot_dimension_numbers"]
    return tuple(sorted((*kept, ("dot_dimension_numbers", numbers))))


def _op(
    kind: str,
    operands: tuple[Value, ...],
    result: Value,
    like: Op,
    attrs: DimensionAttrs | SliceAttrs | None = None,
) -> Op:
    attributes: dict[str, str] = {}
    match attrs:
        case DimensionAttrs(dimension=dimension):
            attributes["dimension"] = f"{dimension} : i64"
        case SliceAttrs(start=start, limit=limit, strides=strides):
            for name, bounds in (
                ("limit_indices", limit),
                ("start_indices", start),
                ("strides", strides),
            ):
                attributes[name] = f"array<i64: {', '.join(map(str, bounds))}>"
        case None:
            pass
    return Op(
        dialect="stablehlo",
        kind=kind,
        operands=operands,
        results=(result,),
        attrs=NO_ATTRS if attrs is None else attrs,
        attributes=tuple(sorted(attributes.items())),
        source_location=like.source_location,
        scope=like.scope,
    )
