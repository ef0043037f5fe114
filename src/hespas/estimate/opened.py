"""Add up the price of what a region holds: single operations, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hespas.cost.structure import Branch, Cost, Leaf, Loop
from hespas.estimate.estimate import Estimate

Price = Callable[[Sequence[Leaf]], Estimate]
"""Prices operations that run once, one after the other."""


def opened(costs: Sequence[Cost], price: Price) -> Estimate:
    """Return what all costs take together.

    A loop takes its body as often as it runs. A branch takes the mean of its alternatives by
    their weights; without weights the dearest, which the notes then say.
    """
    total = price([cost for cost in costs if isinstance(cost, Leaf)])
    return sum((_inside(cost, price) for cost in costs if not isinstance(cost, Leaf)), total)


def _inside(cost: Loop | Branch, price: Price) -> Estimate:
    match cost:
        case Loop(count=count, items=items):
            return opened(items, price) * count
        case Branch(op=op, alternatives=alternatives, weights=weights):
            return _chosen([opened(each, price) for each in alternatives], weights, op.name)


def _chosen(
    alternatives: Sequence[Estimate], weights: Sequence[float] | None, name: str
) -> Estimate:
    if weights is not None:
        parts = (each * weight for each, weight in zip(alternatives, weights, strict=True))
        return sum(parts, Estimate())
    dearest = max(range(len(alternatives)), key=lambda at: alternatives[at].time_s)
    note = f"a {name} without branch weights is priced as its dearest branch"
    return alternatives[dearest] + Estimate(notes=(note,))
