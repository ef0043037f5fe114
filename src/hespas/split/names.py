"""Attribute operations to phases of a step and modules of the program.

The name stack states most of it. Operations outside the gradient have no mark of their own in JAX:
they belong to the optimiser if they use gradients, or if only the optimiser reads them.

A collective that compilers combined from several has the names of all modules, or none. A reduction
is named after the producers of its operands, a gather after the readers of its results, through
operations without a name that only move data, out of asynchronous operations and from one iteration
of a loop into the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Program, Value, nested_ops, values_read
from hespas.program.scopes import NO_NAME, Named, Phase, read_scope
from hespas.program.types import size_bytes
from hespas.split.flatten import ASYNC
from hespas.split.regions import RegionGraph, operations_of


@frozen
class OperationNames:
    """The names of a program's operations.

    ``optimiser`` holds the results of operations that use gradients outside the gradient, or that
    only the optimiser reads. ``unmarked`` is the phase of all other operations without a mark.
    """

    optimiser: frozenset[Value]
    unmarked: Phase

    def of(self, op: Op) -> Named:
        """Return the phase and path of an operation, or `NO_NAME`.

        The phase of a named operation is never None.
        """
        name = read_scope(op.scope)
        if name.phase is not None or name is NO_NAME:
            return name
        is_optimiser = not self.optimiser.isdisjoint(op.results)
        return replace(name, phase=Phase.OPTIMISER if is_optimiser else self.unmarked)


def operation_names(graph: RegionGraph) -> OperationNames:
    """Return the names of a graph's operations."""
    program = graph.program
    if program.is_scheduled:
        operations: Iterable[Op] = program.main.body.operations
    else:
        operations = [op for region in graph.regions for op in operations_of(region)]
    listed = tuple(operations)
    gradients = _GradientValues()
    gradients.walk(listed)
    unmarked = Phase.OTHER if gradients.has_marks else Phase.FORWARD
    if not gradients.values:
        return OperationNames(optimiser=frozenset(), unmarked=unmarked)
    serving = _OptimiserOperations(after=gradients.values, elsewhere=set(graph.results))
    serving.walk(listed)
    return OperationNames(optimiser=frozenset(serving.optimiser), unmarked=unmarked)


def _phase(op: Op) -> Phase | None:
    return read_scope(op.scope).phase


def _blocks(op: Op) -> tuple[Block, ...]:
    """Return the blocks whose operations an operation runs one by one."""
    is_control = isinstance(op.attrs, WhileAttrs | CaseAttrs) or op.kind in ASYNC
    return op.regions if is_control else ()


@dataclass(slots=True, kw_only=True)
class _GradientValues:
    """Finds the gradients and the values that depend on them."""

    values: set[Value] = field(default_factory=set[Value])
    has_marks: bool = False

    def walk(self, operations: Iterable[Op]) -> None:
        for op in operations:
            blocks = _blocks(op)
            returned = False
            # A loop's second iteration reads what the first one wrote.
            for block in blocks * (2 if isinstance(op.attrs, WhileAttrs) else 1):
                returned |= self._block(op, block)
            phase = _phase(op)
            self.has_marks = self.has_marks or phase in _MARKED
            if blocks:
                self._results(op, returned=returned)
            elif phase is Phase.BACKWARD or not self.values.isdisjoint(op.operands):
                self.values.update(op.results)

    def _block(self, op: Op, block: Block) -> bool:
        self._passed(op, block)
        *operations, last = block.operations
        self.walk(operations)
        if isinstance(op.attrs, WhileAttrs):
            self._passed(last, block)
        return not self.values.isdisjoint(last.operands)

    def _passed(self, op: Op, block: Block) -> None:
        """Note inner arguments of noted values."""
        if len(block.arguments) == len(op.operands):
            pairs = zip(block.arguments, op.operands, strict=True)
            self.values.update(argument for argument, value in pairs if value in self.values)

    def _results(self, op: Op, *, returned: bool) -> None:
        if not isinstance(op.attrs, WhileAttrs):
            if returned or not self.values.isdisjoint(op.operands):
                self.values.update(op.results)
            return
        carried = zip(op.results, op.regions[-1].arguments, strict=False)
        self.values.update(result for result, argument in carried if argument in self.values)


_MARKED = frozenset({Phase.FORWARD, Phase.RECOMPUTATION, Phase.BACKWARD})


@dataclass(slots=True, kw_only=True)
class _OptimiserOperations:
    """Finds the optimiser's operations, in reverse order.

    ``elsewhere`` holds the values that other operations than the optimiser's read.
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


_GATHERS = frozenset({"all_gather", "collective_broadcast"})
_FAR = 8
"""The most unnamed operations to search through."""


@frozen
class Carried:
    """The links between a program's values for naming collectives.

    ``producers`` make values, ``readers`` read them. ``before`` maps arguments of
    blocks to their outer values, ``after`` maps returned values of blocks to the outer results.
    ``has_modules`` says that the program names any module.
    """

    names: OperationNames
    has_modules: bool
    producers: Mapping[Value, Op]
    readers: Mapping[Value, Sequence[Op]]
    before: Mapping[Value, Sequence[Value]]
    after: Mapping[Value, Sequence[Value]]
    _shares_of: dict[Op, tuple[tuple[Named, float], ...]] = field(
        default_factory=dict[Op, tuple[tuple[Named, float], ...]]
    )

    def of(self, op: Op) -> tuple[tuple[Named, float], ...]:
        """Return names with their shares of a collective's bytes.

        The shares add to 1.
        """
        if op not in self._shares_of:
            self._shares_of[op] = tuple(self._shares(op).items())
        return self._shares_of[op]

    def _shares(self, op: Op) -> dict[Named, float]:
        own_name = self.names.of(op)
        if not self.has_modules or (len(op.operands) < 2 and own_name.path):
            return {own_name: 1.0}
        total_bytes = sum(size_bytes(value.type) for value in op.operands)
        if not total_bytes:
            return {own_name: 1.0}
        shares: dict[Named, float] = {}
        unnamed_share = 1.0
        for position, value in enumerate(op.operands):
            share = size_bytes(value.type) / total_bytes
            for name, part in self._names_of_operand(op, position, _FAR).items():
                shares[name] = shares.get(name, 0.0) + part * share
                unnamed_share -= part * share
        if unnamed_share > _ROUNDING or not shares:
            combined = _combined_name(op, own_name)
            shares[combined] = shares.get(combined, 0.0) + max(0.0, unnamed_share)
        return shares

    def _names_of_operand(self, op: Op, place: int, far: int) -> Mapping[Named, float]:
        """Return the names of one operand, or of its result's reader."""
        if op.kind in _GATHERS and place < len(op.results):
            name = self._name_of_reader(op.results[place], far)
            if name is not None:
                return {name: 1.0}
        return self._names_of_producers(op.operands[place], far)

    def _name_of_reader(self, value: Value, far: int) -> Named | None:
        """Return the name of the nearest reader in a module, or None."""
        pending, seen = [value], {value}
        for _ in range(far):
            reached: list[Value] = []
            for current in pending:
                reached += self.after.get(current, ())
                for op in self.readers.get(current, ()):
                    name = self.names.of(op)
                    if name.path and op.kind not in _MOVES:
                        return name
                    if not op.regions:
                        reached += op.results
            pending = [current for current in dict.fromkeys(reached) if current not in seen]
            seen.update(pending)
        return None

    def _names_of_producers(self, value: Value, far: int) -> dict[Named, float]:
        """Return the names of a value's producers by share of bytes."""
        op = self.producers.get(value)
        if far == 0:
            return {}
        if op is None:
            origins = self.before.get(value, ())
            candidates = (self._names_of_producers(source, far - 1) for source in origins)
            return next((names for names in candidates if names), dict[Named, float]())
        own_name = self.names.of(op)
        if own_name.path:
            return {own_name: 1.0}
        total_bytes = sum(size_bytes(source.type) for source in op.operands)
        shares: dict[Named, float] = {}
        for source in op.operands:
            share = size_bytes(source.type) / total_bytes if total_bytes else 0.0
            for name, part in self._names_of_producers(source, far - 1).items():
                shares[name] = shares.get(name, 0.0) + part * share
        # Indices, constants and zeros have no name and belong to no module.
        total = sum(shares.values())
        return {name: share / total for name, share in shares.items()} if total else {}


_ROUNDING = 1e-9
_MOVES = frozenset({"bitcast", "copy", "tuple", "get_tuple_element", "optimization_barrier"})


def _combined_name(op: Op, own: Named) -> Named:
    """Return the combined collective's own name, or a description."""
    if own != NO_NAME or len(op.operands) < 2:
        return own
    text = f"combined {op.kind} of {len(op.operands)} tensors"
    return Named(phase=None, path=(), operation=text)


def carried(program: Program, names: OperationNames) -> Carried:
    """Return the links of a program, in time linear in its operations."""
    producers: dict[Value, Op] = {}
    read: dict[Value, list[Op]] = {}
    before: dict[Value, list[Value]] = {}
    after: dict[Value, list[Value]] = {}
    started: dict[Value, Sequence[Value]] = {}
    has_modules = False
    for op in nested_ops(program.main.body):
        has_modules = has_modules or bool(read_scope(op.scope).path)
        producers.update(dict.fromkeys(op.results, op))
        for value in op.operands:
            read.setdefault(value, []).append(op)
        for inner, outer in _inward(op):
            before.setdefault(inner, []).append(outer)
        for inner, outer in _outward(op, started):
            after.setdefault(inner, []).append(outer)
    return Carried(
        names=names,
        has_modules=has_modules,
        producers=producers,
        readers=read,
        before=before,
        after=after,
    )


def _inward(op: Op) -> Iterator[tuple[Value, Value]]:
    """Yield (block argument, outer value) pairs.

    A loop's arguments also come from the previous iteration.
    """
    if op.kind in ASYNC and op.regions:
        yield from zip(op.regions[0].arguments, op.operands, strict=False)
    if isinstance(op.attrs, WhileAttrs):
        body = op.regions[-1]
        yield from zip(body.arguments, body.operations[-1].operands, strict=False)
        yield from zip(body.arguments, op.operands, strict=False)


def _outward(op: Op, started: dict[Value, Sequence[Value]]) -> Iterator[tuple[Value, Value]]:
    """Yield (returned value, outer result) pairs of blocks.

    A loop's returned values are also arguments of the next iteration.
    """
    if op.kind == "async_start" and op.regions:
        started.update(dict.fromkeys(op.results, op.regions[0].operations[-1].operands))
    elif op.kind == "async_update":
        for bundle, result in zip(op.operands, op.results, strict=False):
            started[result] = started.get(bundle, ())
    elif op.kind == "async_done":
        for bundle in op.operands:
            yield from zip(started.get(bundle, ()), op.results, strict=False)
    if isinstance(op.attrs, WhileAttrs):
        body = op.regions[-1]
        returned = body.operations[-1].operands
        yield from zip(returned, body.arguments, strict=False)
        yield from zip(returned, op.results, strict=False)
