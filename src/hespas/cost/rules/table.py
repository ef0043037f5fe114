"""The table of rules: from an operation's kind to the function that knows its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from hespas.cost.rules import (
    collective,
    contraction,
    elementwise,
    fusion,
    linear_algebra,
    movement,
    randomness,
    reduction,
    sorting,
)
from hespas.cost.work import Work
from hespas.program.program import Op

R = TypeVar("R")

Rule = Callable[[Op], Work]
# Given also the work of one application of each region.
BodyRule = Callable[[Op, tuple[Work, ...]], Work]


def joined(tables: Iterable[Mapping[str, R]]) -> dict[str, R]:
    """Join tables; `ValueError` where two of them have a rule for the same kind."""
    table: dict[str, R] = {}
    for part in tables:
        twice = table.keys() & part.keys()
        if twice:
            raise ValueError(f"two cost rules for {', '.join(sorted(twice))}")
        table.update(part)
    return table


RULES: dict[str, Rule] = joined(
    (
        collective.RULES,
        contraction.RULES,
        elementwise.RULES,
        linear_algebra.RULES,
        movement.RULES,
        randomness.RULES,
        sorting.RULES,
    )
)

BODY_RULES: dict[str, BodyRule] = joined((fusion.RULES, reduction.RULES, sorting.BODY_RULES))

# Opened into what they hold by `hespas.cost.expand`.
OPENED = frozenset({"async_start", "call", "case", "composite", "if", "while"})

# What has no rule on purpose, and why.
GAPS = {
    "dynamic_conv": "its padding is known only when it runs",
    "set_dimension_size": "its result has a size that is known only when it runs",
    "uniform_dequantize": "quantised types are not supported",
    "uniform_quantize": "quantised types are not supported",
}
