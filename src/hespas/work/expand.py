"""Expand operations into costs: loops, branches and leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

from hespas.base.frozen import frozen
from hespas.errors import CostError, ProgramError, option
from hespas.program.attrs import CallAttrs, CaseAttrs, KernelAttrs, WhileAttrs
from hespas.program.program import Function, Op, nested_ops
from hespas.program.work import CustomCallCost, Work, summed
from hespas.work.custom_call import custom_call
from hespas.work.fusion import fusion


@frozen
class Leaf:
    """One operation with its work and any assumption."""

    op: Op
    work: Work
    assumption: str = ""


@frozen
class Loop:
    """A ``while``: condition and body run ``count`` times in sequence."""

    op: Op
    count: int
    condition: tuple[Cost, ...]
    body: tuple[Cost, ...]

    @property
    def items(self) -> tuple[Cost, ...]:
        """One iteration: the condition, then the body."""
        return self.condition + self.body


@frozen
class Branch:
    """An ``if`` or ``case``; ``weights`` are the user's shares of its ``alternatives``."""

    op: Op
    alternatives: tuple[tuple[Cost, ...], ...]
    weights: tuple[float, ...] | None


Cost = Leaf | Loop | Branch

# Any: a key is whatever Python can order, as for `sorted`.
Ranking = Callable[[Work], Any]


def flops_then_bytes(work: Work) -> tuple[int, int]:
    """Return the sort key of works: FLOPs, then bytes."""
    return work.total_flops, work.bytes_moved


def total(costs: Iterable[Cost], *, choose: Ranking = flops_then_bytes) -> Work:
    """Add up the work of everything that runs.

    A branch without weights costs as much as its most expensive alternative, which has the largest
    ``choose``; with weights it costs their weighted sum.
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
            if weights is None:
                return max(works, key=choose)
            return summed(work * share for work, share in zip(works, weights, strict=True))


def leaves(costs: Iterable[Cost]) -> Iterator[Leaf]:
    """Yield every leaf of a computation, in program order."""
    for cost in costs:
        match cost:
            case Leaf():
                yield cost
            case Loop():
                yield from leaves(cost.items)
            case Branch(alternatives=alternatives):
                for items in alternatives:
                    yield from leaves(items)


def assumptions(costs: Iterable[Cost]) -> tuple[str, ...]:
    """Return the assumptions of all leaves, each once."""
    return tuple(dict.fromkeys(leaf.assumption for leaf in leaves(costs) if leaf.assumption))


W = TypeVar("W")

NO_FUNCTIONS: Mapping[str, Function] = MappingProxyType({})
NO_CUSTOM_CALLS: Mapping[str, CustomCallCost] = MappingProxyType({})

# Functions that each call the next twice, many levels deep, would exhaust memory.
_MOST_OPERATIONS = 10_000_000


def expand(
    ops: Op | Iterable[Op],
    functions: Mapping[str, Function] = NO_FUNCTIONS,
    *,
    custom_calls: Mapping[str, CustomCallCost] = NO_CUSTOM_CALLS,
) -> tuple[Cost, ...]:
    """Return the costs of operations, in order.

    The body of a function replaces its call; a ``while`` becomes a `Loop`, an ``if`` or ``case`` a
    `Branch`; every other operation is one `Leaf`, which includes the bodies of reductions, sorts
    and fusions. ``return`` is left out.
    ``custom_calls`` states the work of custom calls by target.

    Raises `CostError` for an operation or custom call without a rule, and for a loop whose trip
    count is unknown; `ProgramError` for a function that is missing or calls itself.
    """
    operations = (ops,) if isinstance(ops, Op) else tuple(ops)
    opening = _Expansion(custom_calls=custom_calls)
    for name in _callees_first(operations, functions):
        opening.opened[name] = opening.items(functions[name].body.operations)
    return opening.items(operations)


def _callees(ops: Iterable[Op]) -> dict[str, str]:
    callees: dict[str, str] = {}
    inner = (nested for op in ops for region in op.regions for nested in nested_ops(region))
    for op in chain(ops, inner):
        if isinstance(op.attrs, CallAttrs):
            callees.setdefault(op.attrs.callee, op.location)
    return callees


def _callees_first(ops: Iterable[Op], functions: Mapping[str, Function]) -> list[str]:
    """Sort the needed functions so that callees come first."""
    graph: dict[str, dict[str, str]] = {}
    pending = _callees(ops)
    while pending:
        name, location = pending.popitem()
        if name not in functions:
            raise ProgramError(f"function @{name} is called but not defined", location=location)
        if name not in graph:
            graph[name] = _callees(functions[name].body.operations)
            pending |= graph[name]
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        callee, caller, *_ = error.args[1]
        location = graph[caller][callee]
        raise ProgramError(f"function @{callee} calls itself", location=location) from None


@dataclass(slots=True, kw_only=True)
class _Expansion:
    """One expansion: the user's custom calls and the expanded functions."""

    custom_calls: Mapping[str, CustomCallCost]
    opened: dict[str, tuple[Cost, ...]] = field(default_factory=dict[str, tuple[Cost, ...]])

    def items(self, ops: Iterable[Op]) -> tuple[Cost, ...]:
        """Return the costs of operations in order."""
        costs: list[Cost] = []
        for op in ops:
            rule = op.traits.work
            if rule is None:
                costs.extend(self._without_own_rule(op))
            elif op.kind != "return":
                costs.append(
                    Leaf(op=op, work=_apply_rule(op, rule), assumption=_bytes_assumption(op))
                )
        if len(costs) > _MOST_OPERATIONS:
            raise CostError(f"calls open into more than {_MOST_OPERATIONS} operations")
        return tuple(costs)

    def _without_own_rule(self, op: Op) -> tuple[Cost, ...]:
        if op.traits.runs_operations or op.kind == "async_start":
            return self._expanded(op)
        if op.kind == "custom_call":
            work, assumption = _apply_rule(op, partial(custom_call, stated=self.custom_calls))
            return (Leaf(op=op, work=work, assumption=assumption),)
        rule = fusion if op.kind == "fusion" else op.traits.work_of_bodies
        if rule is None:
            raise _no_rule_error(op)
        bodies = tuple([total(self.items(region.operations)) for region in op.regions])
        return (Leaf(op=op, work=_apply_rule(op, partial(rule, bodies=bodies))),)

    def _expanded(self, op: Op) -> tuple[Cost, ...]:
        match op.attrs:
            case CallAttrs(callee=callee):
                return self.opened[callee]
            case WhileAttrs(trip_count=count):
                return (self._loop(op, count),)
            case CaseAttrs(weights=weights):
                alternatives = tuple([self.items(region.operations) for region in op.regions])
                return (Branch(op=op, alternatives=alternatives, weights=weights),)
            case _:
                inner = [self.items(region.operations) for region in op.regions]
                return tuple(chain.from_iterable(inner))

    def _loop(self, op: Op, count: int | None) -> Loop:
        if count is None:
            raise CostError(
                "how often the loop runs is not known",
                location=op.location,
                hint=f"give {option('trip_count')}",
            )
        condition, body = (self.items(region.operations) for region in op.regions)
        return Loop(op=op, count=count, condition=condition, body=body)


def _apply_rule(op: Op, rule: Callable[[Op], W]) -> W:
    """Apply a rule; contradictory types or attributes raise `CostError`.

    StableHLO was verified when read; HLO was not.
    """
    try:
        return rule(op)
    except (LookupError, ValueError) as error:
        raise CostError(f"its types do not fit together: {error}", location=op.location) from error


def _bytes_assumption(op: Op) -> str:
    """Return the assumption about an unknown kernel, or ""."""
    if not isinstance(op.attrs, KernelAttrs) or op.attrs.is_known:
        return ""
    return (
        f"{op.name} has no rule: it is priced as one kernel that reads its inputs and writes its "
        "outputs once"
    )


def _no_rule_error(op: Op) -> CostError:
    reason = op.traits.without_work
    if reason:
        return CostError(f"{op.name} has no cost rule: {reason}", location=op.location)
    return CostError(
        f"there is no cost rule for {op.name}",
        location=op.location,
        hint="convert the program to StableHLO operations",
    )
