"""Move collectives of loops across their turns, as XLA's collective pipeliner does for GPUs.

A gather that needs nothing but the number of the turn and what no turn changes, as weights of a
layer, runs a turn ahead, beside the whole turn before it. A reduction whose result is only stored
as a part of an array, as gradients of a layer, runs a turn behind; one that is added to what other
turns made, as gradients of a micro-batch, stays in its turn. So the first gather stands before the
loop, the last reduction behind it, and the first turn, with nothing to reduce, and the last, with
nothing more to gather, are written out.

A gather that runs ahead in a loop around other loops starts behind those of them that communicate:
XLA's scheduler takes the resources of all that is in a loop, and lets no collective run beside one
of its kind.

A TPU's compiler moves what a turn reads from the host in the same way: the transfer for the next
turn starts with a turn, and ends with it. Source: the programs that libtpu 0.0.42 writes for
MaxText's steps with offloaded activations (docs/evidence/tpus.md, "Transfers to the host").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.build import Names
from hespas.program.attrs import CustomCallAttrs, WhileAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import (
    Block,
    Op,
    Value,
    is_communication_op,
    needed_for,
    nested_ops,
    values_read,
)
from hespas.program.rewrite import Renaming, copied_block, copied_op, fresh, renamed_op
from hespas.program.types import TensorType
from hespas.program.uses import Uses

_NUMBER = re.compile(r"\.\d+")
_STARTS = frozenset({"async_start", "async_done"})
_AHEAD = frozenset({"all_gather"})
_BEHIND = frozenset({"reduce_scatter", "all_reduce"})
_FROM_HOST = "MoveToDevice"


def with_pipelined(
    operations: Sequence[Op], names: Names, *, fetches_ahead: bool = False
) -> list[Op]:
    """Return a schedule with gathers a turn ahead and reductions a turn behind.

    ``fetches_ahead``: what a turn reads from the host is fetched during the turn before, too.
    """
    changed: list[Op] = []
    renaming: Renaming = {}
    for op in operations:
        current = renamed_op(op, renaming)
        found = _found(current, fetches_ahead=fetches_ahead) if current.kind == "while" else None
        if found is None:
            changed.append(current)
            continue
        made, results = _Writer(loop=current, found=found, names=names).written()
        changed.extend(made)
        renaming.update(zip(op.results, results, strict=True))
    return changed


def with_starts_at_ends(operations: Sequence[Op]) -> list[Op]:
    """Return a schedule whose collectives start when waited for, in loops too."""
    starts = {op.results[0]: op for op in operations if op.kind == "async_start"}
    ends = {op for op in operations if op.kind == "async_done" and op.operands[0] in starts}
    late = {starts[op.operands[0]] for op in ends}
    return [
        each
        for op in operations
        if op not in late
        for each in ((starts[op.operands[0]], op) if op in ends else (_loop_of_ends(op),))
    ]


def _loop_of_ends(op: Op) -> Op:
    if op.kind != "while":
        return op
    condition, body = op.regions
    inner = replace(body, operations=tuple(with_starts_at_ends(body.operations)))
    return replace(op, regions=(condition, inner))


@frozen
class _Found:
    """What of a loop's body moves; operations in the order of the body.

    ``counters`` are arguments by their place, with the operation that makes the next turn's.
    ``derived`` are operations of counters and of what no turn changes. ``ahead`` and ``behind`` are
    the starts that move, and transfers from the host, which have no end of their own; ``ends`` is
    what becomes of a start, ``stored`` what stores the results of those behind, and ``stores`` the
    places of the arguments that it changes.
    """

    counters: Mapping[int, Op]
    derived: tuple[Op, ...]
    ahead: tuple[Op, ...]
    behind: tuple[Op, ...]
    ends: Mapping[Op, Op]
    stored: tuple[Op, ...]
    stores: tuple[int, ...]


def _found(loop: Op, *, fetches_ahead: bool) -> _Found | None:
    attrs, body = loop.attrs, loop.regions[-1]
    if not isinstance(attrs, WhileAttrs) or attrs.trip_count is None:
        return None
    *operations, last = body.operations
    made_by = {result: op for op in operations for result in op.results}
    counters = dict(_counters(body, made_by))
    changing = {
        argument
        for at, argument in enumerate(body.arguments)
        if last.operands[at] is not argument and at not in counters
    }
    fetches = {op for op in operations if fetches_ahead and _is_fetch(op)}
    derived = _derived(operations, changing, {*counters.values(), *fetches})
    unknown = {value for op in operations if op not in derived for value in op.results} | changing
    bundles = {op.operands[0]: op for op in operations if op.kind == "async_done"}
    ends = {op: bundles[op.results[0]] for op in operations if op.kind == "async_start"}
    known = (op for op in operations if unknown.isdisjoint(values_read(op)))
    numbers = {body.arguments[at] for at in counters}
    in_order = [op for op in operations if op in derived]
    reckoned = _reckoned(in_order, numbers)
    ahead = tuple(
        op
        for op in known
        if op in fetches or (op in ends and _moves(op, _AHEAD))
        if reckoned.isdisjoint(_needed(in_order, [op]))
    )
    behind, stored, stores = _stored(body, ends, unknown)
    written_out = bool(ahead) + bool(behind)
    if not written_out or attrs.trip_count <= written_out:
        return None
    return _Found(
        counters=counters,
        derived=tuple(in_order),
        ahead=ahead,
        behind=behind,
        ends=ends,
        stored=stored,
        stores=stores,
    )


def _moves(op: Op, kinds: frozenset[str]) -> bool:
    return op.regions[0].operations[0].kind in kinds


def _is_fetch(op: Op) -> bool:
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == _FROM_HOST


def _counters(body: Block, made_by: Mapping[Value, Op]) -> Iterator[tuple[int, Op]]:
    """Yield the arguments that the next turn has from nothing but themselves."""
    for at, (argument, value) in enumerate(
        zip(body.arguments, body.operations[-1].operands, strict=True)
    ):
        op = made_by.get(value)
        if op is not None and set(values_read(op)) == {argument} and len(op.results) == 1:
            yield at, op


def _derived(operations: Sequence[Op], changing: set[Value], others: set[Op]) -> set[Op]:
    unknown = set(changing)
    derived: set[Op] = set()
    for op in operations:
        if op not in others and _is_plain(op) and unknown.isdisjoint(values_read(op)):
            derived.add(op)
        else:
            unknown.update(op.results)
    return derived


def _is_plain(op: Op) -> bool:
    """Return whether an operation is a kernel, not a loop or collective."""
    is_control = op.traits.category is Category.CONTROL
    return not (is_control or op.kind in _STARTS or is_communication_op(op))


def _reckoned(derived: Iterable[Op], numbers: set[Value]) -> set[Op]:
    """Return scalar operations that don't read the iteration number.

    XLA moves gathers of parts that such an index cuts in the loop that it belongs to, and in no
    loop around that one: found in llama3-70b and llama3-8b with micro-batches, compiled for H100,
    whose first gathers of the backward pass stay in their turn.
    """
    counted = set(numbers)
    found: set[Op] = set()
    for op in derived:
        if not counted.isdisjoint(values_read(op)):
            counted.update(op.results)
        elif op.kind != "constant" and all(_is_number(value) for value in op.results):
            found.add(op)
    return found


def _is_number(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.shape


def _stored(
    body: Block, ends: Mapping[Op, Op], unknown: set[Value]
) -> tuple[tuple[Op, ...], tuple[Op, ...], tuple[int, ...]]:
    """Return the reductions that are only stored, what stores them, and where: see `_Found`.

    What stores a result may need what one stores, arguments that nothing else reads, and what is
    known of every turn.
    """
    *operations, last = body.operations
    uses = Uses((*operations, last))
    behind: list[Op] = []
    stored: set[Op] = set()
    stores: set[int] = set()
    for start in (op for op in ends if _moves(op, _BEHIND)):
        following = _following(ends[start], uses)
        following.discard(last)
        made = {value for op in following for value in op.results} | set(ends[start].results)
        read = {value for op in following for value in values_read(op)} - made
        places = [at for at, value in enumerate(last.operands) if value in made]
        kept = {body.arguments[at] for at in places}
        is_plain = all(map(_is_plain, following))
        alone = all(set(uses.readers(argument)) <= following for argument in kept)
        parts = {value for op in following if _updates_a_part(op) for value in op.results}
        is_stored = all(last.operands[at] in parts for at in places)
        if following and is_plain and alone and is_stored and unknown.isdisjoint(read - kept):
            behind.append(start)
            stored |= following
            stores.update(places)
    ordered = tuple(op for op in operations if op in stored)
    return tuple(behind), ordered, tuple(sorted(stores))


def _behind_loops(operations: Sequence[Op]) -> int:
    """Return the first place behind all loops that communicate.

    No gather runs beside them.
    """
    ends = [
        at
        for at, op in enumerate(operations, start=1)
        if op.kind == "while" and any(map(is_communication_op, nested_ops(op.regions[-1])))
    ]
    return max(ends, default=0)


def _updates_a_part(op: Op) -> bool:
    if op.kind != "fusion":
        return op.kind == "dynamic_update_slice"
    body = op.regions[0].operations
    made_by = {value: each for each in body for value in each.results}
    ends = [made_by.get(value) for value in body[-1].operands]
    return all(end is not None and end.kind == "dynamic_update_slice" for end in ends)


def _following(op: Op, uses: Uses) -> set[Op]:
    """Return all that needs what an operation makes, and what needs that."""
    found: set[Op] = set()
    waiting = [op]
    while waiting:
        for value in waiting.pop().results:
            more = [user for user in uses.readers(value) if user not in found]
            found.update(more)
            waiting.extend(more)
    return found


@dataclass(slots=True, kw_only=True)
class _Carried:
    """What a turn hands to the next one, as values of the turn.

    ``own`` are those of the loop as it was, ``gathered`` results of what runs ahead, ``reduced``
    operands of reductions behind, ``before`` the counters of the turn that these belong to.
    """

    own: tuple[Value, ...]
    gathered: tuple[Value, ...] = ()
    reduced: tuple[Value, ...] = ()
    before: tuple[Value, ...] = ()

    @property
    def values(self) -> tuple[Value, ...]:
        return (*self.own, *self.gathered, *self.reduced, *self.before)


@frozen
class _Writer:
    loop: Op
    found: _Found
    names: Names
    made: list[Op] = field(default_factory=list[Op])

    def written(self) -> tuple[list[Op], tuple[Value, ...]]:
        """Return what stands in the loop's place, and the values of its results."""
        found, loop = self.found, self.loop
        made: list[Op] = []
        given = _Carried(own=loop.operands)
        if found.ahead:
            renaming = self._arguments(given)
            made += self._derived(renaming, found.ahead)
            starts, ends, given.gathered = self._gathers(renaming)
            made += [*starts, *ends]
        turns = self._turns
        if found.behind:
            first, given = self._turn(given, is_first=True)
            made += first
            turns -= 1
        if found.ahead:
            turns -= 1
        around, given = self._loop(given, turns)
        made.append(around)
        if found.ahead:
            last, given = self._turn(given, is_last=True)
            made += last
        if found.behind:
            stored, given = self._behind(given)
            made += stored
        return made, given.own

    @property
    def _turns(self) -> int:
        attrs = self.loop.attrs
        assert isinstance(attrs, WhileAttrs)  # noqa: S101 - `_found` has looked
        assert attrs.trip_count is not None  # noqa: S101 - as above
        return attrs.trip_count

    @property
    def _body(self) -> Block:
        return self.loop.regions[-1]

    def _loop(self, given: _Carried, turns: int) -> tuple[Op, _Carried]:
        arguments = _like(given, fresh(given.values, {}))
        operations, after = self._turn(arguments)
        *_, last = self._body.operations
        end = replace(last, operands=after.values)
        condition = copied_block(self.loop.regions[0], {})
        more = fresh(given.values[len(given.own) :], {})
        condition = replace(condition, arguments=(*condition.arguments, *more))
        body = Block(arguments=arguments.values, operations=(*operations, end))
        results = fresh(given.values, {})
        around = replace(
            self.loop,
            operands=given.values,
            results=results,
            regions=(condition, body),
            attrs=WhileAttrs(trip_count=turns),
        )
        return around, _like(given, results)

    def _turn(
        self, given: _Carried, *, is_first: bool = False, is_last: bool = False
    ) -> tuple[list[Op], _Carried]:
        """Return an iteration's operations, and its carried values."""
        found = self.found
        *operations, last = self._body.operations
        renaming = self._arguments(given)
        made: list[Op] = []
        counted: Renaming = dict(renaming)
        for at, op in found.counters.items():
            made.append(self._copied(op, renaming))
            counted[self._body.arguments[at]] = renaming[op.results[0]]
        reduces = bool(found.behind) and not is_first
        bundles: Renaming = dict(zip(self._reduced, given.reduced, strict=True)) if reduces else {}
        if reduces:
            made += [self._copied(start, bundles) for start in found.behind]
        starts: list[Op] = []
        gathers: list[Op] = []
        gathered: tuple[Value, ...] = ()
        if found.ahead and not is_last:
            starts = self._derived(counted, found.ahead)
            begun, gathers, gathered = self._gathers(counted)
            starts += begun
        renaming.update(zip(self._gathered, given.gathered, strict=True))
        middle = self._middle(operations, last)
        alone = _behind_loops(middle)
        made += [self._copied(op, renaming) for op in middle[:alone]]
        made += starts
        made += [self._copied(op, renaming) for op in middle[alone:]]
        own = [renaming.get(value, value) for value in last.operands]
        for at in found.stores:
            own[at] = given.own[at]
        if reduces:
            stored = self._stored(given, bundles)
            made += stored[0]
            for at, value in zip(found.stores, stored[1], strict=True):
                own[at] = value
        made += gathers
        behind = bool(found.behind)
        return made, _Carried(
            own=tuple(own),
            gathered=gathered,
            reduced=tuple([renaming.get(value, value) for value in self._reduced]),
            before=tuple([given.own[at] for at in found.counters]) if behind else (),
        )

    def _behind(self, given: _Carried) -> tuple[list[Op], _Carried]:
        """Return the last iteration's reductions, and the loop's results."""
        bundles: Renaming = dict(zip(self._reduced, given.reduced, strict=True))
        made = [self._copied(start, bundles) for start in self.found.behind]
        more, values = self._stored(given, bundles)
        own = list(given.own)
        for at, value in zip(self.found.stores, values, strict=True):
            own[at] = value
        return [*made, *more], _Carried(own=tuple(own))

    def _stored(self, given: _Carried, bundles: Renaming) -> tuple[list[Op], list[Value]]:
        """Return the ends and stores of reductions, with the stored values."""
        found, arguments = self.found, self._body.arguments
        renaming = {**self._arguments(given), **bundles}
        counters = [arguments[at] for at in found.counters]
        renaming.update(zip(counters, given.before, strict=True))
        made = [self._copied(found.ends[start], renaming) for start in found.behind]
        made += self._derived(renaming, found.stored)
        made += [self._copied(op, renaming) for op in found.stored]
        last = self._body.operations[-1]
        return made, [renaming[last.operands[at]] for at in found.stores]

    def _gathers(self, renaming: Renaming) -> tuple[list[Op], list[Op], tuple[Value, ...]]:
        starts = [self._copied(op, renaming) for op in self.found.ahead]
        ends = [self._copied(end, renaming) for end in self._ends(self.found.ahead)]
        return starts, ends, tuple([renaming[value] for value in self._gathered])

    def _ends(self, starts: Iterable[Op]) -> list[Op]:
        return [self.found.ends[op] for op in starts if op in self.found.ends]

    def _derived(self, renaming: Renaming, users: Iterable[Op]) -> list[Op]:
        """Return copies of what some operations need that is known of every turn."""
        chosen = _needed(self.found.derived, users)
        return [self._copied(op, renaming) for op in chosen]

    def _middle(self, operations: Sequence[Op], last: Op) -> list[Op]:
        """Return what stays, without what only moved operations needed."""
        found = self.found
        moved = {*found.ahead, *found.behind, *found.stored, *found.counters.values()}
        moved.update(self._ends((*found.ahead, *found.behind)))
        rest = [op for op in operations if op not in moved and op not in found.derived]
        users = [*rest, *found.behind, replace(last, operands=self._own_results(last))]
        kept = {*rest, *_needed(found.derived, users)}
        return [op for op in operations if op in kept]

    def _own_results(self, last: Op) -> tuple[Value, ...]:
        stores = self.found.stores
        return tuple([value for at, value in enumerate(last.operands) if at not in stores])

    @property
    def _gathered(self) -> tuple[Value, ...]:
        ends = self.found.ends
        return tuple([value for op in self.found.ahead for value in ends.get(op, op).results])

    @property
    def _reduced(self) -> tuple[Value, ...]:
        return tuple([value for op in self.found.behind for value in op.operands])

    def _arguments(self, given: _Carried) -> Renaming:
        return dict(zip(self._body.arguments, given.own, strict=True))

    def _copied(self, op: Op, renaming: Renaming) -> Op:
        copy = copied_op(op, renaming)
        if not op.instruction:
            return copy
        return replace(copy, instruction=self.names.next(_NUMBER.sub("", op.instruction)))


def _needed(derived: Sequence[Op], users: Iterable[Op]) -> list[Op]:
    """Return what of some operations others need, in order."""
    return needed_for(derived, [value for op in users for value in values_read(op)])


def _like(given: _Carried, values: Sequence[Value]) -> _Carried:
    """Return other values in the same places."""
    rest = list(values)

    def taken(some: tuple[Value, ...]) -> tuple[Value, ...]:
        head, rest[:] = rest[: len(some)], rest[len(some) :]
        return tuple(head)

    return _Carried(
        own=taken(given.own),
        gathered=taken(given.gathered),
        reduced=taken(given.reduced),
        before=taken(given.before),
    )
