"""Operations that stand on their own, outside of the program they come from.

`normalised` takes out what ties an operation to its program without changing what it computes:
channel numbers and mesh names. `lowered` replaces XLA's own operations by StableHLO of the same
meaning, so that any StableHLO tool can read, verify and compile the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.program.attrs import (
    NO_ATTRS,
    BitcastAttrs,
    CollectiveAttrs,
    PermuteAttrs,
)
from hespas.program.groups import ReplicaGroups
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import Renaming
from hespas.program.types import ElementType, TensorType

_CHANNEL = "#stablehlo.channel_handle<handle = 1, type = 1>"
_CHANNEL_NAMES = frozenset({"channel_handle", "channel_id"})
_LAYOUTS = frozenset({"result_layout", "source_layout", "xla_shape"})


def normalised(op: Op) -> Op:
    """Return the operation with channel 1 and listed groups, if it communicates."""
    attrs = op.attrs
    if not isinstance(attrs, CollectiveAttrs | PermuteAttrs):
        return op
    groups = attrs.groups if isinstance(attrs, CollectiveAttrs) else None
    kept = tuple([pair for pair in op.attributes if pair[0] not in _CHANNEL_NAMES])
    return replace(op, attributes=_normal_attributes(kept, groups, attrs.channel is not None))


@lru_cache(maxsize=1024)
def _normal_attributes(
    kept: tuple[tuple[str, str], ...], groups: ReplicaGroups | None, has_channel: bool
) -> tuple[tuple[str, str], ...]:
    changed = dict(kept)
    if groups is not None:
        changed["replica_groups"] = _dense(groups.listed())
    if has_channel:
        changed["channel_handle"] = _CHANNEL
    return tuple(sorted(changed.items()))


def _dense(groups: tuple[tuple[int, ...], ...]) -> str:
    """Print groups; rows of unequal length are padded with -1, as StableHLO wants."""
    width = max((len(group) for group in groups), default=0)
    rows = ", ".join(str([*group, *[-1] * (width - len(group))]) for group in groups)
    kind = f"tensor<{len(groups)}x{width}xi64>"
    return f"dense<[{rows}]> : {kind}" if width else f"dense<> : {kind}"


def lowered(operations: Iterable[Op]) -> tuple[tuple[Op, ...], Renaming]:
    """Return the operations in pure StableHLO, and the new name of each value that changed.

    Raises `UnsupportedError` for a bitcast of anything but tensors.
    """
    made: list[Op] = []
    renaming: Renaming = {}
    for op in operations:
        _lower(op, renaming, made)
    return tuple(made), renaming


def _lower(op: Op, renaming: Renaming, made: list[Op]) -> None:
    operands = tuple([renaming.get(value, value) for value in op.operands])
    match op.kind, op.attrs:
        case "fusion", _:
            _inline(op.regions[0], operands, op.results, renaming, made)
        case "copy", _:
            made.append(_stablehlo("optimization_barrier", operands, op.results))
        case "bitcast", BitcastAttrs():
            _bitcast(op, operands[0], made)
        case "reduce_scatter", CollectiveAttrs() if len(operands) > 1:
            made.extend(_one_by_one(_without_layouts(op, operands, renaming)))
        case _:
            made.append(_without_layouts(op, operands, renaming))


def _inline(
    block: Block,
    operands: tuple[Value, ...],
    results: tuple[Value, ...],
    renaming: Renaming,
    made: list[Op],
) -> None:
    renaming.update(zip(block.arguments, operands, strict=True))
    for op in block.operations[:-1]:
        _lower(op, renaming, made)
    for result, value in zip(results, block.operations[-1].operands, strict=True):
        renaming[result] = renaming.get(value, value)


def _one_by_one(op: Op) -> Iterator[Op]:
    """Yield a combined operation as one for each operand: StableHLO knows no other."""
    for operand, result in zip(op.operands, op.results, strict=True):
        yield replace(op, operands=(operand,), results=(result,))


def _without_layouts(op: Op, operands: tuple[Value, ...], renaming: Renaming) -> Op:
    plain = not any(name in _LAYOUTS for name, _ in op.attributes)
    if plain and not op.regions and operands == op.operands:
        return op
    attributes = tuple(pair for pair in op.attributes if pair[0] not in _LAYOUTS)
    regions = tuple([_lowered_block(region, renaming) for region in op.regions])
    return replace(op, operands=operands, attributes=attributes, regions=regions)


def _lowered_block(block: Block, renaming: Renaming) -> Block:
    made: list[Op] = []
    for op in block.operations:
        _lower(op, renaming, made)
    return Block(arguments=block.arguments, operations=tuple(made))


def _stablehlo(
    kind: str,
    operands: tuple[Value, ...],
    results: tuple[Value, ...],
    attributes: tuple[tuple[str, str], ...] = (),
) -> Op:
    return Op(
        dialect="stablehlo",
        kind=kind,
        operands=operands,
        results=results,
        attrs=NO_ATTRS,
        attributes=attributes,
    )


def _bitcast(op: Op, operand: Value, made: list[Op]) -> None:
    """Spell a bitcast as transpose, reshape, transpose.

    The bytes stay where they are: read in memory order (major dimension first), the operand
    and the result are the same list of elements.
    """
    source, result = op.operands[0].type, op.results[0].type
    attrs = op.attrs
    if not (
        isinstance(attrs, BitcastAttrs)
        and isinstance(source, TensorType)
        and isinstance(result, TensorType)
    ):
        raise UnsupportedError("only tensors can be bitcast", location=op.location)
    from_memory = _major_first(attrs.result_layout, result.rank)
    linear = _transposed(operand, _major_first(attrs.source_layout, source.rank), made)
    linear = _recast(linear, source, result.element, made)
    stored = TensorType(element=result.element, shape=_permuted(result.shape, from_memory))
    reshaped = _made("reshape", linear, stored, made)
    inverse = tuple(sorted(range(result.rank), key=from_memory.__getitem__))
    made.append(
        _stablehlo("transpose", (reshaped,), op.results, (("permutation", _array(inverse)),))
    )


def _recast(value: Value, source: TensorType, element: ElementType, made: list[Op]) -> Value:
    """Read a list of elements as elements of another type, which may be wider or narrower."""
    if source.element == element:
        return value
    count, bits = source.element_count, source.element.bits
    wider, narrower = element.bits // bits, bits // element.bits
    shape = (count // wider, wider) if wider > 1 else (count,)
    split = (count, narrower) if narrower > 1 else shape[:1]
    flat = _made("reshape", value, TensorType(element=source.element, shape=shape), made)
    return _made("bitcast_convert", flat, TensorType(element=element, shape=split), made)


def _major_first(layout: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if layout is None else tuple(reversed(layout))


def _permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in order)


def _transposed(value: Value, order: tuple[int, ...], made: list[Op]) -> Value:
    kind = value.type
    if not isinstance(kind, TensorType) or order == tuple(range(len(order))):
        return value
    moved = TensorType(element=kind.element, shape=_permuted(kind.shape, order))
    return _made("transpose", value, moved, made, (("permutation", _array(order)),))


def _made(
    kind: str,
    operand: Value,
    result_type: TensorType,
    made: list[Op],
    attributes: tuple[tuple[str, str], ...] = (),
) -> Value:
    result = Value(type=result_type)
    made.append(_stablehlo(kind, (operand,), (result,), attributes))
    return result


def _array(numbers: tuple[int, ...]) -> str:
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"
