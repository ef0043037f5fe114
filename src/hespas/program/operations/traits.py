"""What is known of a kind of operation: one record for each.

Work, fusion, memory, prices and reports read these records. A new operation is a new record in the
file of its family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hespas.program.program import Op
    from hespas.program.work import Work


class Category(Enum):
    """What an operation does with its operands."""

    ELEMENTWISE = "elementwise"
    """Computes each element of the result from the operands' elements at the same place."""
    CREATION = "creation"
    """Makes its result from nothing: every kernel that needs it makes it again."""
    BROADCAST = "broadcast"
    """Repeats its operand."""
    MOVEMENT = "movement"
    """Moves elements to other places."""
    UPDATE = "update"
    """Writes over a part of its first operand."""
    REDUCTION = "reduction"
    """Combines elements by a body of its own."""
    SORTING = "sorting"
    """Orders elements."""
    RANDOM = "random"
    """Draws random numbers."""
    PRODUCT = "product"
    """Multiplies and sums: dots and convolutions."""
    LINEAR_ALGEBRA = "linear algebra"
    """Factors, solves, transforms or normalises, by a library."""
    COLLECTIVE = "collective"
    """Moves data between devices."""
    HOST = "host"
    """Exchanges data with the host, or ends a transfer."""
    CONTROL = "control flow"
    """Runs its regions as loops or branches."""
    CALL = "call"
    """Runs a function, or a region once."""
    ASYNCHRONOUS = "asynchronous"
    """Starts, continues or ends an operation that runs beside others."""
    STRUCTURE = "structure"
    """Runs nothing: orders, groups or renames values."""
    FUSION = "fusion"
    """One kernel of many operations."""
    CUSTOM_CALL = "custom call"
    """Calls a kernel by its name."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """Instructions of a TPU's vector unit for a register of elements, by its parts."""

    arithmetic: float = 1.0
    functions: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The facts of one kind of operation.

    ``work`` counts the work of an operation, ``work_of_bodies`` that of one with regions, given
    what each region does when it is applied once; ``without_work`` says why neither is there.
    ``relabels`` marks a result that is its operand's elements, in their order, with other
    dimensions, or grouped; ``runs_nothing`` what is no kernel in a compiled program; ``has_effect``
    what runs even if nothing reads its results; ``keeps_dimensions`` a result whose dimensions are
    those of its operands. ``reads_part`` marks what reads no more of its first operand than it
    writes. ``written_operand`` is the operand that an update writes.

    ``kernel_name`` is what reports call a kernel of the operation; ``fusion_rank`` orders those
    that name a fusion they are in, the least first. ``gpu_instructions`` is how many instructions
    of a GPU an element takes, as XLA's profiles of operations tell slow ones from others.
    ``tpu_instructions`` are those of a TPU's vector unit, and ``tpu_exact_instructions``, where
    they differ, those of units with exact functions and of narrow results.
    """

    category: Category
    work: Callable[[Op], Work] | None = None
    work_of_bodies: Callable[[Op, tuple[Work, ...]], Work] | None = None
    without_work: str = ""
    relabels: bool = False
    runs_nothing: bool = False
    has_effect: bool = False
    keeps_dimensions: bool = False
    reads_part: bool = False
    written_operand: int | None = None
    kernel_name: str = ""
    fusion_rank: int | None = None
    gpu_instructions: int = 1
    tpu_instructions: Instructions = Instructions()
    tpu_exact_instructions: Instructions | None = None

    @property
    def is_elementwise(self) -> bool:
        """Whether each element is made of the operands' elements at the same place."""
        return self.category is Category.ELEMENTWISE

    @property
    def reads_around(self) -> bool:
        """Whether its regions may read values of the block around it."""
        return self.category in (Category.CONTROL, Category.UNKNOWN)

    @property
    def is_fusible(self) -> bool:
        """Whether XLA's own emitters write it: all else is a library's, or no kernel."""
        return self.category in _FUSIBLE

    @property
    def is_of_library(self) -> bool:
        """Whether a library, or an author's own kernel, runs it where it stands alone."""
        return self.category in (Category.PRODUCT, Category.CUSTOM_CALL)

    @property
    def moves_only(self) -> bool:
        """Whether it computes nothing."""
        is_placed = self.category is Category.UPDATE and self.work_of_bodies is None
        return self.category in _MOVING or is_placed


_FUSIBLE = frozenset(
    {
        Category.ELEMENTWISE,
        Category.CREATION,
        Category.BROADCAST,
        Category.MOVEMENT,
        Category.UPDATE,
        Category.REDUCTION,
    }
)
_MOVING = frozenset(
    {Category.CREATION, Category.BROADCAST, Category.MOVEMENT, Category.HOST, Category.STRUCTURE}
)
UNKNOWN = Traits(category=Category.UNKNOWN)
"""Stands for a kind without a record."""
