"""Sums that are scattered: onto what they would be added to after.

``a + scatter(b, places, updates)`` that adds to ``b`` is ``scatter(a + b, places, updates)``, which
moves the data of ``a`` once instead of three times. What reads elements of the data that it writes
over stays a kernel of its own, as `hespas.lower.group` says.

Source: what jaxlib 0.10.2 compiles for H100 of 26 sums with a scatter.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hespas.lower.roles import is_zero
from hespas.program.program import Op, applied_ops
from hespas.program.rewrite import Builder, Pattern
from hespas.program.uses import Uses


def _scattered_onto(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the scatter onto the other operand of a sum, if any.

    Of two scatters both stay.
    """
    makers = [uses.producer(value) for value in op.operands]
    sums = [_is_sum(maker) for maker in makers]
    if sum(sums) != 1:
        return None
    at = sums.index(True)
    scatter, other = makers[at], op.operands[1 - at]
    if scatter is None or uses.only_reader(scatter.results[0]) is not op:
        return None
    build = Builder(op)
    start, *others = scatter.operands
    onto = other if is_zero(start, uses) else build.add("add", (other, start), start.type)
    made = replace(scatter, operands=(onto, *others), results=op.results)
    return (*build.operations, made)


def _is_sum(op: Op | None) -> bool:
    if op is None or op.kind != "scatter" or len(op.results) != 1:
        return False
    return [each.kind for each in applied_ops(op)] == ["add"]


SCATTERED_ONTO = Pattern(kinds=("add",), change=_scattered_onto)
