"""The shape of a computation: single operations, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hespas.program.program import Op
from hespas.program.work import Work, summed


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One operation that runs as one piece; ``assumption`` says what was taken for granted."""

    op: Op
    work: Work
    assumption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A ``while``: its condition and body, which run ``count`` times one after another."""

    op: Op
    count: int
    condition: tuple[Cost, ...]
    body: tuple[Cost, ...]

    @property
    def items(self) -> tuple[Cost, ...]:
        """What one round runs: the condition, then the body."""
        return self.condition + self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """An ``if`` or ``case``: one of ``alternatives`` runs.

    ``weights`` says how often each is taken, where the user said; else it is None.
    """

    op: Op
    alternatives: tuple[tuple[Cost, ...], ...]
    weights: tuple[float, ...] | None


Cost = Leaf | Loop | Branch

# Any: what a key may be is whatever Python can order, as for `sorted`.
Ranking = Callable[[Work], Any]


def flops_then_bytes(work: Work) -> tuple[int, int]:
    """Order works by their FLOPs, then by the bytes they move."""
    return work.total_flops, work.bytes_moved


def total(costs: Iterable[Cost], *, choose: Ranking = flops_then_bytes) -> Work:
    """Add up the work of everything that runs.

    A branch without weights costs as much as its most expensive alternative, the one for which
    ``choose`` is largest; with weights, their weighted sum.
    """
    return summed(_work(cost, choose) for cost in costs)


def _work(cost: Cost, choose: Ranking) -> Work:
    match cost:
        case Leaf(work=work):
            return work
        case Loop(count=count):
            return total(cost.items, choose=choose) * count
        case Branch(alternatives=alternatives, weights=weights):
            works = [total(items, choose=choose) for items in alternatives]
            return _branch_work(works, weights, choose)


def _branch_work(works: Sequence[Work], weights: tuple[float, ...] | None, choose: Ranking) -> Work:
    if weights is None:
        return max(works, key=choose)
    return summed(work * weight for work, weight in zip(works, weights, strict=True))


def without_loops(costs: Iterable[Cost]) -> tuple[Cost, ...]:
    """Return the same with every loop run once, which is how XLA's cost analysis counts."""
    return tuple([_once(cost) for cost in costs])


def _once(cost: Cost) -> Cost:
    match cost:
        case Leaf():
            return cost
        case Loop(condition=condition, body=body):
            return replace(
                cost, count=1, condition=without_loops(condition), body=without_loops(body)
            )
        case Branch(alternatives=alternatives):
            return replace(cost, alternatives=tuple(map(without_loops, alternatives)))


def assumptions(costs: Iterable[Cost]) -> tuple[str, ...]:
    """Return what was taken for granted, each once, in program order."""
    found: dict[str, None] = {}
    for cost in costs:
        match cost:
            case Leaf(assumption=assumption):
                found.update({assumption: None} if assumption else {})
            case Loop():
                found.update(dict.fromkeys(assumptions(cost.items)))
            case Branch(alternatives=alternatives):
                for items in alternatives:
                    found.update(dict.fromkeys(assumptions(items)))
    return tuple(found)
