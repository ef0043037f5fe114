"""Add up the price of what a region holds: single operations, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hespas.cost.structure import Branch, Cost, Leaf, Loop
from hespas.estimate.estimate import Estimate, OpEstimate

Price = Callable[[Sequence[Leaf]], Estimate]
"""Prices operations that run once, one after the other."""


def opened(costs: Sequence[Cost], price: Price) -> Estimate:
    """Return what all costs take together.

    A loop takes its body as often as it runs. A branch takes the mean of its alternatives by
    their weights; without weights the dearest, which the notes then say.
    """
    total = price([cost for cost in costs if isinstance(cost, Leaf)])
    return sum((_inside(cost, price) for cost in costs if not isinstance(cost, Leaf)), total)


def summed(priced: Iterable[tuple[str, OpEstimate]], notes: Iterable[str]) -> Estimate:
    """Return what operations, by the names of their kinds, cost together; empty notes are none.

    >>> one = OpEstimate(count=1.0, time_s=2.0)
    >>> summed([("add", one), ("add", one)], ["", "b", "a", "b"]).notes
    ('a', 'b')
    """
    per_op: dict[str, OpEstimate] = {}
    for name, made in priced:
        per_op[name] = per_op.get(name, OpEstimate()) + made
    return Estimate(per_op=per_op, notes=tuple(sorted({*notes} - {""})))


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
