"""Which phase of a step an operation belongs to, and which module of the user's program.

The name stack says most of it. What stands outside of the gradient has no mark of its own in JAX:
it is the optimiser's where it uses gradients, or serves only what does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Value, values_read
from hespas.program.scopes import NO_NAME, Named, Phase, read_scope
from hespas.split.flatten import ASYNC
from hespas.split.regions import RegionGraph, operations_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationNames:
    """The names of a program's operations.

    ``optimiser`` holds the results of what uses gradients outside of the gradient, or serves only
    that. ``unmarked`` is the phase of what stands elsewhere, outside of all gradients.
    """

    optimiser: frozenset[Value]
    unmarked: Phase

    def of(self, op: Op) -> Named:
        """Return the phase and path of an operation; `NO_NAME` where it has no name.

        The phase of one that has a name is never None.
        """
        named = read_scope(op.scope)
        if named.phase is not None or named is NO_NAME:
            return named
        is_optimiser = not self.optimiser.isdisjoint(op.results)
        return replace(named, phase=Phase.OPTIMISER if is_optimiser else self.unmarked)


def operation_names(graph: RegionGraph) -> OperationNames:
    """Return the names of a graph's operations, in time linear in their number."""
    program = graph.program
    if program.is_scheduled:
        operations: Iterable[Op] = program.main.body.operations
    else:
        operations = [op for region in graph.regions for op in operations_of(region)]
    listed = tuple(operations)
    after = _After()
    after.walk(listed)
    unmarked = Phase.OTHER if after.has_marks else Phase.FORWARD
    if not after.values:
        return OperationNames(optimiser=frozenset(), unmarked=unmarked)
    serving = _Serving(after=after.values, elsewhere=set(graph.results))
    serving.walk(listed)
    return OperationNames(optimiser=frozenset(serving.optimiser), unmarked=unmarked)


def _phase(op: Op) -> Phase | None:
    return read_scope(op.scope).phase


def _blocks(op: Op) -> tuple[Block, ...]:
    """Return the blocks of which an operation runs the operations one by one."""
    is_control = isinstance(op.attrs, WhileAttrs | CaseAttrs) or op.kind in ASYNC
    return op.regions if is_control else ()


@dataclass(slots=True, kw_only=True)
class _After:
    """Finds the values that depend on gradients, gradients among them."""

    values: set[Value] = field(default_factory=set[Value])
    has_marks: bool = False

    def walk(self, operations: Iterable[Op]) -> None:
        for op in operations:
            blocks = _blocks(op)
            returned = False
            # A loop's second round reads what its first one wrote.
            for block in blocks * (2 if isinstance(op.attrs, WhileAttrs) else 1):
                returned |= self._block(op, block)
            phase = _phase(op)
            self.has_marks = self.has_marks or phase in _MARKED
            if blocks:
                self._results(op, returned=returned)
            elif phase is Phase.BACKWARD or not self.values.isdisjoint(op.operands):
                self.values.update(op.results)

    def _block(self, op: Op, block: Block) -> bool:
        if len(block.arguments) == len(op.operands):
            pairs = zip(block.arguments, op.operands, strict=True)
            self.values.update(argument for argument, value in pairs if value in self.values)
        *operations, last = block.operations
        self.walk(operations)
        if isinstance(op.attrs, WhileAttrs) and len(last.operands) == len(block.arguments):
            pairs = zip(block.arguments, last.operands, strict=True)
            self.values.update(argument for argument, value in pairs if value in self.values)
        return not self.values.isdisjoint(last.operands)

    def _results(self, op: Op, *, returned: bool) -> None:
        if not isinstance(op.attrs, WhileAttrs):
            if returned or not self.values.isdisjoint(op.operands):
                self.values.update(op.results)
            return
        carried = zip(op.results, op.regions[-1].arguments, strict=False)
        self.values.update(result for result, argument in carried if argument in self.values)


_MARKED = frozenset({Phase.FORWARD, Phase.RECOMPUTATION, Phase.BACKWARD})


@dataclass(slots=True, kw_only=True)
class _Serving:
    """Finds the optimiser's operations, from the last one to the first.

    ``elsewhere`` holds the values that others than the optimiser read.
    """

    after: set[Value]
    elsewhere: set[Value]
    optimiser: set[Value] = field(default_factory=set[Value])

    def walk(self, operations: tuple[Op, ...]) -> None:
        for op in reversed(operations):
            for block in _blocks(op):
                self.elsewhere.update(block.operations[-1].operands)
                self.walk(block.operations[:-1])
            if self._is_optimiser(op):
                self.optimiser.update(op.results)
            else:
                self.elsewhere.update(values_read(op))

    def _is_optimiser(self, op: Op) -> bool:
        phase = _phase(op)
        if phase is not None:
            return phase is Phase.OPTIMISER
        if not self.after.isdisjoint(op.operands):
            return True
        return bool(op.results) and self.elsewhere.isdisjoint(op.results)
