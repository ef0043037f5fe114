"""The operator histogram of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hespas.program.attrs import CallAttrs
from hespas.program.program import Op, Program


def count_operators(program: Program, *, expand: bool, signatures: bool) -> dict[str, int]:
    """Count operations by name, most frequent first, then by name.

    Without ``expand``, only the top-level operations of ``main`` count, including its return. With
    it, the operations of called functions and fusions count wherever those are used, and the bodies
    of loops and branches once, without their terminators. ``signatures`` distinguishes operations
    by their operand types.
    """
    found = _expanded(program) if expand else iter(program.main.body.operations)
    names = Counter(_name(op, signatures) for op in found)
    return dict(sorted(names.items(), key=lambda pair: (-pair[1], pair[0])))


def _name(op: Op, signatures: bool) -> str:
    if not signatures:
        return op.name
    return f"{op.name}({', '.join(str(value.type) for value in op.operands)})"


_OPENED = frozenset({"async_start", "fusion", "while", "case", "if"})


def _expanded(program: Program) -> Iterator[Op]:
    pending = list(reversed(program.main.body.operations))
    while pending:
        op = pending.pop()
        bodies = op.regions if op.kind in _OPENED else ()
        if isinstance(op.attrs, CallAttrs):
            bodies = (program.function(op.attrs.callee, location=op.location).body,)
        elif op.kind != "fusion":
            yield op
        for body in reversed(bodies):
            pending.extend(reversed(body.operations[:-1]))
