"""Define the record of facts of a kind of operation.

Work, fusion, memory, prices and reports read these records. A new operation is a new record in the
file of its family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from hespas.base.frozen import frozen
from hespas.errors import CostError
from hespas.program.types import (
    AsyncType,
    ElementType,
    NumberKind,
    TensorType,
    TokenType,
    TupleType,
    Type,
    tensors,
)
from hespas.program.work import FlopCounts, Work

if TYPE_CHECKING:
    from hespas.program.program import Op, Value


class Category(Enum):
    """The class of an operation by its effect."""

    ELEMENTWISE = "elementwise"
    """Computes each element of the result from the operands' elements at the same place."""
    CREATION = "creation"
    """Creates its result without operands: every kernel that needs it creates it again."""
    BROADCAST = "broadcast"
    """Repeats its operand."""
    MOVEMENT = "movement"
    """Moves elements to other places."""
    UPDATE = "update"
    """Writes over a part of its first operand."""
    REDUCTION = "reduction"
    """Combines elements by its own body."""
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
    """Runs no kernel: orders, groups or renames values."""
    FUSION = "fusion"
    """One kernel of many operations."""
    CUSTOM_CALL = "custom call"
    """Calls a kernel by its name."""
    KERNEL = "kernel"
    """Launches kernels that are known by the bytes that they move."""
    UNKNOWN = "unknown"


@frozen
class Instructions:
    """Instructions of a TPU's vector unit per register."""

    arithmetic: float = 1.0
    functions: float = 0.0


@frozen
class Traits:
    """The facts of one kind of operation.

    ``work`` counts the work of an operation, ``work_of_bodies`` that of one with regions, from the
    work of one application of each region; ``without_work`` says why neither exists. ``relabels``
    marks a result with its operand's elements in the same order, with other dimensions or grouped;
    ``runs_nothing`` an operation that is no kernel in a compiled program; ``has_effect`` one that
    runs even if nothing reads its results; ``keeps_dimensions`` a result with the dimensions of its
    operands; ``reads_part`` an operation that reads no more of its first operand than it writes.
    ``written_operand`` is the operand that an update writes.

    ``kernel_name`` is the operation's name for a kernel in reports; of the operations in a fusion,
    the one with the least ``fusion_rank`` names it. ``gpu_instructions`` are a GPU's instructions
    per element, as XLA's profiles of operations distinguish slow ones from others.
    ``tpu_instructions`` are those of a TPU's vector unit, and ``tpu_exact_instructions``, if they
    differ, those of units with exact functions and of narrow results.
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
        """Whether each element depends on those at its position."""
        return self.category is Category.ELEMENTWISE

    @property
    def runs_operations(self) -> bool:
        """Whether it runs a region's or function's operations."""
        return self.category in (Category.CONTROL, Category.CALL)

    @property
    def reads_around(self) -> bool:
        """Whether its regions may read outer values."""
        return self.category not in (Category.FUSION, Category.ASYNCHRONOUS, Category.COLLECTIVE)

    @property
    def is_fusible(self) -> bool:
        """Whether XLA's own emitters generate it, rather than a library or nothing."""
        return self.category in _FUSIBLE

    @property
    def is_of_library(self) -> bool:
        """Whether a library or a custom kernel runs it."""
        return self.category in (Category.PRODUCT, Category.CUSTOM_CALL)

    @property
    def moves_only(self) -> bool:
        """Whether it only moves data."""
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
"""The traits of a kind without a record."""


_RANK = {
    NumberKind.BOOLEAN: 0,
    NumberKind.INTEGER: 1,
    NumberKind.FLOAT: 2,
    NumberKind.COMPLEX: 3,
}
_COMPLEX_PREFIX = len("complex<")


def tensor(op: Op, value: Value) -> TensorType:
    """Return a value's tensor type; `CostError` if it has none."""
    kind = value.type
    if isinstance(kind, TensorType):
        return kind
    raise CostError(f"{kind} stands where a tensor should be", location=op.location)


def operand(op: Op, index: int) -> TensorType:
    """Return the type of an operand."""
    return tensor(op, op.operands[index])


def result(op: Op) -> TensorType:
    """Return the type of the first result."""
    return tensor(op, op.results[0])


def first_result(op: Op) -> TensorType:
    """Return the first tensor that an operation produces, also in a tuple."""
    for value in op.results:
        for kind in tensors(value.type):
            return kind
    raise CostError("an operation without results has no such work", location=op.location)


def arithmetic_type(element: ElementType) -> str:
    """Return the real type of the arithmetic.

    A complex number is two reals.

    >>> from hespas.program.types import element_type
    >>> arithmetic_type(element_type("complex<f32>")), arithmetic_type(element_type("bf16"))
    ('f32', 'bf16')
    """
    if element.kind is NumberKind.COMPLEX:
        return element.name[_COMPLEX_PREFIX:-1]
    return element.name


def wider(left: ElementType, right: ElementType) -> ElementType:
    """Return the wider of two element types.

    >>> from hespas.program.types import element_type
    >>> wider(element_type("bf16"), element_type("f32")).name
    'f32'
    """
    return max(left, right, key=lambda element: (element.bits, _RANK[element.kind]))


def memory_bytes(kind: Type) -> int:
    """Return a value's bytes in device memory."""
    match kind:
        case TensorType():
            return kind.size_bytes if kind.is_in_device_memory else 0
        case TupleType(members=members) | AsyncType(members=members):
            return sum(map(memory_bytes, members))
        case TokenType():
            return 0


def in_memory(kind: TensorType, count: int) -> int:
    """Return ``count`` for a tensor in device memory, else 0."""
    return count if kind.is_in_device_memory else 0


def bytes_of(values: Iterable[Value]) -> int:
    """Return the bytes of the values, each value counted once."""
    return sum([memory_bytes(value.type) for value in dict.fromkeys(values)])


def traffic(op: Op, *, flops: FlopCounts = (), transcendentals: int = 0) -> Work:
    """Return work that reads operands and writes results once."""
    return Work(
        flops=flops,
        transcendentals=transcendentals,
        bytes_read=bytes_of(op.operands),
        bytes_written=sum([memory_bytes(value.type) for value in op.results]),
    )


def ceil_log2(count: int) -> int:
    """Return the least n with 2**n >= count.

    >>> [ceil_log2(count) for count in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 3]
    """
    return max(count - 1, 0).bit_length()
