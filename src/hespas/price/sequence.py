"""The operations of a region one after another, each with its price: what a timeline shows.

`hespas.price.driver` adds up the same prices by kind. Both walk the same `hespas.work.expand`,
and a test compares their sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hespas.price.bound import Bound
from hespas.price.driver import OperationMethod
from hespas.price.estimate import OpEstimate
from hespas.program.program import Op, Program
from hespas.split.regions import Compute
from hespas.work.custom_call import CustomCallCost
from hespas.work.expand import Branch, Cost, Leaf, Loop, expand


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One execution of an operation with all that it costs, its launch included."""

    op: Op
    cost: OpEstimate

    @property
    def duration_ps(self) -> int:
        """How long it takes."""
        return self.cost.duration_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """A loop: ``body`` is what one of its ``count`` rounds runs, which takes ``round_ps``."""

    op: Op
    count: int
    body: tuple[Step, ...]
    round_ps: int

    @property
    def duration_ps(self) -> int:
        """How long all rounds take."""
        return self.count * self.round_ps


Step = Priced | Rounds


def priced_steps(
    method: OperationMethod,
    region: Compute,
    program: Program,
    *,
    custom_calls: Mapping[str, CustomCallCost],
) -> tuple[Step, ...]:
    """Return what a region runs, in order, as `hespas.price.driver.estimate_region` prices it.

    A branch stands for its most expensive alternative, or with weights for all of them, each with
    its part of the time. Raises `CostError` for work that is not known, and what the method raises.
    """
    costs = expand(region.operations, program.functions, custom_calls=custom_calls)
    return tuple(_steps(costs, method, launches=program.is_scheduled))


def _steps(costs: Iterable[Cost], method: OperationMethod, *, launches: bool) -> Iterator[Step]:
    for cost in costs:
        match cost:
            case Leaf(op=op):
                yield Priced(op=op, cost=_cost(cost, method, launches=launches))
            case Loop(op=op, count=count, condition=condition, body=body):
                steps = (
                    *_steps(condition, method, launches=False),
                    *_steps(body, method, launches=launches),
                )
                yield Rounds(op=op, count=count, body=steps, round_ps=duration_ps(steps))
            case Branch():
                yield from _taken(cost, method, launches=launches)


def _cost(leaf: Leaf, method: OperationMethod, *, launches: bool) -> OpEstimate:
    price = method.price(leaf, is_kernel=launches and not leaf.op.traits.runs_nothing)
    if not price.launch_s:
        return price.cost
    launch = OpEstimate(time_s=price.launch_s, bound=Bound(launch_s=price.launch_s))
    return price.cost + launch


def _taken(branch: Branch, method: OperationMethod, *, launches: bool) -> Iterator[Step]:
    alternatives = [tuple(_steps(each, method, launches=launches)) for each in branch.alternatives]
    if branch.weights is None:
        yield from max(alternatives, key=duration_ps, default=())
        return
    for steps, weight in zip(alternatives, branch.weights, strict=True):
        yield from (_weighted(step, weight) for step in steps)


def _weighted(step: Step, weight: float) -> Step:
    match step:
        case Priced():
            return replace(step, cost=step.cost * weight)
        case Rounds():
            body = tuple([_weighted(each, weight) for each in step.body])
            return replace(step, body=body, round_ps=duration_ps(body))


def duration_ps(steps: Sequence[Step]) -> int:
    """Return how long steps take one after another."""
    return sum(step.duration_ps for step in steps)
