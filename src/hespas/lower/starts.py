"""Place collectives in a schedule, so that other work runs beside them.

A collective starts as soon as its operands are there, and whatever stands between its start and
what first needs it runs beside it. A gathering one, whose result takes memory, starts when the one
before it is needed, and what makes its operands stands before it. A sum over devices ends before
the second one after it starts. XLA's latency-hiding scheduler does the same, with one collective of
a kind at a time: from the last operation to the first, it takes the start of a collective once
enough work stands between it and what needs it, and then what the start needs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.collectives import SUMMING
from hespas.lower.roles import bytes_of
from hespas.program.program import Op, Value, is_communication_op, returning, values_read
from hespas.program.rewrite import plain_op
from hespas.program.types import bundle_type, size_bytes
from hespas.program.uses import in_order

_SUMS_TOGETHER = 2
"""How many sums are under way at a time. XLA's scheduler has one, and moves products between them,
which stay where they are here."""
_UNPAIRED = frozenset({"send", "recv"})
_LESS = 64
"""How many times as much a part of a norm reads as it writes, at least."""
_CUTTING = frozenset({"convert", "copy", "reshape", "return", "slice"})
_MOVABLE = frozenset({"bitcast", "constant", "copy", "fusion"})
"""What moves before a gather that reads it: no products, loops or other collectives."""
_MOST_MOVED = 16


def with_norms_late(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Postpone kernels that read all-reduced values.

    So are those that cut it out of what several collectives were combined to. Nothing but the
    optimiser reads gradients, and first of all the norm by which they are clipped. Its parts stand
    beside what they read in a program; XLA's scheduler computes them when the norm is, and other
    products run beside the collectives meanwhile.
    """
    summed = {value for op in operations if op.kind in SUMMING for value in op.results}
    small = set[Value]()
    late = set[int]()
    for place, op in enumerate(operations):
        read = values_read(op)
        is_first = not summed.isdisjoint(read)
        if op.kind in SUMMING and small.issuperset(read):
            small.update(op.results)
            late.add(place)
        if op.kind != "fusion" or (not is_first and small.isdisjoint(read)):
            continue
        bytes_read, bytes_written = (
            sum([size_bytes(value.type) for value in values]) for values in (read, op.results)
        )
        if is_first and all(inner.kind in _CUTTING for inner in op.regions[0].operations):
            summed.update(op.results)
        elif bytes_written * (_LESS if is_first else 1) <= bytes_read:
            small.update(op.results)
        else:
            continue
        late.add(place)
    return _postponed(operations, results, late)


def _postponed(
    operations: Sequence[Op], results: Sequence[Value], late: AbstractSet[int]
) -> list[Op]:
    """Return the schedule with late operations where first needed."""
    if not late:
        return [*operations]
    count = float(len(operations))
    used_at: dict[Value, float] = dict.fromkeys(results, count)
    ranks = [float(place) for place in range(len(operations))]
    for place in reversed(range(len(operations))):
        op = operations[place]
        if place in late:
            first = min([used_at.get(value, count) for value in op.results])
            ranks[place] = max(ranks[place], first - 0.5)
        for value in values_read(op):
            used_at[value] = min(used_at.get(value, ranks[place]), ranks[place])
    return in_order(operations, ranks)


@frozen
class _Flight:
    """A collective's start and first need, as places in a schedule."""

    op: Op
    start: int
    end: int


def with_gathered_late(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Postpone kernels that read only gathered values.

    So is the concatenation of weights for one product. What makes less of them, as rounding to 8
    bits, stays: it frees memory.
    """
    gathered = {value for op in operations if op.kind == "all_gather" for value in op.results}
    late = set[int]()
    for place, op in enumerate(operations):
        if op.kind not in _MOVABLE or not op.operands or not gathered.issuperset(values_read(op)):
            continue
        if sum(map(bytes_of, op.results)) >= sum(map(bytes_of, values_read(op))):
            gathered.update(op.results)
            late.add(place)
    return _postponed(operations, results, late)


def with_operands_early(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Move gathers, with their operands, to where they may start.

    Gathers are in the order in which they are needed. A conversion of a weight stands before its
    gather, beside other work, and not before the product that reads what was gathered.
    """
    places = {op: place for place, op in enumerate(operations)}
    made_by = {value: op for op in operations for value in op.results}
    used_at = _first_reads(operations, results)
    ranks = [float(place) for place in range(len(operations))]
    gathers = [
        (min([used_at.get(value, len(operations)) for value in op.results]), places[op], op)
        for op in operations
        if op.kind == "all_gather"
    ]
    needs = [0]
    for number, (end, _, op) in enumerate(sorted(gathers, key=lambda it: it[:2]), start=1):
        place = _last_before(needs, end)
        insort(needs, end)
        rank = place - 1 + number / (len(gathers) + 1)
        moved = _made_behind(op, place, made_by, places)
        if moved is not None:
            ranks[places[op]] = rank
            for producer in moved:
                ranks[places[producer]] = min(ranks[places[producer]], rank)
    return in_order(operations, ranks)


def _made_behind(
    gather: Op, place: int, made_by: Mapping[Value, Op], places: Mapping[Op, int]
) -> set[Op] | None:
    """Return a gather's later producers; None if it must wait."""
    producers: set[Op] = set()
    waiting = [*values_read(gather)]
    while waiting:
        maker = made_by.get(waiting.pop())
        if maker is None or maker in producers or places[maker] < place:
            continue
        if maker.kind not in _MOVABLE or len(producers) > _MOST_MOVED:
            return None
        producers.add(maker)
        waiting.extend(values_read(maker))
    return producers


def _last_before(needs: Sequence[int], end: int) -> int:
    """Return the last place before another, or that one."""
    count = bisect_left(needs, end)
    return needs[count - 1] if count else end


def _first_reads(operations: Sequence[Op], results: Iterable[Value]) -> dict[Value, int]:
    """Return the place of the first reader of each value."""
    used_at = dict.fromkeys(results, len(operations))
    for place in reversed(range(len(operations))):
        used_at.update(dict.fromkeys(values_read(operations[place]), place))
    return used_at


def with_starts(operations: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Start collectives early, and end them where needed."""
    kernels = [op for op in operations if not _is_started(op)]
    made_at = {result: place for place, op in enumerate(kernels) for result in op.results}
    used_at: dict[Value, int] = dict.fromkeys(results, len(kernels))
    place = len(kernels)
    for op in reversed(operations):
        place -= not _is_started(op)
        used_at.update(dict.fromkeys(values_read(op), place))
    flights: list[_Flight] = []
    needs = [0]
    for op in filter(_is_started, operations):
        start = max([made_at.get(value, -1) + 1 for value in op.operands], default=0)
        end = min([used_at.get(value, len(kernels)) for value in op.results], default=len(kernels))
        if op.kind == "all_gather":
            start = max(start, _last_before(needs, end))
            insort(needs, end)
        made_at.update(dict.fromkeys(op.results, end - 1))
        flights.append(_Flight(op=op, start=start, end=end))
    before: list[list[Op]] = [[] for _ in range(len(kernels) + 1)]
    for flight, end in zip(flights, _ends(flights), strict=True):
        start, done = started(flight.op)
        before[flight.start].append(start)
        before[max(flight.start, end)].append(done)
    placed = [step for place, op in enumerate(kernels) for step in (*before[place], op)]
    return [*placed, *before[-1]]


def _ends(flights: Sequence[_Flight]) -> list[int]:
    """Return where collectives end; a sum holds what it reads until then."""
    sums = sorted([it for it in flights if it.op.kind in SUMMING], key=lambda it: it.start)
    ends = {
        flight.op: max(flight.start, min(flight.end, later.start))
        for flight, later in zip(sums, sums[_SUMS_TOGETHER:], strict=False)
    }
    return [ends.get(flight.op, flight.end) for flight in flights]


def with_starts_open(operations: Sequence[Op]) -> list[Op]:
    """Return a schedule with whole collectives where they end, but not in loops."""
    start_of = starts_by_end(operations)
    gone = set(start_of.values())
    return [
        _opened(start_of[op], op) if op in start_of else op for op in operations if op not in gone
    ]


def starts_by_end(operations: Sequence[Op]) -> dict[Op, Op]:
    """Return the start of each asynchronous operation, by its end, if both are there."""
    starts = {op.results[0]: op for op in operations if op.kind == "async_start"}
    return {
        op: starts[op.operands[0]]
        for op in operations
        if op.kind == "async_done" and op.operands[0] in starts
    }


def _opened(start: Op, end: Op) -> Op:
    return replace(
        start.regions[0].operations[0],
        operands=start.operands,
        results=end.results,
        instruction=start.instruction,
    )


def one_by_one(operations: Iterable[Op]) -> list[Op]:
    """Return a schedule in which nothing runs beside a collective."""
    return [part for op in operations for part in (started(op) if _is_started(op) else (op,))]


def _is_started(op: Op) -> bool:
    return is_communication_op(op) and op.kind not in _UNPAIRED


def started(op: Op) -> tuple[Op, Op]:
    """Return the start and the end of a collective."""
    arguments = tuple([Value(type=value.type) for value in op.operands])
    results = tuple([Value(type=value.type) for value in op.results])
    inner = replace(op, operands=arguments, results=results)
    bundle = Value(type=bundle_type(tuple([value.type for value in results])))
    start = replace(
        plain_op(op, "async_start", op.operands, bundle),
        dialect="mhlo",
        regions=(returning(arguments, [inner], results, "stablehlo"),),
        instruction=op.instruction,
    )
    done = replace(
        start,
        kind="async_done",
        operands=(bundle,),
        results=op.results,
        regions=(),
        instruction=f"{op.instruction}-done" if op.instruction else "",
    )
    return start, done
