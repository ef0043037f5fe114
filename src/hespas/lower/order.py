"""Put operations in an order in which every operand is there in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from hespas.program.program import Op, Value, values_read


def needed_by(op: Op) -> Sequence[Value]:
    """Return the values that an operation needs, those that control flow reads inside included.

    The bodies of all other operations, as reductions, read their own arguments alone.
    """
    return values_read(op)


def readers_of(operations: Iterable[Op]) -> dict[Value, list[Op]]:
    """Return the operations that need each value, each once, in their order."""
    readers: dict[Value, list[Op]] = {}
    for op in operations:
        for value in dict.fromkeys(needed_by(op)):
            readers.setdefault(value, []).append(op)
    return readers


def times_read(operations: Iterable[Op], results: Iterable[Value]) -> Counter[Value]:
    """Return how often operations need each value, ``results`` of the block once more."""
    counts = Counter(value for op in operations for value in needed_by(op))
    counts.update(results)
    return counts


def in_order(operations: Sequence[Op], ranks: Sequence[float]) -> list[Op]:
    """Return operations in an order that is possible, of those that are ready the lowest rank."""
    producer = {result: at for at, op in enumerate(operations) for result in op.results}
    users: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for at, op in enumerate(operations):
        made_by = {producer[value] for value in needed_by(op) if value in producer}
        missing[at] = len(made_by)
        for before in made_by:
            users[before].append(at)
    ready = [(ranks[at], at) for at, count in enumerate(missing) if not count]
    heapify(ready)
    ordered: list[Op] = []
    while ready:
        _, at = heappop(ready)
        ordered.append(operations[at])
        for user in users[at]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (ranks[user], user))
    return ordered
