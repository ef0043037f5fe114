"""Choose values that kernels write rather than compute again.

Where every operation of a chain reads the one before it at two places, as the even and the odd
elements in a tree of sums, kernels would read their array at 4, 8, 16 places. XLA writes what is in
between, but what is small: found in what jaxlib 0.10.2 compiles for H100 of six programs of
`jax.lax.associative_scan`, whose kernels' bytes this meets within 16 % where the arrays are larger
than caches.

A block of threads sums all rows of the columns that it has. Where blocks are few and rows many,
multiplying there would take longer than to write the products first, by XLA's cost model. Found in
what jaxlib 0.10.2 compiles for H100 of 23 products with a vector (`hespas.lower.dots`): f32 of
1024 x 1024 is written, of 2048 x 2048 and 512 x 1024 not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import ceil

from hespas.lower.roles import Role, bytes_of, is_row, role_of
from hespas.program.operations.traits import Category
from hespas.program.program import Op, Value, columns_together, size_of
from hespas.program.uses import Uses

MOST_PLACES, FEWEST_BYTES = 16, 1 << 16
_COUNTED_PLACES = 4 * MOST_PLACES
"""The most places of a value that are kept apart."""

_FEWEST_COLUMNS, _MANY_BLOCKS = 32, 32
_ROWS_OF_BLOCK = 64
_BYTES_OF_WARP = 32 * 8

_HERE = frozenset({0})
_CUTS = frozenset({"bitcast", "pad", "reshape", "slice", "transpose"})

Places = Mapping[Value, AbstractSet[int]]
"""The places of arrays in memory, as numbers that tell one from another."""


def read_often(
    operations: Sequence[Op], *, loops: AbstractSet[int], free: AbstractSet[int]
) -> set[int]:
    """Return operations written because kernels read too many places.

    ``loops`` are those that may be a part of any kernel, ``free`` those that read nothing, by
    their numbers; results of all others are in memory.
    """
    walk = _Walk(operations=operations, loops=loops, free=free)
    for place, op in enumerate(operations):
        walk.op(place, op)
    return walk.written


@dataclass(slots=True, kw_only=True)
class _Walk:
    operations: Sequence[Op]
    loops: AbstractSet[int]
    free: AbstractSet[int]
    written: set[int] = field(default_factory=set[int])
    producer: dict[Value, int] = field(default_factory=dict[Value, int])
    places: list[Places] = field(default_factory=list[Places])
    numbers: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def op(self, place: int, op: Op) -> None:
        """Find the places that an operation reads; those before it are known."""
        places = self._read_by(place)
        if any(len(numbers) > MOST_PLACES for numbers in places.values()):
            most = max(map(self._most, op.operands))
            for value in op.operands:
                if self._most(value) * 2 > most:
                    self._write(value)
            places = self._read_by(place)
        self.places.append(places)
        self.producer.update(dict.fromkeys(op.results, place))

    def _most(self, value: Value) -> int:
        """Return at how many places of one array a value reads."""
        producer = self.producer.get(value)
        return 0 if producer is None else max(map(len, self.places[producer].values()), default=0)

    def _read_by(self, place: int) -> Places:
        op = self.operations[place]
        if place in self.free:
            return {}
        if place not in self.loops or place in self.written:
            return dict.fromkeys(op.results, _HERE)
        read = _together([self._places_of(value) for value in dict.fromkeys(op.operands)])
        if op.traits.is_elementwise:
            return read
        return {value: {self._number(place, it) for it in read[value]} for value in read}

    def _places_of(self, value: Value) -> Places:
        """Return the places at which a value reads what is in memory."""
        before = self.producer.get(value)
        return {value: _HERE} if before is None else self.places[before]

    def _number(self, reader: int, place: int) -> int:
        """Return the number of what an operation reads at a place."""
        return self.numbers.setdefault((reader, place), len(self.numbers) + 1)

    def _write(self, value: Value) -> None:
        """Have written what a value is cut from, or the value."""
        producer = self.producer.get(value)
        if producer is None or producer not in self.loops:
            return
        op = self.operations[producer]
        if op.kind in _CUTS:
            self._write(op.operands[0])
        elif sum(map(bytes_of, op.results)) > FEWEST_BYTES:
            self.written.add(producer)
        self.places[producer] = self._read_by(producer)


def _together(places: Sequence[Places]) -> Places:
    """Return the places that several values read."""
    if not places:
        return {}
    most = max(places, key=len)
    if len(places) == 1:
        return most
    read = dict(most)
    for theirs in places:
        if theirs is most:
            continue
        for source, added in theirs.items():
            joined = read.get(source)
            if joined is None:
                read[source] = added
            elif joined is not added and joined != added:
                together = joined | added
                is_counted = len(together) <= _COUNTED_PLACES
                read[source] = together if is_counted else {*sorted(together)[:_COUNTED_PLACES]}
    return read


def multiplied_before(operations: Sequence[Op]) -> set[int]:
    """Return the numbers of multiplications by a vector that sums follow."""
    uses, number = Uses(operations), {op: number_of for number_of, op in enumerate(operations)}
    written = set[int]()
    for op in operations:
        if op.kind == "reduce" and len(op.results) == 1 and not is_row(op) and _has_few_blocks(op):
            product = uses.producer(op.operands[0])
            if product is not None and _is_by_vector(product, uses):
                written.add(number[product])
    return written


def _is_by_vector(op: Op, uses: Uses) -> bool:
    """Return whether an operation multiplies stored data by a vector per row."""
    if op.kind != "multiply":
        return False
    sources = [uses.source(value, _is_view) for value in op.operands]
    makers = [maker for value in sources if (maker := uses.producer(value)) is not None]
    spread = [it for it in makers if it.traits.category is Category.BROADCAST and _repeats(it)]
    stored = [maker for maker in makers if maker not in spread]
    return len(spread) == 1 and all(role_of(maker) is Role.FIXED for maker in stored)


def _is_view(op: Op) -> bool:
    return role_of(op) is Role.VIEW


def _repeats(op: Op) -> bool:
    return 1 < size_of(op.operands[0]) < size_of(op.results[0])


def _has_few_blocks(op: Op) -> bool:
    value, columns = op.operands[0], columns_together(op)
    result_size = size_of(op.results[0])
    rows = size_of(value) // max(1, result_size)
    row_bytes = bytes_of(value) // max(1, size_of(value)) * columns
    blocks = result_size // max(1, columns) * ceil(row_bytes / _BYTES_OF_WARP)
    is_narrow = columns < _FEWEST_COLUMNS
    return not is_narrow and blocks < _MANY_BLOCKS and rows >= _ROWS_OF_BLOCK * blocks
