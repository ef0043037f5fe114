"""The operator histogram of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hespas.program.attrs import CallAttrs
from hespas.program.program import Op, Program

_TERMINATORS = frozenset({"return"})


def count_operators(program: Program, *, expand: bool, signatures: bool) -> dict[str, int]:
    """Count operations by name, most frequent first, then by name.

    Without ``expand`` the operations of ``main`` are counted as they stand. With it, called
    functions and fusions are opened wherever they are used, and the bodies of loops and
    branches are counted once. With ``signatures`` the operand types tell operations apart.
    """
    found = _expanded(program) if expand else iter(program.main.body.operations)
    names = Counter(_name(op, signatures) for op in found if op.kind not in _TERMINATORS)
    return dict(sorted(names.items(), key=lambda pair: (-pair[1], pair[0])))


def _name(op: Op, signatures: bool) -> str:
    if not signatures:
        return op.name
    return f"{op.name}({', '.join(str(value.type) for value in op.operands)})"


_OPENED = frozenset({"fusion", "while", "case", "if"})


def _expanded(program: Program) -> Iterator[Op]:
    pending = list(reversed(program.main.body.operations))
    while pending:
        op = pending.pop()
        match op.attrs:
            case CallAttrs(callee=callee):
                body = program.function(callee, place=op.place).body
                pending.extend(reversed(body.operations))
            case _ if op.kind == "fusion":
                pending.extend(reversed(op.regions[0].operations))
            case _ if op.kind in _OPENED:
                yield op
                for region in op.regions:
                    pending.extend(reversed(region.operations))
            case _:
                yield op
