"""Move collectives across a loop's turns, as XLA's pipeliner does.

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
from dataclasses import dataclass

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.build import Names
from hespas.lower.starts import starts_by_end
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
    """Move gathers a turn ahead, and reductions a turn behind.

    ``fetches_ahead``: what a turn reads from the host is fetched during the turn before, too.
    """
    changed: list[Op] = []
    renaming: Renaming = {}
    for op in operations:
        current = renamed_op(op, renaming)
        moves = _moves_of(current, fetches_ahead=fetches_ahead) if current.kind == "while" else None
        if moves is None:
            changed.append(current)
            continue
        pipelined, results = _Writer(loop=current, moves=moves, names=names).written()
        changed.extend(pipelined)
        renaming.update(zip(op.results, results, strict=True))
    return changed


def with_starts_at_ends(operations: Sequence[Op]) -> list[Op]:
    """Return a schedule whose collectives start when waited for, in loops too."""
    start_of = starts_by_end(operations)
    late = set(start_of.values())
    return [
        placed
        for op in operations
        if op not in late
        for placed in ((start_of[op], op) if op in start_of else (_loop_of_ends(op),))
    ]


def _loop_of_ends(op: Op) -> Op:
    if op.kind != "while":
        return op
    condition, body = op.regions
    inner = replace(body, operations=tuple(with_starts_at_ends(body.operations)))
    return replace(op, regions=(condition, inner))


@frozen
class _Moves:
    """The operations of the body of a loop of ``turns`` that move.

    ``counters`` are arguments by their place, with the operation that makes the next turn's.
    ``derived`` are operations of counters and of what no turn changes. ``ahead`` and ``behind`` are
    the starts that move, and transfers from the host, which have no end of their own; ``ends`` is
    what becomes of a start, ``stored`` what stores the results of those behind, and ``stores`` the
    places of the arguments that it changes.
    """

    turns: int
    counters: Mapping[int, Op]
    derived: tuple[Op, ...]
    ahead: tuple[Op, ...]
    behind: tuple[Op, ...]
    ends: Mapping[Op, Op]
    stored: tuple[Op, ...]
    stores: tuple[int, ...]


def _moves_of(loop: Op, *, fetches_ahead: bool) -> _Moves | None:
    attrs, body = loop.attrs, loop.regions[-1]
    if not isinstance(attrs, WhileAttrs) or attrs.trip_count is None:
        return None
    *operations, last = body.operations
    made_by = {result: op for op in operations for result in op.results}
    counters = dict(_counters(body, made_by))
    changing = {
        argument
        for place, argument in enumerate(body.arguments)
        if last.operands[place] is not argument and place not in counters
    }
    fetches = {op for op in operations if fetches_ahead and _is_fetch(op)}
    derived = _derived(operations, changing, {*counters.values(), *fetches})
    unknown = {value for op in operations if op not in derived for value in op.results} | changing
    bundles = {op.operands[0]: op for op in operations if op.kind == "async_done"}
    ends = {op: bundles[op.results[0]] for op in operations if op.kind == "async_start"}
    invariant = (op for op in operations if unknown.isdisjoint(values_read(op)))
    numbers = {body.arguments[place] for place in counters}
    in_order = [op for op in operations if op in derived]
    reckoned = _reckoned(in_order, numbers)
    ahead = tuple(
        op
        for op in invariant
        if op in fetches or (op in ends and _starts_one_of(op, _AHEAD))
        if reckoned.isdisjoint(_needed(in_order, [op]))
    )
    behind, stored, stores = _stored(body, ends, unknown)
    written_out = bool(ahead) + bool(behind)
    if not written_out or attrs.trip_count <= written_out:
        return None
    return _Moves(
        turns=attrs.trip_count,
        counters=counters,
        derived=tuple(in_order),
        ahead=ahead,
        behind=behind,
        ends=ends,
        stored=stored,
        stores=stores,
    )


def _starts_one_of(op: Op, kinds: frozenset[str]) -> bool:
    return op.regions[0].operations[0].kind in kinds


def _is_fetch(op: Op) -> bool:
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == _FROM_HOST


def _counters(body: Block, made_by: Mapping[Value, Op]) -> Iterator[tuple[int, Op]]:
    """Yield the arguments that the next turn has from nothing but themselves."""
    for place, (argument, value) in enumerate(
        zip(body.arguments, body.operations[-1].operands, strict=True)
    ):
        op = made_by.get(value)
        if op is not None and set(values_read(op)) == {argument} and len(op.results) == 1:
            yield place, op


def _derived(operations: Sequence[Op], changing: set[Value], excluded: set[Op]) -> set[Op]:
    unknown = set(changing)
    derived: set[Op] = set()
    for op in operations:
        if op not in excluded and _is_plain(op) and unknown.isdisjoint(values_read(op)):
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
    scalars: set[Op] = set()
    for op in derived:
        if not counted.isdisjoint(values_read(op)):
            counted.update(op.results)
        elif op.kind != "constant" and all(_is_number(value) for value in op.results):
            scalars.add(op)
    return scalars


def _is_number(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.shape


def _stored(
    body: Block, ends: Mapping[Op, Op], unknown: set[Value]
) -> tuple[tuple[Op, ...], tuple[Op, ...], tuple[int, ...]]:
    """Return reductions that are only stored, their stores and places.

    What stores a result may need what one stores, arguments that nothing else reads, and what is
    known of every turn.
    """
    *operations, last = body.operations
    uses = Uses((*operations, last))
    behind: list[Op] = []
    stored: set[Op] = set()
    stores: set[int] = set()
    for start in (op for op in ends if _starts_one_of(op, _BEHIND)):
        following = _following(ends[start], uses)
        following.discard(last)
        results = {value for op in following for value in op.results} | set(ends[start].results)
        read = {value for op in following for value in values_read(op)} - results
        places = [place for place, value in enumerate(last.operands) if value in results]
        own = {body.arguments[place] for place in places}
        is_plain = all(map(_is_plain, following))
        alone = all(set(uses.readers(argument)) <= following for argument in own)
        parts = {value for op in following if _updates_a_part(op) for value in op.results}
        is_stored = all(last.operands[place] in parts for place in places)
        if following and is_plain and alone and is_stored and unknown.isdisjoint(read - own):
            behind.append(start)
            stored |= following
            stores.update(places)
    ordered = tuple(op for op in operations if op in stored)
    return tuple(behind), ordered, tuple(sorted(stores))


def _behind_loops(operations: Sequence[Op]) -> int:
    """Return the first place behind all loops that communicate, where gathers run."""
    ends = [
        place
        for place, op in enumerate(operations, start=1)
        if op.kind == "while" and any(map(is_communication_op, nested_ops(op.regions[-1])))
    ]
    return max(ends, default=0)


def _updates_a_part(op: Op) -> bool:
    if op.kind != "fusion":
        return op.kind == "dynamic_update_slice"
    body = op.regions[0].operations
    made_by = {value: op_inside for op_inside in body for value in op_inside.results}
    ends = [made_by.get(value) for value in body[-1].operands]
    return all(end is not None and end.kind == "dynamic_update_slice" for end in ends)


def _following(op: Op, uses: Uses) -> set[Op]:
    """Return all that needs what an operation makes, and what needs that."""
    users: set[Op] = set()
    waiting = [op]
    while waiting:
        for value in waiting.pop().results:
            more = [user for user in uses.readers(value) if user not in users]
            users.update(more)
            waiting.extend(more)
    return users


@dataclass(slots=True, kw_only=True)
class _Carried:
    """Values that one turn of a loop hands to the next.

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
    moves: _Moves
    names: Names

    def written(self) -> tuple[list[Op], tuple[Value, ...]]:
        """Return the loop's replacement, and its results."""
        moves, loop = self.moves, self.loop
        operations: list[Op] = []
        carried = _Carried(own=loop.operands)
        if moves.ahead:
            renaming = self._arguments(carried)
            operations += self._derived(renaming, moves.ahead)
            starts, ends, carried.gathered = self._gathers(renaming)
            operations += [*starts, *ends]
        turns = moves.turns
        if moves.behind:
            first, carried = self._turn(carried, is_first=True)
            operations += first
            turns -= 1
        if moves.ahead:
            turns -= 1
        around, carried = self._loop(carried, turns)
        operations.append(around)
        if moves.ahead:
            last, carried = self._turn(carried, is_last=True)
            operations += last
        if moves.behind:
            stored, carried = self._behind(carried)
            operations += stored
        return operations, carried.own

    @property
    def _body(self) -> Block:
        return self.loop.regions[-1]

    def _loop(self, carried: _Carried, turns: int) -> tuple[Op, _Carried]:
        arguments = _like(carried, fresh(carried.values, {}))
        operations, after = self._turn(arguments)
        *_, last = self._body.operations
        end = replace(last, operands=after.values)
        condition = copied_block(self.loop.regions[0], {})
        more = fresh(carried.values[len(carried.own) :], {})
        condition = replace(condition, arguments=(*condition.arguments, *more))
        body = Block(arguments=arguments.values, operations=(*operations, end))
        results = fresh(carried.values, {})
        around = replace(
            self.loop,
            operands=carried.values,
            results=results,
            regions=(condition, body),
            attrs=WhileAttrs(trip_count=turns),
        )
        return around, _like(carried, results)

    def _turn(
        self, carried: _Carried, *, is_first: bool = False, is_last: bool = False
    ) -> tuple[list[Op], _Carried]:
        """Return an iteration's operations, and its carried values."""
        moves = self.moves
        *operations, last = self._body.operations
        renaming = self._arguments(carried)
        turn: list[Op] = []
        counted: Renaming = dict(renaming)
        for place, op in moves.counters.items():
            turn.append(self._copied(op, renaming))
            counted[self._body.arguments[place]] = renaming[op.results[0]]
        reduces = bool(moves.behind) and not is_first
        bundles: Renaming = {}
        if reduces:
            bundles = dict(zip(self._reduced, carried.reduced, strict=True))
            turn += [self._copied(start, bundles) for start in moves.behind]
        starts: list[Op] = []
        gathers: list[Op] = []
        gathered: tuple[Value, ...] = ()
        if moves.ahead and not is_last:
            starts = self._derived(counted, moves.ahead)
            begun, gathers, gathered = self._gathers(counted)
            starts += begun
        renaming.update(zip(self._gathered, carried.gathered, strict=True))
        middle = self._middle(operations, last)
        alone = _behind_loops(middle)
        turn += [self._copied(op, renaming) for op in middle[:alone]]
        turn += starts
        turn += [self._copied(op, renaming) for op in middle[alone:]]
        own = [renaming.get(value, value) for value in last.operands]
        for place in moves.stores:
            own[place] = carried.own[place]
        if reduces:
            stored = self._stored(carried, bundles)
            turn += stored[0]
            for place, value in zip(moves.stores, stored[1], strict=True):
                own[place] = value
        turn += gathers
        behind = bool(moves.behind)
        return turn, _Carried(
            own=tuple(own),
            gathered=gathered,
            reduced=tuple([renaming.get(value, value) for value in self._reduced]),
            before=tuple([carried.own[place] for place in moves.counters]) if behind else (),
        )

    def _behind(self, carried: _Carried) -> tuple[list[Op], _Carried]:
        """Return the last iteration's reductions, and the loop's results."""
        bundles: Renaming = dict(zip(self._reduced, carried.reduced, strict=True))
        reductions = [self._copied(start, bundles) for start in self.moves.behind]
        more, values = self._stored(carried, bundles)
        own = list(carried.own)
        for place, value in zip(self.moves.stores, values, strict=True):
            own[place] = value
        return [*reductions, *more], _Carried(own=tuple(own))

    def _stored(self, carried: _Carried, bundles: Renaming) -> tuple[list[Op], list[Value]]:
        """Return the ends and stores of reductions, with the stored values."""
        moves, arguments = self.moves, self._body.arguments
        renaming = {**self._arguments(carried), **bundles}
        counters = [arguments[place] for place in moves.counters]
        renaming.update(zip(counters, carried.before, strict=True))
        results = [self._copied(moves.ends[start], renaming) for start in moves.behind]
        results += self._derived(renaming, moves.stored)
        results += [self._copied(op, renaming) for op in moves.stored]
        last = self._body.operations[-1]
        return results, [renaming[last.operands[place]] for place in moves.stores]

    def _gathers(self, renaming: Renaming) -> tuple[list[Op], list[Op], tuple[Value, ...]]:
        starts = [self._copied(op, renaming) for op in self.moves.ahead]
        ends = [self._copied(end, renaming) for end in self._ends(self.moves.ahead)]
        return starts, ends, tuple([renaming[value] for value in self._gathered])

    def _ends(self, starts: Iterable[Op]) -> list[Op]:
        return [self.moves.ends[op] for op in starts if op in self.moves.ends]

    def _derived(self, renaming: Renaming, users: Iterable[Op]) -> list[Op]:
        """Return copies of the derived operations that users need."""
        chosen = _needed(self.moves.derived, users)
        return [self._copied(op, renaming) for op in chosen]

    def _middle(self, operations: Sequence[Op], last: Op) -> list[Op]:
        """Return operations that stay in their turn."""
        moves = self.moves
        moved = {*moves.ahead, *moves.behind, *moves.stored, *moves.counters.values()}
        moved.update(self._ends((*moves.ahead, *moves.behind)))
        unmoved = [op for op in operations if op not in moved and op not in moves.derived]
        users = [*unmoved, *moves.behind, replace(last, operands=self._own_results(last))]
        staying = {*unmoved, *_needed(moves.derived, users)}
        return [op for op in operations if op in staying]

    def _own_results(self, last: Op) -> tuple[Value, ...]:
        stores = self.moves.stores
        return tuple([value for place, value in enumerate(last.operands) if place not in stores])

    @property
    def _gathered(self) -> tuple[Value, ...]:
        ends = self.moves.ends
        return tuple([value for op in self.moves.ahead for value in ends.get(op, op).results])

    @property
    def _reduced(self) -> tuple[Value, ...]:
        return tuple([value for op in self.moves.behind for value in op.operands])

    def _arguments(self, carried: _Carried) -> Renaming:
        return dict(zip(self._body.arguments, carried.own, strict=True))

    def _copied(self, op: Op, renaming: Renaming) -> Op:
        copy = copied_op(op, renaming)
        if not op.instruction:
            return copy
        return replace(copy, instruction=self.names.next(_NUMBER.sub("", op.instruction)))


def _needed(derived: Sequence[Op], users: Iterable[Op]) -> list[Op]:
    """Return what of some operations others need, in order."""
    return needed_for(derived, [value for op in users for value in values_read(op)])


def _like(carried: _Carried, values: Sequence[Value]) -> _Carried:
    """Return other values in the same places."""
    remaining = list(values)

    def taken(some: tuple[Value, ...]) -> tuple[Value, ...]:
        head, remaining[:] = remaining[: len(some)], remaining[len(some) :]
        return tuple(head)

    return _Carried(
        own=taken(carried.own),
        gathered=taken(carried.gathered),
        reduced=taken(carried.reduced),
        before=taken(carried.before),
    )
