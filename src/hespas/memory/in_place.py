"""Which results are written over an operand that nothing reads any more.

Source: the in-place rules of XLA's dataflow analysis. An operation that changes a part of its
operand works in place, a fusion that ends in one does, and so do loops, all-reduces that run
asynchronously, and calls of which the compiler says so. What computes each element from the same
element of an operand may work in place as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hespas.cost.rules import elementwise
from hespas.program.attrs import CustomCallAttrs, FusionAttrs
from hespas.program.program import Block, Op, Value

Pairs = Iterator[tuple[int, int]]
"""Positions of operands, and of the results that are written over them."""

_UPDATES = frozenset({"dynamic_update_slice", "scatter"})
_RENAMING = frozenset({"bitcast", "reshape"})
_SAME_ELEMENT = frozenset(elementwise.RULES)
_REDUCED = frozenset({"all_reduce", "cross-replica-sum"})


def always_in_place(op: Op) -> Pairs:
    """Yield what an operation of any program does in place."""
    match op.attrs:
        case FusionAttrs(in_place=aliases) | CustomCallAttrs(in_place=aliases):
            yield from ((alias.operand, alias.result) for alias in aliases)
        case _:
            pass
    if op.kind in {"while", "scatter"}:
        yield from ((number, number) for number in range(len(op.results)))
    elif op.kind in _UPDATES:
        yield 0, 0
    elif op.kind == "fusion":
        yield from _updated_arguments(op.regions[0])


def started_in_place(op: Op) -> Pairs:
    """Yield what an operation does in place that is started asynchronously."""
    if op.kind in _REDUCED:
        yield from ((number, number) for number in range(len(op.results)))


def perhaps_in_place(op: Op) -> Pairs:
    """Yield what a compiler may do in place: results made element by element from an operand."""
    if op.kind in _SAME_ELEMENT:
        yield from ((number, 0) for number in range(len(op.operands)))
    elif op.kind == "fusion":
        yield from _element_by_element(op.regions[0])


def _element_by_element(body: Block) -> Pairs:
    """Yield the arguments of a fusion that are only read where a result is written."""
    users: dict[Value, list[Op]] = {}
    for op in body.operations:
        for value in dict.fromkeys(op.operands):
            users.setdefault(value, []).append(op)
    results = {value: number for number, value in enumerate(body.operations[-1].operands)}
    for operand, argument in enumerate(body.arguments):
        reached = _reached(argument, users, results)
        if reached is not None:
            yield operand, reached


def _reached(
    argument: Value, users: Mapping[Value, list[Op]], results: Mapping[Value, int]
) -> int | None:
    """Return the only result that depends on an argument, if it does so element by element."""
    found: int | None = None
    pending, seen = [argument], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for op in users.get(value, ()):
            if op.kind == "return":
                if len(users[value]) > 1 or found is not None:
                    return None
                found = results[value]
            elif op.kind in _RENAMING or op.kind in _SAME_ELEMENT:
                pending.extend(op.results)
            else:
                return None
    return found


def _updated_arguments(body: Block) -> Pairs:
    """Yield the arguments of a fusion that a result is an update of."""
    producer = {value: op for op in body.operations for value in op.results}
    arguments = {value: number for number, value in enumerate(body.arguments)}
    for result, value in enumerate(body.operations[-1].operands):
        source = _updated(value, producer)
        if source in arguments:
            yield arguments[source], result


def _updated(value: Value, producer: Mapping[Value, Op]) -> Value | None:
    """Return what a value is an update of, None where it is made anew."""
    is_update = False
    made = producer.get(value)
    while made is not None and made.kind in _UPDATES | _RENAMING:
        is_update = is_update or made.kind in _UPDATES
        value = made.operands[0]
        made = producer.get(value)
    return value if is_update and made is None else None
