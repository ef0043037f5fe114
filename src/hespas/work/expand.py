"""Open operations into the work that they do: loops, branches and single operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from hespas.errors import CostError, ProgramError, option
from hespas.program.attrs import CallAttrs, CaseAttrs, WhileAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Function, Op, nested_ops
from hespas.work.custom_call import CustomCallCost, custom_call
from hespas.work.fusion import fusion
from hespas.work.structure import Branch, Cost, Leaf, Loop, total

W = TypeVar("W")

NO_FUNCTIONS: Mapping[str, Function] = MappingProxyType({})
NO_CUSTOM_CALLS: Mapping[str, CustomCallCost] = MappingProxyType({})

# Functions that call each other twice over, many levels deep, would fill the memory.
_MOST_OPERATIONS = 10_000_000
_HOLDING = (Category.CALL, Category.CONTROL)


def expand(
    ops: Op | Iterable[Op],
    functions: Mapping[str, Function] = NO_FUNCTIONS,
    *,
    custom_calls: Mapping[str, CustomCallCost] = NO_CUSTOM_CALLS,
) -> tuple[Cost, ...]:
    """Return what the operations do, in order.

    A called function of ``functions`` stands open in place of its call, a ``while`` as a
    `Loop`, an ``if`` or ``case`` as a `Branch`; every other operation is one `Leaf`, with the
    bodies of reductions, sorts and fusions inside it. ``return`` does nothing and is left out.
    ``custom_calls`` states the work of custom calls by target.

    Raises `CostError` for an operation or custom call without a rule, and for a loop whose trip
    count is not known; `ProgramError` for a function that is missing or calls itself.
    """
    listed = (ops,) if isinstance(ops, Op) else tuple(ops)
    opening = _Opening(custom_calls=custom_calls)
    for name in _callees_first(listed, functions):
        opening.opened[name] = opening.items(functions[name].body.operations)
    return opening.items(listed)


def _callees(ops: Iterable[Op]) -> dict[str, str]:
    """Return the functions that operations call, each with the place of a call."""
    found: dict[str, str] = {}
    for op in ops:
        if isinstance(op.attrs, CallAttrs):
            found.setdefault(op.attrs.callee, op.location)
        for region in op.regions:
            for inner in nested_ops(region):
                if isinstance(inner.attrs, CallAttrs):
                    found.setdefault(inner.attrs.callee, inner.location)
    return found


def _callees_first(ops: Iterable[Op], functions: Mapping[str, Function]) -> list[str]:
    """Order the functions that are needed so that each stands after those it calls."""
    order: list[str] = []
    done: set[str] = set()
    open_names: set[str] = set()
    stack = list(_callees(ops).items())
    while stack:
        name, location = stack[-1]
        if name in done:
            stack.pop()
        elif name in open_names:
            stack.pop()
            open_names.discard(name)
            done.add(name)
            order.append(name)
        else:
            open_names.add(name)
            stack.extend(_next_callees(name, location, functions, open_names))
    return order


def _next_callees(
    name: str, location: str, functions: Mapping[str, Function], open_names: set[str]
) -> list[tuple[str, str]]:
    if name not in functions:
        raise ProgramError(f"function @{name} is called but not defined", location=location)
    callees = _callees(functions[name].body.operations)
    for callee, at in callees.items():
        if callee in open_names:
            raise ProgramError(f"function @{callee} calls itself", location=at)
    return list(callees.items())


@dataclass(slots=True, kw_only=True)
class _Opening:
    """One expansion: what is stated for it, and the functions opened so far."""

    custom_calls: Mapping[str, CustomCallCost]
    opened: dict[str, tuple[Cost, ...]] = field(default_factory=dict[str, tuple[Cost, ...]])

    def items(self, ops: Iterable[Op]) -> tuple[Cost, ...]:
        """Return the costs of operations in order."""
        found: list[Cost] = []
        for op in ops:
            rule = op.traits.work
            if rule is None:
                found.extend(self._structured(op))
            elif op.kind != "return":
                found.append(Leaf(op=op, work=_counted(op, rule)))
        if len(found) > _MOST_OPERATIONS:
            raise CostError(f"calls open into more than {_MOST_OPERATIONS} operations")
        return tuple(found)

    def _structured(self, op: Op) -> tuple[Cost, ...]:
        if op.traits.category in _HOLDING or op.kind == "async_start":
            return self._opened(op)
        if op.kind == "custom_call":
            work, assumption = _counted(op, partial(custom_call, stated=self.custom_calls))
            return (Leaf(op=op, work=work, assumption=assumption),)
        rule = fusion if op.kind == "fusion" else op.traits.work_of_bodies
        if rule is None:
            raise _unknown(op)
        bodies = tuple([total(self.items(region.operations)) for region in op.regions])
        return (Leaf(op=op, work=_counted(op, lambda each: rule(each, bodies))),)

    def _opened(self, op: Op) -> tuple[Cost, ...]:
        match op.attrs:
            case CallAttrs(callee=callee):
                return self.opened[callee]
            case WhileAttrs(trip_count=count):
                return (self._loop(op, count),)
            case CaseAttrs(weights=weights):
                alternatives = tuple([self._region(region) for region in op.regions])
                return (Branch(op=op, alternatives=alternatives, weights=weights),)
            case _:
                return tuple([item for region in op.regions for item in self._region(region)])

    def _region(self, region: Block) -> tuple[Cost, ...]:
        return self.items(region.operations)

    def _loop(self, op: Op, count: int | None) -> Loop:
        if count is None:
            raise CostError(
                "how often the loop runs is not known",
                location=op.location,
                hint=f"give {option('trip_count')}",
            )
        condition, body = (self._region(region) for region in op.regions)
        return Loop(op=op, count=count, condition=condition, body=body)


def _counted(op: Op, rule: Callable[[Op], W]) -> W:
    """Apply a rule; `CostError` where the operation's types or attributes contradict each other.

    What comes from StableHLO was verified, what comes from HLO was not.
    """
    try:
        return rule(op)
    except (LookupError, ValueError) as error:
        raise CostError(f"its types do not fit together: {error}", location=op.location) from error


def _unknown(op: Op) -> CostError:
    reason = op.traits.without_work
    if reason:
        return CostError(f"{op.name} has no cost rule: {reason}", location=op.location)
    return CostError(
        f"there is no cost rule for {op.name}",
        location=op.location,
        hint="convert the program to StableHLO operations",
    )
