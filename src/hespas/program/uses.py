"""Find the producers and readers of a block's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from hespas.program.program import Block, Op, Value, values_read


class Uses:
    """The producers and the readers of a list's values.

    The list is of operations. ``outputs`` are the values that leave it: the operands of a block's
    terminator, which is no reader itself. Operations read the outer values that their regions read.
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

    def _all_readers(self, value: Value) -> list[Op]:
        # Readers are listed on the first request: most callers need producers only.
        if self._pending:
            for op in self._pending:
                for operand in values_read(op):
                    self._readers.setdefault(operand, []).append(op)
            self._pending.clear()
        return self._readers.get(value, [])

    def replace(self, op: Op, replacement: Iterable[Op]) -> None:
        """Replace one operation by others, which become the last readers."""
        for value in values_read(op):
            self._all_readers(value).remove(op)
        for new in replacement:
            self.add(new)

    def stand_for(self, value: Value, other: Value) -> None:
        """Have a value leave the list in another one's place, if that does."""
        if other in self._outputs:
            self._outputs[value] += self._outputs[other]

    def producer(self, value: Value) -> Op | None:
        """Return a value's producer; None for an argument."""
        return self._producers.get(value)

    def readers(self, value: Value) -> Sequence[Op]:
        """Return a value's readers, each once, in order."""
        readers = self._all_readers(value)
        return readers if len(readers) < 2 else list(dict.fromkeys(readers))

    def only_reader(self, value: Value) -> Op | None:
        """Return the only reader of a value, None for an output or several."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and value not in self._outputs else None

    def count(self, value: Value) -> int:
        """Count a value's reads, as output and by each operand."""
        return len(self._all_readers(value)) + self._outputs[value]

    def is_output(self, value: Value) -> bool:
        """Return whether a value leaves the list."""
        return value in self._outputs

    def source(self, value: Value, passes: Callable[[Op], bool]) -> Value:
        """Follow a value back through first operands of operations that ``passes`` accepts."""
        op = self._producers.get(value)
        while op is not None and op.operands and passes(op):
            value = op.operands[0]
            op = self._producers.get(value)
        return value


def in_order(operations: Sequence[Op], ranks: Sequence[float]) -> list[Op]:
    """Sort operations topologically, lowest ranks first."""
    producer = {result: position for position, op in enumerate(operations) for result in op.results}
    users: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for position, op in enumerate(operations):
        producers = {producer[value] for value in values_read(op) if value in producer}
        missing[position] = len(producers)
        for earlier in producers:
            users[earlier].append(position)
    ready = [(ranks[position], position) for position, count in enumerate(missing) if not count]
    heapify(ready)
    ordered: list[Op] = []
    while ready:
        _, position = heappop(ready)
        ordered.append(operations[position])
        for user in users[position]:
            missing[user] -= 1
            if not missing[user]:
                heappush(ready, (ranks[user], user))
    return ordered
