"""Turn a program into one list of operations in which no collective is nested.

Calls are inlined. Loops are unrolled and branches inlined only if they hold a collective, since
otherwise one region can hold them whole. The operations that an asynchronous start holds
replace it; the edges of the region graph say what may overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hespas.errors import ProgramError, UnsupportedError, option
from hespas.program.attrs import CallAttrs, CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Program, Value, is_communication_op, nested_ops
from hespas.program.rewrite import Renaming, copied_op, with_calls_opened
from hespas.program.types import size_bytes
from hespas.split.rounds import LoopRound
from hespas.work.fusion import host_traffic

MOST_OPERATIONS = 5_000_000
ASYNC = frozenset({"async_start", "async_update", "async_done"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatProgram:
    """Operations without the terminator, and the assumptions made in flattening.

    ``rounds`` are those of loops that were unrolled, by the positions of their operations.
    """

    arguments: tuple[Value, ...]
    operations: tuple[Op, ...]
    results: tuple[Value, ...]
    assumptions: tuple[str, ...]
    rounds: tuple[LoopRound, ...] = ()


def flatten(program: Program) -> FlatProgram:
    """Return a program's operations with calls and all control flow that communicates inlined.

    Raises `ProgramError` if the trip count of a loop that communicates is unknown, and
    `UnsupportedError` if there would be more than `MOST_OPERATIONS`.
    """
    main = with_calls_opened(program)
    body = main.body
    if not any(needs_opening(op) for op in body.operations):
        return FlatProgram(
            arguments=body.arguments,
            operations=body.operations[:-1],
            results=main.results,
            assumptions=(),
        )
    if _opened_size(body) > MOST_OPERATIONS:
        raise too_large(program.source, what="operations")
    flattener = _Flattener(program=program)
    renaming: Renaming = {argument: argument for argument in body.arguments}
    flattener.block(body.operations[:-1], renaming)
    return FlatProgram(
        arguments=body.arguments,
        operations=tuple(flattener.operations),
        results=tuple(renaming.get(value, value) for value in main.results),
        assumptions=tuple(flattener.assumptions),
        rounds=tuple(flattener.rounds),
    )


def unrolled_size(program: Program) -> int:
    """Return the operations of a program whose loops that communicate are unrolled.

    Of branches that communicate all count.
    """
    return _opened_size(with_calls_opened(program).body)


def stands_alone(op: Op) -> bool:
    """Return whether an operation is a region by itself: it communicates, or moves to a host."""
    return is_communication_op(op) or bool(host_traffic(op))


def needs_opening(op: Op) -> bool:
    """Return whether an operation is asynchronous, or holds what stands alone."""
    if op.kind in ASYNC:
        return True
    if not op.regions or stands_alone(op):
        return False
    return any(
        inner.kind in ASYNC or stands_alone(inner)
        for region in op.regions
        for inner in nested_ops(region)
    )


def too_large(source: str, *, what: str, instead: str = "") -> UnsupportedError:
    """Return the error for a program that has more than `MOST_OPERATIONS` when unrolled.

    ``instead`` says what else would do, where there is anything.
    """
    return UnsupportedError(
        f"unrolling the loops that communicate gives over {MOST_OPERATIONS:,} {what}",
        location=source,
        hint=f"{instead}give smaller counts with {option('trip_count')}",
    )


def _opened_size(block: Block) -> int:
    """Return the number of operations that a block becomes, counting all of its branches."""
    return sum(
        _iterations(op) * max(1, sum(map(_opened_size, op.regions))) if needs_opening(op) else 1
        for op in block.operations
    )


def _iterations(op: Op) -> int:
    return (op.attrs.trip_count or 1) if isinstance(op.attrs, WhileAttrs) else 1


def loop_name(op: Op) -> str:
    """Return the name of a loop: the compiler's, else its scope or its line."""
    return op.instruction or op.scope or op.location


def trip_count(op: Op) -> int:
    """Return the trip count of a loop; `ProgramError` if it is unknown."""
    count = op.attrs.trip_count if isinstance(op.attrs, WhileAttrs) else None
    if count is None:
        raise ProgramError(
            "the trip count of this loop is unknown",
            location=op.location,
            hint=f"give {option('trip_count')}",
        )
    return count


def started_block(op: Op, program: Program) -> Block:
    """Return the operations that an asynchronous operation starts."""
    if op.regions:
        return op.regions[0]
    if isinstance(op.attrs, CallAttrs):
        return program.function(op.attrs.callee, location=op.location).body
    raise ProgramError("it starts nothing", location=op.location)


@dataclass(slots=True, kw_only=True)
class _Flattener:
    program: Program
    operations: list[Op] = field(default_factory=list[Op])
    assumptions: list[str] = field(default_factory=list[str])
    rounds: list[LoopRound] = field(default_factory=list[LoopRound])
    started: dict[Value, tuple[Value, ...]] = field(default_factory=dict[Value, tuple[Value, ...]])

    def block(self, operations: tuple[Op, ...], renaming: Renaming) -> None:
        for op in operations:
            self._op(op, renaming)

    def _op(self, op: Op, renaming: Renaming) -> None:
        if op.kind in ASYNC:
            self._asynchronous(op, renaming)
        elif not needs_opening(op):
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
        condition, body = op.regions
        carried = [renaming.get(value, value) for value in op.operands]
        count = trip_count(op)
        for number in range(1, count + 1):
            first = len(self.operations)
            self._inline(condition, carried, renaming)
            carried = self._inline(body, carried, renaming)
            last = len(self.operations) - 1
            one = LoopRound(loop=loop_name(op), number=number, count=count, first=first, last=last)
            self.rounds.append(one)
        self._inline(condition, carried, renaming)
        renaming.update(zip(op.results, carried, strict=True))

    def _branch(self, op: Op, renaming: Renaming) -> None:
        taken, assumption = taken_branch(op)
        self.assumptions.append(assumption)
        results = self._inline(op.regions[taken], [], renaming)
        renaming.update(zip(op.results, results, strict=True))

    def _asynchronous(self, op: Op, renaming: Renaming) -> None:
        operands = [renaming.get(value, value) for value in op.operands]
        match op.kind:
            case "async_start":
                block = started_block(op, self.program)
                self.started[op.results[0]] = tuple(self._inline(block, operands, renaming))
            case "async_update":
                self.started[op.results[0]] = self._results_of(op)
            case _:
                renaming.update(zip(op.results, self._results_of(op), strict=True))

    def _results_of(self, op: Op) -> tuple[Value, ...]:
        """Return the results of what an asynchronous operation refers to."""
        results = self.started.get(op.operands[0])
        if results is None:
            raise ProgramError(
                "its operand does not come from an async_start", location=op.location
            )
        return results


def taken_branch(op: Op) -> tuple[int, str]:
    """Return the branch that represents all branches of an operation, and the assumption."""
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
