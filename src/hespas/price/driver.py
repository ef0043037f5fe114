"""Add up the costs of a region's operations.

A method prices single operations (`OperationMethod`). Everything around them is the same for all
methods and stands in this module: loops multiply, a branch costs one of its alternatives, calls are
opened, and an operation that a compiled program launches as a kernel of its own pays for its
launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from hespas.base.frozen import frozen
from hespas.price.estimate import LAUNCH, Bound, Estimate, OpEstimate, Price
from hespas.program.program import Op, Program
from hespas.program.work import CustomCallCost
from hespas.split.regions import Compute
from hespas.work.expand import Branch, Cost, Leaf, Loop


@frozen
class Priced:
    """One execution of an operation with its full cost, its launch included."""

    op: Op
    cost: OpEstimate

    @property
    def duration_ps(self) -> int:
        """The time of the execution."""
        return self.cost.duration_ps


@frozen
class Rounds:
    """A loop of ``count`` rounds; one round runs ``body`` and takes ``round_ps``."""

    op: Op
    count: int
    body: tuple[Step, ...]
    round_ps: int

    @property
    def duration_ps(self) -> int:
        """The time of all rounds."""
        return self.count * self.round_ps


Step = Priced | Rounds


def priced_steps(
    method: OperationMethod,
    region: Compute,
    program: Program,
    *,
    custom_calls: Mapping[str, CustomCallCost],
) -> tuple[Step, ...]:
    """Return a region's steps in order, as `estimate_region` prices them.

    A branch is replaced by its most expensive alternative, or with weights by all of them, each
    with its part of the time. Raises `CostError` for unknown work, and what the method raises.
    """
    costs = region.costs(program.functions, custom_calls)
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
                yield from _branch_steps(cost, method, launches=launches)


def _cost(leaf: Leaf, method: OperationMethod, *, launches: bool) -> OpEstimate:
    price = _price(method, leaf, launches=launches)
    if not price.launch_s:
        return price.cost
    launch = OpEstimate(time_s=price.launch_s, bound=Bound(launch_s=price.launch_s))
    return price.cost + launch


def _branch_steps(branch: Branch, method: OperationMethod, *, launches: bool) -> Iterator[Step]:
    alternatives = [
        tuple(_steps(alternative, method, launches=launches)) for alternative in branch.alternatives
    ]
    if branch.weights is None:
        yield from max(alternatives, key=duration_ps, default=())
        return
    for steps, weight in zip(alternatives, branch.weights, strict=True):
        yield from (_weight_step(step, weight) for step in steps)


def _weight_step(step: Step, weight: float) -> Step:
    match step:
        case Priced():
            return replace(step, cost=step.cost * weight)
        case Rounds():
            body = tuple([_weight_step(inner, weight) for inner in step.body])
            return replace(step, body=body, round_ps=duration_ps(body))


def duration_ps(steps: Sequence[Step]) -> int:
    """Return the time of steps that run one after another."""
    return sum(step.duration_ps for step in steps)


class Estimator(Protocol):
    """Estimates the time of a compute region on one device.

    A method that prices operations implements `OperationMethod` too, and its ``estimate`` calls
    `estimate_region`. A profiler, which runs a region as a whole, has no use for that.
    """

    @property
    def method(self) -> str:
        """The method's name in configuration files."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """Everything besides the region that decides the answer, as JSON values."""
        ...

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region, as sentences for users."""
        ...

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Return a region's cost; raise `HespasError` if unknown."""
        ...


@runtime_checkable
class OperationMethod(Protocol):
    """Prices single operations."""

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one execution.

        ``is_kernel`` says that the program launches the operation on its own; otherwise it is a
        part of some kernel, or runs nothing.
        """
        ...


def is_kernel(op: Op, program: Program) -> bool:
    """Return whether a program launches an operation by itself."""
    return program.is_scheduled and not op.traits.runs_nothing


def _price(method: OperationMethod, leaf: Leaf, *, launches: bool) -> Price:
    return method.price(leaf, is_kernel=launches and not leaf.op.traits.runs_nothing)


def estimate_region(
    method: OperationMethod,
    region: Compute,
    program: Program,
    *,
    custom_calls: Mapping[str, CustomCallCost],
    key: Callable[[Leaf], Hashable] | None = None,
) -> Estimate:
    """Return the cost of a region by a method that prices operations.

    ``custom_calls`` states the work of custom calls by target. ``key`` returns what decides an
    operation's price, so that operations with equal keys are priced once; without it each is priced
    on its own. Raises `CostError` for unknown work, and what the method raises.
    """
    costs = region.costs(program.functions, custom_calls)
    return estimate_costs(method, costs, launches=program.is_scheduled, key=key)


def estimate_costs(
    method: OperationMethod,
    costs: Sequence[Cost],
    *,
    launches: bool,
    key: Callable[[Leaf], Hashable] | None = None,
) -> Estimate:
    """Add up the costs of operations that follow one another.

    ``launches`` says that the program is compiled, so that its operations are kernels. A loop runs
    its condition and its body as often as it iterates; a compiled program whose trip counts are
    known launches the bodies alone. A branch takes its most expensive alternative, and a note says
    so; with weights it takes the weighted mean. Raises as `estimate_region` does.
    """
    leaves = [cost for cost in costs if isinstance(cost, Leaf)]
    total = _price_leaves(leaves, method, key or id, launches=launches)
    for cost in costs:
        match cost:
            case Leaf():
                continue
            case Loop(count=count, condition=condition, body=body):
                decided = estimate_costs(method, condition, launches=False, key=key)
                executed = estimate_costs(method, body, launches=launches, key=key)
                total += (decided + executed) * count
            case Branch(op=op, alternatives=alternatives, weights=weights):
                parts = [
                    estimate_costs(method, alternative, launches=launches, key=key)
                    for alternative in alternatives
                ]
                total += _branch_estimate(op, parts, weights)
    return total


def _price_leaves(
    leaves: Sequence[Leaf],
    method: OperationMethod,
    key: Callable[[Leaf], Hashable],
    *,
    launches: bool,
) -> Estimate:
    counts: dict[Hashable, int] = {}
    first: dict[Hashable, Leaf] = {}
    assumed: list[tuple[str, Hashable]] = []
    for leaf in leaves:
        price_key = key(leaf)
        counts[price_key] = counts.get(price_key, 0) + 1
        first.setdefault(price_key, leaf)
        if leaf.assumption:
            assumed.append((leaf.assumption, price_key))
    per_op: dict[str, OpEstimate] = {}
    times_s: dict[Hashable, float] = {}
    noted_s: dict[str, float] = {}
    warnings = set[str]()
    kernels: dict[float, int] = {}
    for price_key, leaf in first.items():
        price = _price(method, leaf, launches=launches)
        name, count = price.label or leaf.op.name, counts[price_key]
        cost = price.cost if count == 1 else price.cost * count
        per_op[name] = per_op[name] + cost if name in per_op else cost
        times_s[price_key] = price.cost.time_s
        for note in filter(None, dict.fromkeys(price.notes)):
            noted_s[note] = noted_s.get(note, 0.0) + cost.time_s
        warnings.update(price.warnings)
        if price.launch_s:
            kernels[price.launch_s] = kernels.get(price.launch_s, 0) + count
    for note, price_key in assumed:
        noted_s[note] = noted_s.get(note, 0.0) + times_s[price_key]
    for launch_s, count in kernels.items():
        launched = OpEstimate(count=1.0, time_s=launch_s, bound=Bound(launch_s=launch_s))
        per_op[LAUNCH] = per_op.get(LAUNCH, OpEstimate()) + launched * count
    return Estimate(per_op=per_op, notes=tuple(noted_s), warnings=tuple(warnings), noted_s=noted_s)


def _branch_estimate(
    op: Op, parts: Sequence[Estimate], weights: Sequence[float] | None
) -> Estimate:
    if weights is not None:
        weighted = (part * weight for part, weight in zip(parts, weights, strict=True))
        return sum(weighted, Estimate())
    note = f"a {op.name} without branch weights is priced as its most expensive branch"
    longest = max(parts, key=lambda part: part.time_s)
    return longest + Estimate(notes=(note,), noted_s={note: longest.time_s})
