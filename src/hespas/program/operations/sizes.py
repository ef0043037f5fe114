"""What rules read off an operation's types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

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

_RANK = {
    NumberKind.BOOLEAN: 0,
    NumberKind.INTEGER: 1,
    NumberKind.FLOAT: 2,
    NumberKind.COMPLEX: 3,
}
_COMPLEX_PREFIX = len("complex<")


def tensor(op: Op, value: Value) -> TensorType:
    """Return a value's type where it is a tensor; `CostError` names the operation if not."""
    kind = value.type
    if isinstance(kind, TensorType):
        return kind
    raise CostError(f"{kind} stands where a tensor should be", location=op.location)


def operand(op: Op, at: int) -> TensorType:
    """Return the type of an operand."""
    return tensor(op, op.operands[at])


def result(op: Op, at: int = 0) -> TensorType:
    """Return the type of a result."""
    return tensor(op, op.results[at])


def first_result(op: Op) -> TensorType:
    """Return the first tensor made: a custom call may give its results in one tuple."""
    for value in op.results:
        for kind in tensors(value.type):
            return kind
    raise CostError("an operation without results has no such work", location=op.location)


def arithmetic_type(element: ElementType) -> str:
    """Return the real type in which the hardware computes: a complex number is two reals.

    >>> from hespas.program.types import element_type
    >>> arithmetic_type(element_type("complex<f32>")), arithmetic_type(element_type("bf16"))
    ('f32', 'bf16')
    """
    if element.kind is NumberKind.COMPLEX:
        return element.name[_COMPLEX_PREFIX:-1]
    return element.name


def wider(left: ElementType, right: ElementType) -> ElementType:
    """Return the element type that can hold the other; the left one where both are equal.

    >>> from hespas.program.types import element_type
    >>> wider(element_type("bf16"), element_type("f32")).name
    'f32'
    """
    if (left.bits, _RANK[left.kind]) >= (right.bits, _RANK[right.kind]):
        return left
    return right


def memory_bytes(kind: Type) -> int:
    """Return the bytes that a value takes in device memory: none where it lies elsewhere."""
    match kind:
        case TensorType():
            return kind.size_bytes if kind.is_in_device_memory else 0
        case TupleType(members=members) | AsyncType(members=members):
            return sum(map(memory_bytes, members))
        case TokenType():
            return 0


def in_memory(kind: TensorType, count: int) -> int:
    """Return ``count`` bytes of a tensor if it lies in device memory, none if it lies elsewhere."""
    return count if kind.is_in_device_memory else 0


def bytes_of(values: Iterable[Value]) -> int:
    """Return the bytes that the values take, each counted once however often it appears."""
    return sum([memory_bytes(value.type) for value in dict.fromkeys(values)])


def traffic(op: Op, *, flops: FlopCounts = (), transcendentals: int = 0) -> Work:
    """Return work that reads each operand once and writes each result once."""
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
