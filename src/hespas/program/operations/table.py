"""The table of all kinds of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from hespas.program.operations import (
    contraction,
    elementwise,
    libraries,
    movement,
    reduction,
)
from hespas.program.operations.traits import UNKNOWN, Category, Traits


def joined(tables: Iterable[Mapping[str, Traits]]) -> dict[str, Traits]:
    """Join tables of traits.

    Raises `ValueError` if two tables have a record of the same kind.
    """
    table: dict[str, Traits] = {}
    for part in tables:
        repeated = table.keys() & part.keys()
        if repeated:
            raise ValueError(f"two records of {', '.join(sorted(repeated))}")
        table.update(part)
    return table


TRAITS: Mapping[str, Traits] = MappingProxyType(
    joined(
        (
            contraction.TRAITS,
            elementwise.TRAITS,
            libraries.EVENT_TRAITS,
            libraries.TRAITS,
            libraries.RANDOM_TRAITS,
            libraries.SORTING_TRAITS,
            movement.TRAITS,
            movement.CONTROL_TRAITS,
            movement.COLLECTIVE_TRAITS,
            reduction.TRAITS,
        )
    )
)


def traits_of(kind: str) -> Traits:
    """Return a kind's traits; `UNKNOWN` without a record.

    >>> traits_of("tanh").category.value, traits_of("dot_general").is_fusible
    ('elementwise', False)
    """
    return TRAITS.get(kind, UNKNOWN)


def kinds_of(*categories: Category) -> frozenset[str]:
    """Return the kinds of operations of some categories."""
    return kinds_where(lambda traits: traits.category in categories)


def kinds_where(condition: Callable[[Traits], bool]) -> frozenset[str]:
    """Return the kinds of operations whose traits meet a condition."""
    return frozenset(kind for kind, traits in TRAITS.items() if condition(traits))
