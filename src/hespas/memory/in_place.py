"""Which operations may write a result over an operand that nothing reads any more.

Source: the rules of XLA's buffer assignment. An operation that computes each element of the
result from the same element of the operand may; so may one that changes a part of it; so may a
reduction over devices. A fusion may if that holds along every way from the operand to the
result.
"""

from __future__ import annotations

from collections.abc import Iterator

from hespas.cost.rules import elementwise
from hespas.memory.buffers import Buffer
from hespas.program.program import Block, Op, Value

_UPDATES = frozenset({"dynamic_update_slice", "scatter"})
MUST_SHARE = _UPDATES | {"while"}
"""Operations that always write over an operand that nothing reads later."""

_SAME_ELEMENT = frozenset(elementwise.RULES)
_RENAMING = frozenset({"bitcast", "reshape"})
_REDUCED_IN_PLACE = frozenset({"all_reduce", "cross-replica-sum"})


def may_write_over(op: Op, operand: int, result: int, source: Buffer, made: Buffer) -> bool:
    """Tell whether result buffer ``made`` of ``op`` may be written over ``source``.

    ``operand`` and ``result`` are the positions of the two among the operands and results.
    """
    if source.size_bytes != made.size_bytes:
        return False
    match op.kind:
        case kind if kind in _UPDATES:
            return operand == 0
        case "while":
            return operand == result
        case "fusion":
            return source.type.shape == made.type.shape and _reaches(op.regions[0], operand, result)
        case kind if kind in _REDUCED_IN_PLACE:
            return operand == result
        case kind:
            return kind in _SAME_ELEMENT and source.type.shape == made.type.shape


def _reaches(body: Block, operand: int, result: int) -> bool:
    """Tell whether a result of a fusion depends on an operand element by element."""
    wanted = body.operations[-1].operands[result]
    uses = _uses(body)
    pending, seen = [body.arguments[operand]], set[Value]()
    found = False
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        found = found or value is wanted
        for op in uses.get(value, ()):
            if op.kind == "return":
                continue
            if not _keeps_place(op, value):
                return False
            pending.extend(op.results)
    return found


def _keeps_place(op: Op, value: Value) -> bool:
    if op.kind in _UPDATES:
        return value is op.operands[0] and value not in op.operands[1:]
    return op.kind in _RENAMING or op.kind in _SAME_ELEMENT


def _uses(body: Block) -> dict[Value, list[Op]]:
    uses: dict[Value, list[Op]] = {}
    for op, value in _reads(body):
        uses.setdefault(value, []).append(op)
    return uses


def _reads(body: Block) -> Iterator[tuple[Op, Value]]:
    for op in body.operations:
        for value in dict.fromkeys(op.operands):
            yield op, value
