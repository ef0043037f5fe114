"""Copy what a program may not write over, before something is written over it.

A caller's argument stays as it is unless the caller donates it. Where a part of one is updated, or
a loop carries it and changes it, XLA copies all of it before. Other values that are read again
after an update are not looked for: XLA orders the readers first where it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from hespas.fuse.build import Names
from hespas.program.attrs import NO_ATTRS, FusionAttrs
from hespas.program.program import Alias, Block, Op, Value
from hespas.program.types import TensorType

_VIEWS = frozenset({"bitcast", "get_tuple_element", "optimization_barrier"})


def kept_arguments(block: Block, aliases: Sequence[Alias]) -> frozenset[Value]:
    """Return the arguments of the main block that no result is written over."""
    donated = {alias.argument for alias in aliases}
    return frozenset([value for at, value in enumerate(block.arguments) if at not in donated])


def with_copies(operations: Sequence[Op], kept: AbstractSet[Value], names: Names) -> list[Op]:
    """Return operations that write over copies of what is kept."""
    base: dict[Value, Value] = {value: value for value in kept}
    made: list[Op] = []
    for op in operations:
        if op.kind in _VIEWS and len(op.operands) == len(op.results):
            for operand, result in zip(op.operands, op.results, strict=True):
                if operand in base:
                    base[result] = base[operand]
        operands = list(op.operands)
        for at in _overwritten(op):
            if operands[at] not in base or not isinstance(operands[at].type, TensorType):
                continue
            copied = Value(type=operands[at].type)
            made.append(
                Op(
                    dialect="mhlo",
                    kind="copy",
                    operands=(operands[at],),
                    results=(copied,),
                    attrs=NO_ATTRS,
                    source_location=op.source_location,
                    scope=op.scope,
                    instruction=names.next("copy"),
                )
            )
            operands[at] = copied
        made.append(op if tuple(operands) == op.operands else replace(op, operands=tuple(operands)))
    return made


def _overwritten(op: Op) -> Iterator[int]:
    """Yield the operands that an operation writes over."""
    if isinstance(op.attrs, FusionAttrs):
        yield from dict.fromkeys(alias.operand for alias in op.attrs.in_place)
    if op.kind == "while":
        body = op.regions[1]
        results = body.operations[-1].operands
        yield from (at for at, value in enumerate(body.arguments) if results[at] is not value)
