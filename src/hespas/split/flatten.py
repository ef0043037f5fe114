"""A program as one straight list of operations, every collective at the top.

Calls are opened; a loop or branch is opened only where it holds a collective, since otherwise
one region can hold it whole. Asynchronous starts become what they start: the region graph says
by its edges what may overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.attrs import CallAttrs, CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Program, Value, is_communication_op, nested_ops
from hespas.program.rewrite import Renaming, copied_op, with_calls_opened
from hespas.program.types import size_bytes

MOST_OPERATIONS = 5_000_000
_ASYNC = frozenset({"async_start", "async_update", "async_done"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatProgram:
    """Operations without the terminator, and what was assumed to get them."""

    arguments: tuple[Value, ...]
    operations: tuple[Op, ...]
    results: tuple[Value, ...]
    assumptions: tuple[str, ...]


def flatten(program: Program) -> FlatProgram:
    """Open calls, and the loops and branches that communicate.

    Raises `ProgramError` where the trip count of a loop that communicates is unknown, and
    `UnsupportedError` where opening would give over `MOST_OPERATIONS`.
    """
    main = with_calls_opened(program)
    body = main.body
    if not any(_needs_opening(op) for op in body.operations):
        return FlatProgram(
            arguments=body.arguments,
            operations=body.operations[:-1],
            results=main.results,
            assumptions=(),
        )
    _check_size(body, program.source)
    flattener = _Flattener(program=program)
    renaming: Renaming = {argument: argument for argument in body.arguments}
    flattener.block(body.operations[:-1], renaming)
    return FlatProgram(
        arguments=body.arguments,
        operations=tuple(flattener.operations),
        results=tuple(renaming.get(value, value) for value in main.results),
        assumptions=tuple(flattener.assumptions),
    )


def _needs_opening(op: Op) -> bool:
    if op.kind in _ASYNC:
        return True
    if not op.regions or is_communication_op(op):
        return False
    return any(
        inner.kind in _ASYNC or is_communication_op(inner)
        for region in op.regions
        for inner in nested_ops(region)
    )


def _check_size(body: Block, source: str) -> None:
    if _opened_size(body) > MOST_OPERATIONS:
        raise UnsupportedError(
            f"opening the loops that communicate gives over {MOST_OPERATIONS:,} operations",
            location=source,
            hint="give smaller counts with --trip-count",
        )


def _opened_size(block: Block) -> int:
    """Count the operations that a block becomes, all of its branches together."""
    return sum(
        _rounds(op) * max(1, sum(map(_opened_size, op.regions))) if _needs_opening(op) else 1
        for op in block.operations
    )


def _rounds(op: Op) -> int:
    return (op.attrs.trip_count or 1) if isinstance(op.attrs, WhileAttrs) else 1


@dataclass(slots=True, kw_only=True)
class _Flattener:
    program: Program
    operations: list[Op] = field(default_factory=list[Op])
    assumptions: list[str] = field(default_factory=list[str])
    bundles: dict[Value, tuple[Value, ...]] = field(default_factory=dict[Value, tuple[Value, ...]])

    def block(self, operations: tuple[Op, ...], renaming: Renaming) -> None:
        for op in operations:
            self._op(op, renaming)

    def _op(self, op: Op, renaming: Renaming) -> None:
        if op.kind in _ASYNC:
            self._asynchronous(op, renaming)
        elif not _needs_opening(op):
            self.operations.append(copied_op(op, renaming))
        elif op.kind == "while":
            self._loop(op, renaming)
        elif op.kind in ("case", "if"):
            self._branch(op, renaming)
        else:
            raise UnsupportedError("a collective inside this operation", location=op.location)

    def _inline(self, block: Block, operands: list[Value], renaming: Renaming) -> list[Value]:
        renaming.update(zip(block.arguments, operands, strict=True))
        self.block(block.operations[:-1], renaming)
        return [renaming.get(value, value) for value in block.operations[-1].operands]

    def _loop(self, op: Op, renaming: Renaming) -> None:
        count = op.attrs.trip_count if isinstance(op.attrs, WhileAttrs) else None
        if count is None:
            raise ProgramError(
                "how often this loop runs cannot be read from its condition",
                location=op.location,
                hint="give it with --trip-count",
            )
        condition, body = op.regions
        carried = [renaming.get(value, value) for value in op.operands]
        for _ in range(count):
            self._inline(condition, carried, renaming)
            carried = self._inline(body, carried, renaming)
        self._inline(condition, carried, renaming)
        renaming.update(zip(op.results, carried, strict=True))

    def _branch(self, op: Op, renaming: Renaming) -> None:
        taken, told = taken_branch(op)
        self.assumptions.append(told)
        made = self._inline(op.regions[taken], [], renaming)
        renaming.update(zip(op.results, made, strict=True))

    def _asynchronous(self, op: Op, renaming: Renaming) -> None:
        operands = [renaming.get(value, value) for value in op.operands]
        match op.kind:
            case "async_start":
                made = self._inline(self._started(op), operands, renaming)
                self.bundles[op.results[0]] = tuple(made)
            case "async_update":
                self.bundles[op.results[0]] = self._bundle(op)
            case _:
                renaming.update(zip(op.results, self._bundle(op), strict=True))

    def _bundle(self, op: Op) -> tuple[Value, ...]:
        made = self.bundles.get(op.operands[0])
        if made is None:
            raise ProgramError(
                "its operand does not come from an async_start", location=op.location
            )
        return made

    def _started(self, op: Op) -> Block:
        if op.regions:
            return op.regions[0]
        if isinstance(op.attrs, CallAttrs):
            return self.program.function(op.attrs.callee, location=op.location).body
        raise ProgramError("it starts nothing", location=op.location)


def taken_branch(op: Op) -> tuple[int, str]:
    """Return the branch that stands for all branches of an operation, and a sentence on it."""
    weights = op.attrs.weights if isinstance(op.attrs, CaseAttrs) else None
    ranks = weights or [_communicated_bytes(region) for region in op.regions]
    taken = max(range(len(op.regions)), key=ranks.__getitem__)
    why = "the heaviest" if weights else "the one that communicates most"
    return taken, f"{op.location}: branch {taken} is taken, {why}"


def _communicated_bytes(block: Block) -> int:
    return sum(
        size_bytes(value.type)
        for op in nested_ops(block)
        if is_communication_op(op)
        for value in op.operands
    )
