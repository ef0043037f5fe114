"""Split a program that a compiler scheduled into its kernels and its collectives.

Kernels run one after another on the device's compute stream. A collective starts when everything
before it in the schedule is done; if it is asynchronous, kernels continue, and those after its end
wait for it. Operations that make no data are not kernels. The schedule alone therefore determines
what a region waits for, and it has every operand ready in time.

A model of a compiler leaves transfers to and from the host where they stand in the program. As
compilers make them asynchronous, only what reads the result of one waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.errors import ProgramError, UnsupportedError, option
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Block, Op, Program, Value
from hespas.program.rewrite import with_calls_opened
from hespas.split.flatten import (
    ASYNC,
    MOST_OPERATIONS,
    loop_name,
    needs_opening,
    stands_alone,
    started_block,
    taken_branch,
    too_large,
    trip_count,
)
from hespas.split.regions import Compute, Region, RegionGraph, region_alone, values_read_by
from hespas.split.rounds import LoopRound, runs_of_round
from hespas.work.fusion import host_traffic, is_on_host

_FEW_ROUNDS = (
    f"drop {option('timeline')} and {option('output')}, without which hespas run simulates a few "
    "rounds of each"
)


def split_scheduled(program: Program, *, most_rounds: int | None = None) -> RegionGraph:
    """Make a region of each kernel and of each collective, in schedule order.

    Loops that communicate are unrolled, into at most ``most_rounds`` of their rounds where that is
    given: the regions of the last but one then say how often they run. Every other loop is one
    region. Raises `ProgramError` if the trip count of a loop that communicates is unknown, and
    `UnsupportedError` if there would be more than `hespas.split.flatten.MOST_OPERATIONS` regions.
    """
    main = with_calls_opened(program)
    walk = _Walk(program=program, most_rounds=most_rounds)
    walk.block(main.body)
    return RegionGraph(
        program=program,
        regions=tuple(walk.regions),
        producers=tuple(walk.producers),
        arguments=main.body.arguments,
        results=main.results,
        assumptions=(*program.assumptions, *dict.fromkeys(walk.assumptions)),
        rounds=tuple(walk.rounds),
        counts=tuple(walk.counts),
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """A walk along the schedule.

    ``moved`` gives the transfers that make a value, in a program of a model of a compiler.
    ``waits_for`` are the regions that the next operation on the compute stream waits for;
    ``in_flight`` those that each asynchronous operation started. ``communicating`` and ``named``
    cache results for operations that recur in every iteration of a loop. Where loops have at most
    ``most_rounds``, ``counts`` says how often each region runs, and ``count`` how often the next.
    """

    program: Program
    most_rounds: int | None = None
    counts: list[int] = field(default_factory=list[int])
    count: int = 1
    regions: list[Region] = field(default_factory=list[Region])
    producers: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    assumptions: list[str] = field(default_factory=list[str])
    rounds: list[LoopRound] = field(default_factory=list[LoopRound])
    waits_for: tuple[int, ...] = ()
    in_flight: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])
    communicating: dict[Op, bool] = field(default_factory=dict[Op, bool])
    named: dict[tuple[Op, Op], Op] = field(default_factory=dict[tuple[Op, Op], Op])
    moved: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])

    def block(self, block: Block) -> None:
        for op in block.operations:
            if op.traits.runs_nothing:
                self._pass_on(op)
            elif not _only_allocates(op) and not (self.program.is_modelled and self._moves(op)):
                self._op(op)

    def _pass_on(self, op: Op) -> None:
        """Note that results stand for operands that may still be moved."""
        if self.moved:
            self.moved.update(dict.fromkeys(op.results, self._moving(op.operands)))

    def _moving(self, values: Iterable[Value]) -> tuple[int, ...]:
        found = {number for value in values for number in self.moved.get(value, ())}
        return tuple(sorted(found))

    def _moves(self, op: Op) -> bool:
        """Start a transfer beside the compute stream, or have that wait for what ``op`` reads.

        Returns whether the operation is done with: it moves data, or lies on the host.
        """
        moving = self._moving(values_read_by(op)) if self.moved else ()
        if host_traffic(op):
            before, self.waits_for = self.waits_for, tuple(sorted({*self.waits_for, *moving}))
            self.moved.update(dict.fromkeys(op.results, (self._add(op),)))
            self.waits_for = before
            return True
        if is_on_host(op):
            self.moved.update(dict.fromkeys(op.results, moving))
            return True
        if moving and op.kind not in ("case", "if", "while"):
            self.waits_for = tuple(sorted({*self.waits_for, *moving}))
        return False

    def _op(self, op: Op) -> None:
        if op.kind in ASYNC:
            self._asynchronous(op)
        elif stands_alone(op) or not self._communicates(op):
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
        communicates = self.communicating.get(op)
        if communicates is None:
            communicates = self.communicating[op] = needs_opening(op)
        return communicates

    def _add(self, op: Op) -> int:
        """Add the region of an operation, which waits for what the compute stream waits for."""
        number = len(self.regions)
        if number >= MOST_OPERATIONS:
            instead = f"{_FEW_ROUNDS}, or " if self.most_rounds is None else ""
            raise too_large(self.program.source, what="kernels", instead=instead)
        self.regions.append(_region(number, op))
        self.producers.append(self.waits_for)
        if self.most_rounds is not None:
            self.counts.append(self.count)
        return number

    def _loop(self, op: Op) -> None:
        # Compilers do not compute the condition of a loop whose trip count they know.
        count = trip_count(op)
        walked = count if self.most_rounds is None else min(count, self.most_rounds)
        outside = self.count
        for number in range(1, walked + 1):
            self.count = outside * runs_of_round(number, count, walked=walked)
            first = len(self.regions)
            self.block(op.regions[1])
            last = len(self.regions) - 1
            if last >= first:
                name = loop_name(op)
                one = LoopRound(loop=name, number=number, count=count, first=first, last=last)
                self.rounds.append(one)
        self.count = outside

    def _branch(self, op: Op) -> None:
        taken, assumption = taken_branch(op)
        self.assumptions.append(assumption)
        self.block(op.regions[taken])

    def _asynchronous(self, op: Op) -> None:
        match op.kind:
            case "async_start":
                self.in_flight[op.results[0]] = self._start(op)
            case "async_update":
                self.in_flight[op.results[0]] = self._started_by(op)
            case _:
                self.waits_for = tuple(sorted({*self.waits_for, *self._started_by(op)}))

    def _start(self, op: Op) -> tuple[int, ...]:
        """Start the operations inside; kernels among them go on the compute stream."""
        started: list[int] = []
        for inner in started_block(op, self.program).operations:
            if inner.traits.runs_nothing:
                continue
            if stands_alone(inner):
                started.append(self._add(self._named(inner, op)))
            else:
                self.assumptions.append(
                    f"{inner.kind} runs on the compute stream, though the compiler started it "
                    "asynchronously"
                )
                self._op(self._named(inner, op))
        return tuple(started)

    def _named(self, inner: Op, start: Op) -> Op:
        """Return what an operation starts, with that operation's name."""
        if (start, inner) not in self.named:
            self.named[start, inner] = replace(
                inner,
                instruction=start.instruction or inner.instruction,
                source_location=inner.source_location or start.source_location,
                scope=inner.scope or start.scope,
            )
        return self.named[start, inner]

    def _started_by(self, op: Op) -> tuple[int, ...]:
        started = self.in_flight.get(op.operands[0])
        if started is None:
            raise ProgramError(
                "its operand does not come from an async_start", location=op.location
            )
        return started


def _only_allocates(op: Op) -> bool:
    """Return whether an operation is the buffer that later ones write, and nothing that runs."""
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == "AllocateBuffer"


def _region(number: int, op: Op) -> Region:
    inputs = tuple(dict.fromkeys(values_read_by(op)))
    alone = region_alone(number, op, (), inputs, op.results)
    return alone or Compute(
        id=number, operations=(op,), constants=(), inputs=inputs, outputs=op.results
    )
