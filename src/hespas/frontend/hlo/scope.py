"""One computation while it is read: what its instructions made so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hespas.errors import ProgramError
from hespas.frontend.hlo.types import Tree, flat
from hespas.program.program import Op, Value


@dataclass(slots=True, kw_only=True)
class Scope:
    """Trees by instruction id, and operations in order.

    ``synchronous`` holds the ids of starts whose collective the stream waits for.
    """

    trees: dict[int, Tree] = field(default_factory=dict[int, Tree])
    operations: list[Op] = field(default_factory=list[Op])
    synchronous: set[int] = field(default_factory=set[int])

    def inner(self) -> Scope:
        """Return a scope for a computation that runs in place: its operations follow here."""
        return Scope(operations=self.operations)

    def tree(self, number: int) -> Tree:
        """Return what an instruction made; `ProgramError` where it did not run yet."""
        found = self.trees.get(number)
        if found is None:
            raise ProgramError(f"instruction {number} is used before it is defined")
        return found

    def operands(self, instruction: Any) -> tuple[Value, ...]:
        """Return the values that an instruction reads, tuples opened."""
        return self.values(instruction.operand_ids)

    def values(self, numbers: Iterable[int]) -> tuple[Value, ...]:
        """Return the values that instructions made, tuples opened."""
        return flat([self.tree(number) for number in numbers])
