"""Buffers: the memory of one tensor each, and which of them a value stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hespas.program.attrs import DimensionAttrs
from hespas.program.program import Op, Value
from hespas.program.types import DEVICE_MEMORY, TensorType, TupleType, tensors


class Role(Enum):
    """What a buffer is for.

    Arguments and outputs are allocated throughout: the caller owns them. A temporary is live from
    the operation that writes it to the last one that reads it.
    """

    ARGUMENT = "argument"
    OUTPUT = "output"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBuffer:
    """A buffer that is live at the peak: its size, its type, and the operation that wrote it."""

    size_bytes: int
    type: str
    role: Role
    location: str


THROUGHOUT = -1
"""The moment before the first operation."""


@dataclass(slots=True, kw_only=True, eq=False)
class Buffer:
    """Memory for one tensor, while its liveness is determined.

    Moments are positions in the block that writes it. ``written_at`` is the operation that writes
    it, ``read_at`` the last one that reads it, and ``held_until`` the last moment at which it must
    be allocated: an asynchronous operation holds its buffers until its end. ``merged_into`` is the
    buffer in whose memory this one lies, if an operation works in place.
    """

    size_bytes: int
    type: TensorType
    role: Role
    location: str
    written_at: int
    read_at: int
    held_until: int
    merged_into: Buffer | None = None

    @property
    def actual(self) -> Buffer:
        """The buffer whose memory it uses: itself, or the first of a chain of merged ones."""
        buffer = self
        while buffer.merged_into is not None:
            buffer = buffer.merged_into
        return buffer

    @property
    def held(self) -> HeldBuffer:
        """What a report says about it."""
        return HeldBuffer(
            size_bytes=self.size_bytes,
            type=str(self.type),
            role=self.role,
            location=self.location,
        )


Leaves = dict[Value, tuple[Buffer, ...]]
"""The buffers of each value, one for each tensor in its type."""


def new_buffers(
    value: Value, *, role: Role, location: str, at: int, space: int = DEVICE_MEMORY
) -> tuple[Buffer, ...]:
    """Return a buffer for each tensor in a value's type.

    Those in another memory space than ``space`` take nothing of it.
    """
    return tuple([
        Buffer(
            size_bytes=tensor.allocated_bytes if tensor.memory_space == space else 0,
            type=tensor,
            role=role,
            location=location,
            written_at=at,
            read_at=at,
            held_until=at,
        )
        for tensor in tensors(value.type)
    ])  # fmt: skip


def argument_buffers(values: Iterable[Value], *, space: int = DEVICE_MEMORY) -> tuple[Buffer, ...]:
    """Return the buffers of a block's arguments, which are live from before its first operation."""
    return tuple([
        buffer
        for number, value in enumerate(values)
        for buffer in new_buffers(
            value, role=Role.ARGUMENT, location=f"argument {number}", at=THROUGHOUT, space=space
        )
    ])  # fmt: skip


def _operands(op: Op, leaves: Leaves) -> list[tuple[Buffer, ...]]:
    return [leaves[value] for value in op.operands]


def _grouped(op: Op, leaves: Leaves) -> list[tuple[Buffer, ...]]:
    return [tuple([leaf for value in op.operands for leaf in leaves[value]])]


def _member(op: Op, leaves: Leaves) -> list[tuple[Buffer, ...]]:
    (source,) = op.operands
    if not (isinstance(op.attrs, DimensionAttrs) and isinstance(source.type, TupleType)):
        raise TypeError(f"{op.location} takes a member of something that is no tuple")
    index, members = op.attrs.dimension, source.type.members
    before = sum(len(tensors(member)) for member in members[:index])
    return [leaves[source][before : before + len(tensors(members[index]))]]


VIEWS: Mapping[str, Callable[[Op, Leaves], list[tuple[Buffer, ...]]]] = {
    "bitcast": _operands,
    "get_tuple_element": _member,
    "optimization_barrier": _operands,
    "reshape": _operands,
    "tuple": _grouped,
}
"""Operations that move no data: the buffers that their results stand for."""

FOLDED_VIEWS = {**VIEWS, **dict.fromkeys(("broadcast", "broadcast_in_dim", "copy"), _operands)}
"""The same before compilation.

All compilers compute broadcasts where they are read, and decide themselves what to copy.
"""

CONSTANTS = frozenset({"constant"})
FOLDED_CONSTANTS = CONSTANTS | {"iota"}
"""Operations whose results take no memory during the step."""
