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
    """Return a scheduled program whose shared experts run beside the all-to-alls of routed ones.

    A layer's kernels before whose inputs no product of its shared experts stands go beside the
    first all-to-all of the same phase, those behind one product beside the second. What already
    runs beside another collective stays. A program without shared experts, or without all-to-alls
    in the same blocks, is returned as it is.
    """
    moves: list[bool] = []

    def change(block: Block) -> Block:
        found = _Schedule.of(block)
        ranks = found.ranks()
        if found.exchanges:
            moves.append(bool(ranks))
        return found.block(ranks) if ranks else block

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
    """The operations of a block, all all-to-alls with a start and an end.

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
        operations = [each for op in block.operations[:-1] for each in _with_start(op)]
        shared: dict[Layer, list[int]] = {}
        for at, op in enumerate(operations):
            layer = _layer_of(op) if _is_kernel(op) else None
            if layer is not None:
                shared.setdefault(layer, []).append(at)
        found = cls(arguments=block.arguments, operations=[*operations, block.operations[-1]])
        if not shared:
            return found
        made_by = {value: at for at, op in enumerate(operations) for value in op.results}
        found.shared = shared
        found.flights = tuple(_flights(operations))
        found.exchanges = tuple(_exchanges(operations, found.flights))
        found.needs = [
            [made_by[value] for value in values_read(op) if value in made_by] for op in operations
        ]
        return found

    def block(self, ranks: Mapping[int, float]) -> Block:
        """Return the block in the order of ranks, by place; others keep theirs."""
        *operations, last = self.operations
        ordered = in_order(operations, [ranks.get(at, at) for at in range(len(operations))])
        return Block(arguments=self.arguments, operations=(*ordered, last))

    def ranks(self) -> dict[int, float]:
        """Return new ranks of moved kernels and of their operands."""
        ranks: dict[int, float] = {}
        for layer, places in self.shared.items():
            inside = [each for each in self.exchanges if each.path[: len(layer)] == layer]
            for at, exchange in self._beside(places, inside).items():
                moved = self._with_needs(at, exchange)
                if not any(self._uncovers(each, exchange) for each in moved):
                    # What two kernels need goes before the first of them.
                    ranks |= {
                        each: min(ranks.get(each, len(self.operations)), self._rank(exchange, each))
                        for each in moved
                    }
        return ranks

    def _rank(self, exchange: _Exchange, at: int) -> float:
        """Return a rank right after an exchange's start."""
        return exchange.start + (at + 1) / (len(self.operations) + 1)

    def _beside(
        self, places: Sequence[int], exchanges: Sequence[_Exchange]
    ) -> dict[int, _Exchange]:
        """Return which exchange each kernel of a layer's shared experts runs beside.

        A loop's body may have several turns, whose kernels wait for the exchanges of other turns:
        kernels that are free to run beside the same exchanges are those of one.
        """
        products = self._products_before(places)
        tied = [self._tied(exchange, places) for exchange in exchanges]
        turns: dict[tuple[_Exchange, ...], list[int]] = {}
        for at in products:
            phase = read_scope(self.operations[at].scope).phase
            free = [
                exchange
                for exchange, those in zip(exchanges, tied, strict=True)
                if exchange.phase is phase and at not in those
            ]
            if free:
                turns.setdefault(tuple(free), []).append(at)
        found: dict[int, _Exchange] = {}
        for free, chosen in turns.items():
            first = min(products[at] for at in chosen)
            for at in chosen:
                found[at] = free[min(products[at] - first, len(free) - 1)]
        return found

    def _uncovers(self, at: int, exchange: _Exchange) -> bool:
        """Return whether a kernel already runs beside another collective than it would then."""
        return _is_kernel(self.operations[at]) and any(
            start < at < end and not start <= exchange.start < end for start, end in self.flights
        )

    def _products_before(self, places: Sequence[int]) -> dict[int, int]:
        """Return for products and their followers how many other places precede them.

        What follows a product stays with it. What is before all of them has no number.
        """
        found: dict[int, int] = {}
        depth: dict[int, int] = {}
        inside = frozenset(places)
        for at in range(min(places), max(places) + 1):
            before = max((depth.get(need, 0) for need in self.needs[at]), default=0)
            is_product = at in inside and bool(gemms(self.operations[at]))
            depth[at] = before + is_product
            if at in inside and (is_product or before):
                found[at] = before if is_product else before - 1
        return found

    def _tied(self, exchange: _Exchange, places: Sequence[int]) -> set[int]:
        """Return the operations around the places that depend on an exchange, both ways."""
        behind = {exchange.end}
        for at in range(exchange.end + 1, max(places) + 1):
            if not behind.isdisjoint(self.needs[at]):
                behind.add(at)
        before = {exchange.start}
        for at in range(exchange.start, min(places) - 1, -1):
            if at in before:
                before.update(self.needs[at])
        return behind | before

    def _with_needs(self, at: int, exchange: _Exchange) -> set[int]:
        """Return a kernel and its producers behind the start of an exchange."""
        found, waiting = {at}, [at]
        while waiting:
            more = {each for each in self.needs[waiting.pop()] if each > exchange.start} - found
            found |= more
            waiting.extend(more)
        return found


def _is_kernel(op: Op) -> bool:
    return not is_communication_op(op) and not (
        op.traits.runs_nothing or op.traits.category is Category.ASYNCHRONOUS
    )


def _with_start(op: Op) -> tuple[Op, ...]:
    return started(op) if op.kind in _EXCHANGES else (op,)


def _flights(operations: Sequence[Op]) -> Iterator[tuple[int, int]]:
    ends = {op.operands[0]: at for at, op in enumerate(operations) if op.kind == "async_done"}
    for at, op in enumerate(operations):
        if op.kind == "async_start" and op.results[0] in ends:
            yield at, ends[op.results[0]]


def _exchanges(operations: Sequence[Op], flights: Sequence[tuple[int, int]]) -> Iterator[_Exchange]:
    for start, end in flights:
        op = operations[start]
        if any(each.kind in _EXCHANGES for block in op.regions for each in block.operations):
            named = read_scope(op.scope)
            yield _Exchange(start=start, end=end, path=named.path, phase=named.phase)


def _layer_of(op: Op) -> Layer | None:
    """Return the module with the shared experts of an operation, if any."""
    path = read_scope(op.scope).path
    at = next((at for at, name in enumerate(path) if SHARED.fullmatch(name)), None)
    return None if at is None else path[:at]
