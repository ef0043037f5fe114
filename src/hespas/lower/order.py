"""Put operations in an order in which every operand is there in time."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from hespas.program.program import Op, values_read


def in_order(operations: Sequence[Op], ranks: Sequence[float]) -> list[Op]:
    """Return operations in an order that is possible, of those that are ready the lowest rank."""
    producer = {result: at for at, op in enumerate(operations) for result in op.results}
    users: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for at, op in enumerate(operations):
        made_by = {producer[value] for value in values_read(op) if value in producer}
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
