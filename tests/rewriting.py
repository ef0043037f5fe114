"""Rules of modelled fusion, applied to operations by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hespas.program.attrs import NO_ATTRS
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import Pattern, with_patterns

Rule = Pattern | Callable[[Block], Block]


def rewritten(
    operations: Sequence[Op], *rules: Rule, results: Iterable[Value] | None = None
) -> list[Op]:
    """Return operations that rules have rewritten; without ``results``, all of them are results."""
    if results is None:
        results = [value for op in operations for value in op.results]
    end = Op(dialect="func", kind="return", operands=tuple(results), results=(), attrs=NO_ATTRS)
    given = [op for op in operations if op.kind != "return"]
    block = Block(arguments=(), operations=(*given, end))
    for rule in rules:
        block = with_patterns(block, (rule,)) if isinstance(rule, Pattern) else rule(block)
    return [*block.operations[:-1]]
