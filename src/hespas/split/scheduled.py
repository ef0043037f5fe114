"""The regions of a program that a compiler scheduled: its kernels and its collectives.

Kernels run one after another on the device's compute stream. A collective starts when what
stands before it in the schedule is done; if it is asynchronous, kernels go on, and those behind
its end wait for it. Operations that make no data are no kernels. What a region waits for is
therefore known from the schedule alone, which also keeps every operand in time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.attrs import CallAttrs, WhileAttrs
from hespas.program.program import (
    Block,
    Op,
    Program,
    Value,
    is_communication_op,
    nested_ops,
    values_read,
)
from hespas.program.rewrite import with_calls_opened
from hespas.split.flatten import MOST_OPERATIONS, taken_branch
from hespas.split.regions import Collective, Compute, Region, RegionGraph

FREE = frozenset(
    {
        "add_dependency",
        "after_all",
        "bitcast",
        "constant",
        "create_token",
        "get_tuple_element",
        "optimization_barrier",
        "parameter",
        "return",
        "tuple",
    }
)
"""Operations of a scheduled program that make no kernel."""

_ASYNC = frozenset({"async_start", "async_update", "async_done"})


def split_scheduled(program: Program) -> RegionGraph:
    """Make a region of each kernel and of each collective, in schedule order.

    Loops that communicate are opened round by round; all others are one region. Raises
    `ProgramError` where the trip count of a loop that communicates is unknown, and
    `UnsupportedError` where opening would give over `hespas.split.flatten.MOST_OPERATIONS`.
    """
    main = with_calls_opened(program)
    walk = _Walk(program=program)
    walk.block(main.body)
    return RegionGraph(
        program=program,
        regions=tuple(walk.regions),
        producers=tuple(walk.producers),
        arguments=main.body.arguments,
        results=main.results,
        assumptions=(*program.assumptions, *dict.fromkeys(walk.assumptions)),
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """A walk along the schedule.

    ``waits_for`` is what the next thing on the compute stream waits for; ``under_way`` the
    regions that each asynchronous operation started. ``communicating`` and ``named`` keep what was
    found out about operations that come by again, round after round.
    """

    program: Program
    regions: list[Region] = field(default_factory=list[Region])
    producers: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    assumptions: list[str] = field(default_factory=list[str])
    waits_for: tuple[int, ...] = ()
    under_way: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])
    communicating: dict[Op, bool] = field(default_factory=dict[Op, bool])
    named: dict[tuple[Op, Op], Op] = field(default_factory=dict[tuple[Op, Op], Op])

    def block(self, block: Block) -> None:
        for op in block.operations:
            if op.kind not in FREE:
                self._op(op)

    def _op(self, op: Op) -> None:
        if op.kind in _ASYNC:
            self._asynchronous(op)
        elif is_communication_op(op) or not self._communicates(op):
            self.waits_for = (self._add(op),)
        elif op.kind == "while":
            self._loop(op)
        elif op.kind in ("case", "if"):
            self._branch(op)
        else:
            raise UnsupportedError("a collective inside this operation", location=op.location)

    def _communicates(self, op: Op) -> bool:
        if not op.regions:
            return False
        known = self.communicating.get(op)
        if known is None:
            inside = (inner for region in op.regions for inner in nested_ops(region))
            known = any(each.kind in _ASYNC or is_communication_op(each) for each in inside)
            self.communicating[op] = known
        return known

    def _add(self, op: Op) -> int:
        """Add the region of an operation, which waits for what the compute stream waits for."""
        number = len(self.regions)
        if number >= MOST_OPERATIONS:
            raise UnsupportedError(
                f"opening the loops that communicate gives over {MOST_OPERATIONS:,} kernels",
                location=self.program.source,
                hint="give smaller counts with --trip-count",
            )
        self.regions.append(_region(number, op))
        self.producers.append(self.waits_for)
        return number

    def _loop(self, op: Op) -> None:
        count = op.attrs.trip_count if isinstance(op.attrs, WhileAttrs) else None
        if count is None:
            raise ProgramError(
                "how often this loop runs is not known",
                location=op.location,
                hint="give it with --trip-count",
            )
        # The condition of a loop whose count the compiler knows is never computed.
        for _ in range(count):
            self.block(op.regions[1])

    def _branch(self, op: Op) -> None:
        taken, told = taken_branch(op)
        self.assumptions.append(told)
        self.block(op.regions[taken])

    def _asynchronous(self, op: Op) -> None:
        match op.kind:
            case "async_start":
                self.under_way[op.results[0]] = self._start(op)
            case "async_update":
                self.under_way[op.results[0]] = self._started_by(op)
            case _:
                self.waits_for = tuple(sorted({*self.waits_for, *self._started_by(op)}))

    def _start(self, op: Op) -> tuple[int, ...]:
        """Start what stands in the operation; kernels are on the compute stream in any case."""
        started: list[int] = []
        for inner in self._block_of(op).operations:
            if inner.kind in FREE:
                continue
            if is_communication_op(inner):
                started.append(self._add(self._named(inner, op)))
            else:
                self.assumptions.append(
                    f"{inner.kind} runs on the compute stream, though the compiler started it "
                    "asynchronously"
                )
                self._op(inner)
        return tuple(started)

    def _block_of(self, op: Op) -> Block:
        if op.regions:
            return op.regions[0]
        if isinstance(op.attrs, CallAttrs):
            return self.program.function(op.attrs.callee, location=op.location).body
        raise ProgramError("it starts nothing", location=op.location)

    def _named(self, inner: Op, start: Op) -> Op:
        """Return the collective that an operation starts, under that operation's name."""
        if (start, inner) not in self.named:
            self.named[start, inner] = replace(
                inner,
                instruction=start.instruction or inner.instruction,
                source_location=inner.source_location or start.source_location,
            )
        return self.named[start, inner]

    def _started_by(self, op: Op) -> tuple[int, ...]:
        started = self.under_way.get(op.operands[0])
        if started is None:
            raise ProgramError(
                "its operand does not come from an async_start", location=op.location
            )
        return started


def _region(number: int, op: Op) -> Region:
    inputs = tuple(dict.fromkeys(values_read(op) if op.regions else op.operands))
    if is_communication_op(op):
        return Collective(id=number, operation=op, constants=(), inputs=inputs, outputs=op.results)
    return Compute(id=number, operations=(op,), constants=(), inputs=inputs, outputs=op.results)
