"""Flatten control flow so that no collective is nested.

Calls are inlined. Loops are unrolled and branches inlined only if they hold a collective; otherwise
one region can hold them whole.

* `flatten` makes one list of operations of a program that no compiler scheduled. The body of an
  asynchronous start replaces it; the edges of the region graph say what may overlap.
* `split_scheduled` makes a region of each kernel and each collective of a compiled program. Kernels
  run one after another on the device's compute stream. A collective starts when all earlier regions
  of the schedule are done; if it is asynchronous, kernels continue, and those after its end wait
  for it. Operations that produce no data are not kernels. The schedule alone therefore determines
  what a region waits for, and every operand is ready in time. hespas' model of a compiler leaves
  transfers to and from the host at their place in the program. Compilers make them asynchronous, so
  only the readers of a transfer's result wait for it.

  Operations of a recorded program name their streams: each waits for the one before it on its own
  stream, and a stream waits for the recorded events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from hespas.errors import ProgramError, UnsupportedError, option
from hespas.program.attrs import (
    CallAttrs,
    CaseAttrs,
    CustomCallAttrs,
    EventAttrs,
    HostWaitAttrs,
    WhileAttrs,
)
from hespas.program.operations.table import kinds_where
from hespas.program.operations.traits import Category
from hespas.program.program import (
    MOST_REMEMBERED,
    Block,
    Op,
    Program,
    Value,
    is_communication_op,
    nested_ops,
    values_read,
)
from hespas.program.rewrite import Renaming, copied_op, with_calls_opened
from hespas.program.types import size_bytes
from hespas.split.regions import (
    FlatProgram,
    LoopRound,
    Region,
    RegionGraph,
    region_of,
)
from hespas.work.fusion import host_traffic, is_on_host

MOST_OPERATIONS = 5_000_000
ASYNC = frozenset({"async_start", "async_update", "async_done"})
_FEW_ROUNDS = (
    f"drop {option('timeline')} and {option('output')}, without which hespas run simulates a few "
    "rounds of each"
)
T = TypeVar("T")


def flatten(program: Program) -> FlatProgram:
    """Return a program's operations with calls and communicating control flow inlined.

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
        raise _too_large_error(program.source, subject="operations")
    flat = _Flattening(program=program)
    results = flat.inline(body, body.arguments)
    return FlatProgram(
        arguments=body.arguments,
        operations=tuple(flat.operations),
        results=results,
        assumptions=tuple(flat.assumptions),
        rounds=tuple(flat.rounds),
    )


def unrolled_size(program: Program) -> int:
    """Return the number of operations after unrolling communicating loops.

    All branches that communicate count.
    """
    return _opened_size(with_calls_opened(program).body)


def stands_alone(op: Op) -> bool:
    """Return whether an operation is its own region."""
    return is_communication_op(op) or bool(host_traffic(op))


@lru_cache(maxsize=MOST_REMEMBERED)
def needs_opening(op: Op) -> bool:
    """Return whether an operation is asynchronous or contains its own regions."""
    if op.kind in ASYNC:
        return True
    if not op.regions or stands_alone(op):
        return False
    inner_ops = (inner for region in op.regions for inner in nested_ops(region))
    return any(inner.kind in _OPENED or host_traffic(inner) for inner in inner_ops)


_OPENED = ASYNC | kinds_where(lambda traits: traits.category is Category.COLLECTIVE)


def _too_large_error(source: str, *, subject: str, instead: str = "") -> UnsupportedError:
    """Return the error for more than `MOST_OPERATIONS` unrolled operations.

    ``instead`` is an alternative for the hint, if any.
    """
    return UnsupportedError(
        f"unrolling the loops that communicate gives over {MOST_OPERATIONS:,} {subject}",
        location=source,
        hint=f"{instead}give smaller counts with {option('trip_count')}",
    )


def _opened_size(block: Block) -> int:
    size = 0
    for op in block.operations:
        rounds = (op.attrs.trip_count or 1) if isinstance(op.attrs, WhileAttrs) else 1
        size += rounds * max(1, sum(map(_opened_size, op.regions))) if needs_opening(op) else 1
    return size


def _trip_count(op: Op) -> int:
    count = op.attrs.trip_count if isinstance(op.attrs, WhileAttrs) else None
    if count is None:
        raise ProgramError(
            "the trip count of this loop is unknown",
            location=op.location,
            hint=f"give {option('trip_count')}",
        )
    return count


def _round(op: Op, number: int, count: int, first: int, last: int) -> LoopRound:
    name = op.instruction or op.scope or op.location
    return LoopRound(loop=name, number=number, count=count, first=first, last=last)


def _started_block(op: Op, program: Program) -> Block:
    if op.regions:
        return op.regions[0]
    if isinstance(op.attrs, CallAttrs):
        return program.function(op.attrs.callee, location=op.location).body
    raise ProgramError("it starts nothing", location=op.location)


def _started_by(op: Op, started: dict[Value, T]) -> T:
    if op.operands[0] not in started:
        raise ProgramError("its operand does not come from an async_start", location=op.location)
    return started[op.operands[0]]


def _heaviest_branch(op: Op) -> tuple[int, str]:
    if op.traits.category is not Category.CONTROL:
        raise UnsupportedError("a collective inside this operation", location=op.location)
    weights = op.attrs.weights if isinstance(op.attrs, CaseAttrs) else None
    ranks = weights or [_communicated_bytes(region) for region in op.regions]
    heaviest = max(range(len(op.regions)), key=ranks.__getitem__)
    why = "the heaviest" if weights else "the one that communicates most"
    return heaviest, f"{op.location}: branch {heaviest} is taken, {why}"


def _communicated_bytes(block: Block) -> int:
    return sum(
        size_bytes(value.type)
        for op in nested_ops(block)
        if is_communication_op(op)
        for value in op.operands
    )


@dataclass(slots=True, kw_only=True)
class _Flattening:
    """The flat operations so far; ``renaming`` maps values to their latest copies."""

    program: Program
    operations: list[Op] = field(default_factory=list[Op])
    assumptions: list[str] = field(default_factory=list[str])
    rounds: list[LoopRound] = field(default_factory=list[LoopRound])
    started: dict[Value, tuple[Value, ...]] = field(default_factory=dict[Value, tuple[Value, ...]])
    renaming: Renaming = field(default_factory=Renaming)

    def inline(self, block: Block, operands: Iterable[Value]) -> tuple[Value, ...]:
        self.renaming.update(zip(block.arguments, operands, strict=True))
        for op in block.operations[:-1]:
            if op.kind in ASYNC:
                self._asynchronous(op)
            elif not needs_opening(op):
                self.operations.append(copied_op(op, self.renaming))
            elif isinstance(op.attrs, WhileAttrs):
                self._bind(op, self._loop(op))
            else:
                branch, assumption = _heaviest_branch(op)
                self.assumptions.append(assumption)
                self._bind(op, self.inline(op.regions[branch], ()))
        return self._renamed(block.operations[-1])

    def _renamed(self, op: Op) -> tuple[Value, ...]:
        return tuple([self.renaming.get(value, value) for value in op.operands])

    def _bind(self, op: Op, results: tuple[Value, ...]) -> None:
        self.renaming.update(zip(op.results, results, strict=True))

    def _loop(self, op: Op) -> tuple[Value, ...]:
        condition, body = op.regions
        carried, count = self._renamed(op), _trip_count(op)
        for number in range(1, count + 1):
            first = len(self.operations)
            self.inline(condition, carried)
            carried = self.inline(body, carried)
            self.rounds.append(_round(op, number, count, first, len(self.operations) - 1))
        self.inline(condition, carried)
        return carried

    def _asynchronous(self, op: Op) -> None:
        match op.kind:
            case "async_start":
                block = _started_block(op, self.program)
                self.started[op.results[0]] = self.inline(block, self._renamed(op))
            case "async_update":
                self.started[op.results[0]] = _started_by(op, self.started)
            case _:
                self._bind(op, _started_by(op, self.started))


def split_scheduled(program: Program, *, most_rounds: int | None = None) -> RegionGraph:
    """Make a region of each kernel and collective, in schedule order.

    Loops that communicate are unrolled, into at most ``most_rounds`` iterations if set: the regions
    of the second to last then count all iterations left out. Every other loop is one region. Raises
    `ProgramError` if the trip count of a loop that communicates is unknown, and `UnsupportedError`
    if there would be more than `MOST_OPERATIONS` regions.
    """
    main = with_calls_opened(program)
    schedule = _Schedule(program=program, most_rounds=most_rounds)
    schedule.block(main.body)
    return RegionGraph(
        program=program,
        regions=tuple(schedule.regions),
        producers=tuple(schedule.producers),
        arguments=main.body.arguments,
        results=main.results,
        assumptions=(*program.assumptions, *dict.fromkeys(schedule.assumptions)),
        rounds=tuple(schedule.rounds),
        counts=tuple(schedule.counts),
        host_waits=schedule.host_waits,
    )


class _Role(Enum):
    """The role of an operation in the walk along a schedule."""

    ALLOCATES = auto()
    RENAMES = auto()
    MOVES = auto()
    ON_HOST = auto()
    ASYNCHRONOUS = auto()
    REGION = auto()
    OPENED = auto()


def _role_of(op: Op, *, is_modelled: bool) -> _Role:
    if op.traits.runs_nothing:
        return _Role.RENAMES
    if _only_allocates(op):
        return _Role.ALLOCATES
    # A compiler's own schedule already starts and awaits its transfers.
    if is_modelled and host_traffic(op):
        return _Role.MOVES
    if is_modelled and is_on_host(op):
        return _Role.ON_HOST
    if op.kind in ASYNC:
        return _Role.ASYNCHRONOUS
    return _Role.OPENED if op.regions and needs_opening(op) else _Role.REGION


@dataclass(slots=True, kw_only=True)
class _Schedule:
    """A walk along the schedule.

    ``moved`` gives the transfers that produce a value, in programs of hespas' model of a compiler.
    ``waits_for`` are the regions that the next operation on the present ``stream`` waits for,
    ``waits_of`` those of all other streams, ``events`` those of each event, and ``in_flight`` those
    that each asynchronous operation started. ``roles``, ``region_of`` and ``started`` cache values
    of a loop's iterations. With ``most_rounds``, ``counts`` says how often each region
    runs, and ``count`` how often the next one does.
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
    stream: int = 0
    waits_of: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    events: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    host_waits: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    in_flight: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])
    roles: dict[Op, _Role] = field(default_factory=dict[Op, "_Role"])
    region_of: dict[Op, Region] = field(default_factory=dict[Op, Region])
    started: dict[tuple[Op, Op], Op] = field(default_factory=dict[tuple[Op, Op], Op])
    moved: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, tuple[int, ...]])

    def block(self, block: Block) -> None:
        for op in block.operations:
            if op.stream != self.stream:
                self.waits_of[self.stream] = self.waits_for
                self.stream, self.waits_for = op.stream, self.waits_of.get(op.stream, ())
            if isinstance(op.attrs, HostWaitAttrs):
                self._host_waits(op.attrs)
            elif isinstance(op.attrs, EventAttrs):
                self._event(op.kind, op.attrs.event)
            else:
                self._op(op, self._role(op))

    def _role(self, op: Op) -> _Role:
        if op not in self.roles:
            self.roles[op] = _role_of(op, is_modelled=self.program.is_modelled)
        return self.roles[op]

    def _event(self, kind: str, event: int) -> None:
        if kind == "record_event":
            self.events[event] = self.waits_for
        else:
            self._wait_for(self.events.get(event, ()))

    def _host_waits(self, wait: HostWaitAttrs) -> None:
        awaited = set(self._awaited(wait))
        next_region = len(self.regions)
        self.host_waits[next_region] = tuple(
            sorted(awaited.union(self.host_waits.get(next_region, ())))
        )

    def _awaited(self, wait: HostWaitAttrs) -> Iterable[int]:
        if wait.event is not None:
            return self.events.get(wait.event, ())
        waits = {**self.waits_of, self.stream: self.waits_for}
        if wait.stream is not None:
            return waits.get(wait.stream, ())
        return chain.from_iterable(waits.values())

    def _transfers_of(self, values: Iterable[Value]) -> tuple[int, ...]:
        numbers = {number for value in values for number in self.moved.get(value, ())}
        return tuple(sorted(numbers))

    def _wait_for(self, regions: Iterable[int]) -> None:
        self.waits_for = tuple(sorted({*self.waits_for, *regions}))

    def _op(self, op: Op, role: _Role) -> None:
        # The readers of a transfer beside the compute stream wait for it.
        moving = self._transfers_of(values_read(op)) if self.moved else ()
        match role:
            case _Role.ALLOCATES:
                return
            case _Role.RENAMES | _Role.ON_HOST:
                # Its results are operands whose transfer may still run.
                if self.moved:
                    self.moved.update(dict.fromkeys(op.results, moving))
                return
            case _Role.MOVES:
                waits_before = self.waits_for
                self._wait_for(moving)
                self.moved.update(dict.fromkeys(op.results, (self._add(op),)))
                self.waits_for = waits_before
                return
            case _ if moving and op.traits.category is not Category.CONTROL:
                self._wait_for(moving)
            case _:
                pass
        self._run(op, role)

    def _run(self, op: Op, role: _Role) -> None:
        if role is _Role.ASYNCHRONOUS:
            self._asynchronous(op)
        elif role is _Role.REGION:
            self.waits_for = (self._add(op),)
        elif isinstance(op.attrs, WhileAttrs):
            self._loop(op)
        else:
            branch, assumption = _heaviest_branch(op)
            self.assumptions.append(assumption)
            self.block(op.regions[branch])

    def _add(self, op: Op) -> int:
        number = len(self.regions)
        if number >= MOST_OPERATIONS:
            instead = f"{_FEW_ROUNDS}, or " if self.most_rounds is None else ""
            raise _too_large_error(self.program.source, subject="kernels", instead=instead)
        if op not in self.region_of:
            inputs = tuple(dict.fromkeys(values_read(op)))
            self.region_of[op] = region_of(number, (op,), (), inputs, op.results)
        self.regions.append(dataclasses.replace(self.region_of[op], id=number))
        self.producers.append(self.waits_for)
        if self.most_rounds is not None:
            self.counts.append(self.count)
        return number

    def _loop(self, op: Op) -> None:
        # Compilers skip the condition of a loop of known trip count.
        count = _trip_count(op)
        walked = count if self.most_rounds is None else min(count, self.most_rounds)
        outer_count = self.count
        for number in range(1, walked + 1):
            self.count = outer_count * runs_of_round(number, count, walked=walked)
            first = len(self.regions)
            self.block(op.regions[1])
            if len(self.regions) > first:
                self.rounds.append(_round(op, number, count, first, len(self.regions) - 1))
        self.count = outer_count

    def _asynchronous(self, op: Op) -> None:
        match op.kind:
            case "async_start":
                self.in_flight[op.results[0]] = tuple(self._started(op))
            case "async_update":
                self.in_flight[op.results[0]] = _started_by(op, self.in_flight)
            case _:
                self._wait_for(_started_by(op, self.in_flight))

    def _started(self, op: Op) -> Iterator[int]:
        """Start the operations inside; their kernels go on the compute stream."""
        for inner in _started_block(op, self.program).operations:
            if inner.traits.runs_nothing:
                continue
            if stands_alone(inner):
                yield self._add(self._named(inner, op))
            else:
                self.assumptions.append(
                    f"{inner.kind} runs on the compute stream, though the compiler started it "
                    "asynchronously"
                )
                named_op = self._named(inner, op)
                self._op(named_op, self._role(named_op))

    def _named(self, inner: Op, start: Op) -> Op:
        if (start, inner) not in self.started:
            self.started[start, inner] = replace(
                inner,
                instruction=start.instruction or inner.instruction,
                source_location=inner.source_location or start.source_location,
                scope=inner.scope or start.scope,
            )
        return self.started[start, inner]


def runs_of_round(number: int, count: int, *, walked: int) -> int:
    """Return how many of ``count`` rounds a walked round represents.

    Only ``walked`` rounds are walked. The second to last one represents all rounds left out,
    because another round follows it as well.

    >>> [runs_of_round(number, 10, walked=4) for number in (1, 2, 3, 4)]
    [1, 1, 7, 1]
    """
    return count - walked + 1 if number == max(1, walked - 1) else 1


def _only_allocates(op: Op) -> bool:
    """Return whether an operation only allocates a buffer."""
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == "AllocateBuffer"
