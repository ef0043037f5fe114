"""Run shared experts beside the all-to-alls of routed ones, as Megatron-Core can.

Source: NVIDIA, Megatron-Core, ``--moe-shared-expert-overlap``: what a shared expert computes first
runs on a stream of its own while tokens travel to the routed experts, its last product while they
travel back. Backward passes do the same in the opposite order. Here kernels of shared experts move
behind the start of such an all-to-all, with whatever they need, where neither waits for the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.starts import started
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Program, Value, is_communication_op, values_read
from hespas.program.rewrite import each_block
from hespas.program.scopes import Phase, read_scope
from hespas.program.uses import in_order
from hespas.work.gemm import gemms

SHARED = re.compile(r"shared(_experts?)?([_.]\d+)?")
"""The module of shared experts, as the zoo, MaxText and Megatron-Core call it."""
ASSUMPTION = (
    "overlap: shared experts run beside the all-to-alls of routed ones, as Megatron-Core has them "
    "with --moe-shared-expert-overlap, and neither slows the other"
)
STAYING = (
    "overlap: shared experts stay where the schedule has them: they wait for the all-to-alls of "
    "routed ones, or run beside a collective already"
)
_EXCHANGES = frozenset({"all_to_all", "ragged_all_to_all"})

Layer = tuple[str, ...]


def with_experts_beside(program: Program) -> Program:
    """Return a schedule with shared experts beside routed ones' all-to-alls.

    A layer's kernels before whose inputs no product of its shared experts stands go beside the
    first all-to-all of the same phase, those behind one product beside the second. What already
    runs beside another collective stays. A program without shared experts, or without all-to-alls
    in the same blocks, is returned as it is.
    """
    moves: list[bool] = []

    def change(block: Block) -> Block:
        schedule = _Schedule.of(block)
        ranks = schedule.ranks()
        if schedule.exchanges:
            moves.append(bool(ranks))
        return schedule.block(ranks) if ranks else block

    functions = {
        name: replace(function, body=each_block(function.body, change))
        for name, function in program.functions.items()
    }
    if not moves:
        return program
    assumption = ASSUMPTION if any(moves) else STAYING
    return replace(program, functions=functions, assumptions=(*program.assumptions, assumption))


@frozen
class _Exchange:
    """An all-to-all: its start and end in a schedule, and its module."""

    start: int
    end: int
    path: Layer
    phase: Phase | None


@dataclass(slots=True, kw_only=True)
class _Schedule:
    """A block's operations; all-to-alls have a start and an end.

    ``needs`` are the operations that each needs, by their places. ``flights`` are the starts and
    ends of all that runs beside others, ``exchanges`` the all-to-alls among them. ``shared`` are
    the kernels of shared experts by layer, in the order of the schedule.
    """

    arguments: tuple[Value, ...]
    operations: Sequence[Op]
    needs: Sequence[Sequence[int]] = ()
    flights: Sequence[tuple[int, int]] = ()
    exchanges: Sequence[_Exchange] = ()
    shared: Mapping[Layer, Sequence[int]] = field(default_factory=dict[Layer, Sequence[int]])

    @classmethod
    def of(cls, block: Block) -> _Schedule:
        operations = [part for op in block.operations[:-1] for part in _with_start(op)]
        shared: dict[Layer, list[int]] = {}
        for place, op in enumerate(operations):
            layer = _layer_of(op) if _is_kernel(op) else None
            if layer is not None:
                shared.setdefault(layer, []).append(place)
        schedule = cls(arguments=block.arguments, operations=[*operations, block.operations[-1]])
        if not shared:
            return schedule
        made_by = {value: place for place, op in enumerate(operations) for value in op.results}
        schedule.shared = shared
        schedule.flights = tuple(_flights(operations))
        schedule.exchanges = tuple(_exchanges(operations, schedule.flights))
        schedule.needs = [
            [made_by[value] for value in values_read(op) if value in made_by] for op in operations
        ]
        return schedule

    def block(self, ranks: Mapping[int, float]) -> Block:
        """Return the block in the order of ranks."""
        *operations, last = self.operations
        ordered = in_order(
            operations, [ranks.get(place, place) for place in range(len(operations))]
        )
        return Block(arguments=self.arguments, operations=(*ordered, last))

    def ranks(self) -> dict[int, float]:
        """Return new ranks of moved kernels and of their operands."""
        ranks: dict[int, float] = {}
        for layer, places in self.shared.items():
            inside = [it for it in self.exchanges if it.path[: len(layer)] == layer]
            for place, exchange in self._beside(places, inside).items():
                moved = self._with_needs(place, exchange)
                if not any(self._uncovers(kernel, exchange) for kernel in moved):
                    # What two kernels need goes before the first of them.
                    for kernel in moved:
                        rank = exchange.start + (kernel + 1) / (len(self.operations) + 1)
                        ranks[kernel] = min(ranks.get(kernel, len(self.operations)), rank)
        return ranks

    def _beside(
        self, places: Sequence[int], exchanges: Sequence[_Exchange]
    ) -> dict[int, _Exchange]:
        """Return the exchange that each shared experts' kernel runs beside.

        A loop's body may have several turns, whose kernels wait for the exchanges of other turns:
        kernels that are free to run beside the same exchanges are those of one.
        """
        products = self._products_before(places)
        tied = [self._tied(exchange, places) for exchange in exchanges]
        turns: dict[tuple[_Exchange, ...], list[int]] = {}
        for kernel in products:
            phase = read_scope(self.operations[kernel].scope).phase
            free = [
                exchange
                for exchange, dependents in zip(exchanges, tied, strict=True)
                if exchange.phase is phase and kernel not in dependents
            ]
            if free:
                turns.setdefault(tuple(free), []).append(kernel)
        exchange_of: dict[int, _Exchange] = {}
        for free, chosen in turns.items():
            first = min(products[kernel] for kernel in chosen)
            for kernel in chosen:
                exchange_of[kernel] = free[min(products[kernel] - first, len(free) - 1)]
        return exchange_of

    def _uncovers(self, place: int, exchange: _Exchange) -> bool:
        """Return whether a kernel would leave another collective uncovered."""
        return _is_kernel(self.operations[place]) and any(
            start < place < end and not start <= exchange.start < end for start, end in self.flights
        )

    def _products_before(self, places: Sequence[int]) -> dict[int, int]:
        """Return how many products precede each product and its followers.

        What follows a product stays with it. What is before all of them has no number.
        """
        preceding: dict[int, int] = {}
        depth: dict[int, int] = {}
        inside = frozenset(places)
        for place in range(min(places), max(places) + 1):
            before = max((depth.get(need, 0) for need in self.needs[place]), default=0)
            is_product = place in inside and bool(gemms(self.operations[place]))
            depth[place] = before + is_product
            if place in inside and (is_product or before):
                preceding[place] = before if is_product else before - 1
        return preceding

    def _tied(self, exchange: _Exchange, places: Sequence[int]) -> set[int]:
        """Return operations that an exchange needs, or that need it."""
        behind = {exchange.end}
        for place in range(exchange.end + 1, max(places) + 1):
            if not behind.isdisjoint(self.needs[place]):
                behind.add(place)
        before = {exchange.start}
        for place in range(exchange.start, min(places) - 1, -1):
            if place in before:
                before.update(self.needs[place])
        return behind | before

    def _with_needs(self, place: int, exchange: _Exchange) -> set[int]:
        """Return a kernel and its producers behind the start of an exchange."""
        members, waiting = {place}, [place]
        while waiting:
            more = {need for need in self.needs[waiting.pop()] if need > exchange.start} - members
            members |= more
            waiting.extend(more)
        return members


def _is_kernel(op: Op) -> bool:
    return not is_communication_op(op) and not (
        op.traits.runs_nothing or op.traits.category is Category.ASYNCHRONOUS
    )


def _with_start(op: Op) -> tuple[Op, ...]:
    return started(op) if op.kind in _EXCHANGES else (op,)


def _flights(operations: Sequence[Op]) -> Iterator[tuple[int, int]]:
    ends = {op.operands[0]: place for place, op in enumerate(operations) if op.kind == "async_done"}
    for place, op in enumerate(operations):
        if op.kind == "async_start" and op.results[0] in ends:
            yield place, ends[op.results[0]]


def _exchanges(operations: Sequence[Op], flights: Sequence[tuple[int, int]]) -> Iterator[_Exchange]:
    for start, end in flights:
        op = operations[start]
        if any(inner.kind in _EXCHANGES for block in op.regions for inner in block.operations):
            scope = read_scope(op.scope)
            yield _Exchange(start=start, end=end, path=scope.path, phase=scope.phase)


def _layer_of(op: Op) -> Layer | None:
    """Return the module with the shared experts of an operation, if any."""
    path = read_scope(op.scope).path
    depth = next((depth for depth, name in enumerate(path) if SHARED.fullmatch(name)), None)
    return None if depth is None else path[:depth]
