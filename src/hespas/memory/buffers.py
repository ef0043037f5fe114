"""Buffers, and which of them a value stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hespas.memory.usage import Role
from hespas.program.attrs import DimensionAttrs
from hespas.program.program import Op, Value
from hespas.program.types import TensorType, TupleType, tensors

THROUGHOUT = -1
"""Stands for a moment before the first operation."""


@dataclass(slots=True, kw_only=True, eq=False)
class Buffer:
    """Memory for one tensor, while it is found out how long that is needed.

    Moments are positions in the block that makes it: ``made_at``, the last operation that reads
    it, ``read_at``, and the last moment at which it must be there, ``held_until``: for what an
    asynchronous operation works on, that is its end. ``is_lent`` marks an argument that an
    output is written over. ``merged_into`` is the buffer that this one is really written into.
    """

    size_bytes: int
    type: TensorType
    role: Role
    location: str
    made_at: int
    read_at: int
    held_until: int
    merged_into: Buffer | None = None

    @property
    def actual(self) -> Buffer:
        """The buffer that it is written into: itself, or the first of a chain."""
        found = self
        while found.merged_into is not None:
            found = found.merged_into
        return found


DEVICE_MEMORY = 0
"""XLA's number for it; others are on the chip, or the host's."""

Leaves = dict[Value, tuple[Buffer, ...]]
"""The buffers of each value, one for each tensor in its type."""


def new_buffers(value: Value, *, role: Role, location: str, at: int) -> tuple[Buffer, ...]:
    """Return a buffer for each tensor in a value's type; one elsewhere takes no device memory."""
    return tuple([
        Buffer(
            size_bytes=tensor.allocated_bytes if tensor.memory_space == DEVICE_MEMORY else 0,
            type=tensor,
            role=role,
            location=location,
            made_at=at,
            read_at=at,
            held_until=at,
        )
        for tensor in tensors(value.type)
    ])  # fmt: skip


def _the_same(op: Op, leaves: Leaves) -> list[tuple[Buffer, ...]]:
    return [leaves[value] for value in op.operands]


def _grouped(op: Op, leaves: Leaves) -> list[tuple[Buffer, ...]]:
    return [tuple([leaf for value in op.operands for leaf in leaves[value]])]


def _member(op: Op, leaves: Leaves) -> list[tuple[Buffer, ...]]:
    (source,) = op.operands
    if not (isinstance(op.attrs, DimensionAttrs) and isinstance(source.type, TupleType)):
        raise TypeError(f"{op.location} takes a member of what is no tuple")
    index, members = op.attrs.dimension, source.type.members
    before = sum(len(tensors(member)) for member in members[:index])
    return [leaves[source][before : before + len(tensors(members[index]))]]


VIEWS: Mapping[str, Callable[[Op, Leaves], list[tuple[Buffer, ...]]]] = {
    "bitcast": _the_same,
    "get_tuple_element": _member,
    "optimization_barrier": _the_same,
    "reshape": _the_same,
    "tuple": _grouped,
}
"""Operations that make no data: what their results stand for."""

FOLDED_VIEWS = {**VIEWS, **dict.fromkeys(("broadcast", "broadcast_in_dim", "copy"), _the_same)}
"""The same where no compiler was at work yet.

All of them make broadcasts where they are read, and decide by themselves what to copy.
"""

CONSTANTS = frozenset({"constant"})
FOLDED_CONSTANTS = CONSTANTS | {"iota"}
"""Operations whose results nobody has to keep."""
