"""Copy what a program may not write over, before something is written over it.

A caller's argument stays as it is unless the caller donates it. Where a part of one is updated, or
a loop carries it and changes it, XLA copies all of it before. So it does with what several write
over, as zeros that sums start from: only the last may, if nothing reads it after. Other values that
are read again after an update are not looked for: XLA orders the readers first where it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from hespas.lower.build import Names
from hespas.lower.order import needed_by
from hespas.program.attrs import NO_ATTRS, FusionAttrs
from hespas.program.program import Alias, Block, Op, Value
from hespas.program.types import TensorType

_VIEWS = frozenset({"bitcast", "get_tuple_element", "optimization_barrier"})


def kept_arguments(block: Block, aliases: Sequence[Alias]) -> frozenset[Value]:
    """Return the arguments of the main block that no result is written over."""
    donated = {alias.argument for alias in aliases}
    return frozenset([value for at, value in enumerate(block.arguments) if at not in donated])


def with_copies(operations: Sequence[Op], kept: AbstractSet[Value], names: Names) -> list[Op]:
    """Return operations that write over copies of what is kept.

    A kernel with one result writes the copies of it too.
    """
    base: dict[Value, Value] = {value: value for value in kept}
    last = _last_reads(operations)
    writing = {op.results[0]: op for op in operations if _can_write_more(op)}
    more: dict[Op, list[Value]] = {}
    made: list[Op] = []
    for number, op in enumerate(operations):
        if op.kind in _VIEWS and len(op.operands) == len(op.results):
            for operand, result in zip(op.operands, op.results, strict=True):
                if operand in base:
                    base[result] = base[operand]
        operands = list(op.operands)
        for at in _overwritten(op):
            value = operands[at]
            is_kept = value in base or last.get(value, number) > number
            if not is_kept or not isinstance(value.type, TensorType):
                continue
            operands[at] = Value(type=value.type)
            if value in writing:
                more.setdefault(writing[value], []).append(operands[at])
            else:
                made.append(_copy(op, value, operands[at], names))
        made.append(op if tuple(operands) == op.operands else replace(op, operands=tuple(operands)))
    return [_writing(op, more[op]) if op in more else op for op in made]


def _copy(op: Op, value: Value, copied: Value, names: Names) -> Op:
    return Op(
        dialect="mhlo",
        kind="copy",
        operands=(value,),
        results=(copied,),
        attrs=NO_ATTRS,
        source_location=op.source_location,
        scope=op.scope,
        instruction=names.next("copy"),
    )


def _can_write_more(op: Op) -> bool:
    return (
        op.kind == "fusion"
        and len(op.results) == 1
        and isinstance(op.attrs, FusionAttrs)
        and op.attrs.kind == "kLoop"
        and not op.attrs.in_place
    )


def _writing(op: Op, copies: Sequence[Value]) -> Op:
    """Return a fusion with one result that writes it as often again."""
    (block,) = op.regions
    *inner, end = block.operations
    ends = replace(end, operands=end.operands * (1 + len(copies)))
    return replace(
        op,
        results=(*op.results, *copies),
        regions=(Block(arguments=block.arguments, operations=(*inner, ends)),),
    )


def _last_reads(operations: Sequence[Op]) -> dict[Value, int]:
    """Return the last operation that reads a value, of those that several kernels write over."""
    writers = Counter(
        op.operands[at] for op in operations if op.kind == "fusion" for at in _overwritten(op)
    )
    return {
        value: number
        for number, op in enumerate(operations)
        for value in needed_by(op)
        if writers[value] > 1
    }


def _overwritten(op: Op) -> Iterator[int]:
    """Yield the operands that an operation writes over."""
    if isinstance(op.attrs, FusionAttrs):
        yield from dict.fromkeys(alias.operand for alias in op.attrs.in_place)
    if op.kind == "while":
        body = op.regions[1]
        results = body.operations[-1].operands
        yield from (at for at, value in enumerate(body.arguments) if results[at] is not value)
