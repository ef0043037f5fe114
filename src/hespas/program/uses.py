"""Who makes each value of a block, who reads it, how often, and which orders that allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from hespas.program.program import Block, Op, Value, values_read


class Uses:
    """The producer and the readers of each value of a list of operations.

    ``outputs`` are the values that leave the list: the operands of a block's terminator, which is
    no reader itself. Operations read what their regions read of the values around them.
    """

    __slots__ = ("_outputs", "_pending", "_producers", "_readers")

    def __init__(self, operations: Iterable[Op] = (), outputs: Iterable[Value] = ()) -> None:
        self._producers: dict[Value, Op] = {}
        self._readers: dict[Value, list[Op]] = {}
        self._pending: list[Op] = []
        self._outputs = Counter(outputs)
        for op in operations:
            self.add(op)

    @classmethod
    def of_block(cls, block: Block) -> Uses:
        """Return the uses of a block's values."""
        return cls(block.operations[:-1], block.operations[-1].operands)

    def add(self, op: Op) -> None:
        """Append an operation."""
        for value in op.results:
            self._producers[value] = op
        self._pending.append(op)

    def _reading(self, value: Value) -> list[Op]:
        # Who reads what is only listed once somebody asks: most ask for producers alone.
        for op in self._pending:
            for each in values_read(op):
                self._readers.setdefault(each, []).append(op)
        self._pending.clear()
        return self._readers.get(value, [])

    def replace(self, op: Op, replacement: Iterable[Op]) -> None:
        """Put operations in the place of one; those that read a value come last of its readers."""
        for value in values_read(op):
            self._reading(value).remove(op)
        for new in replacement:
            self.add(new)

    def producer(self, value: Value) -> Op | None:
        """Return the operation that makes a value; None for an argument."""
        return self._producers.get(value)

    def readers(self, value: Value) -> Sequence[Op]:
        """Return the operations that read a value, each once, in their order."""
        readers = self._reading(value)
        return readers if len(readers) < 2 else list(dict.fromkeys(readers))

    def only_reader(self, value: Value) -> Op | None:
        """Return the operation that alone reads a value that is no output; None otherwise."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and value not in self._outputs else None

    def count(self, value: Value) -> int:
        """Return how often a value is read, each time that it is an output included.

        An operation that reads it twice counts twice.
        """
        return len(self._reading(value)) + self._outputs[value]

    def is_output(self, value: Value) -> bool:
        """Return whether a value leaves the list."""
        return value in self._outputs

    def source(self, value: Value, passes: Callable[[Op], bool]) -> Value:
        """Follow a value back through the first operands of operations that ``passes`` accepts."""
        op = self._producers.get(value)
        while op is not None and op.operands and passes(op):
            value = op.operands[0]
            op = self._producers.get(value)
        return value


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
