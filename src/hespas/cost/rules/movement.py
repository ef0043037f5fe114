"""Operations that compute nothing: they move data, or only give it another name or shape.

Bytes are those the operation has to touch. A slice reads the slice, not what it is cut from.
"""

from __future__ import annotations

from hespas.cost.rules.sizes import bytes_of, in_memory, memory_bytes, operand, result, traffic
from hespas.cost.work import ZERO, Work
from hespas.program.program import Op


def nothing(op: Op) -> Work:  # noqa: ARG001 - every rule takes the operation
    """Do nothing: the result is the operand's memory, or was there before."""
    return ZERO


def moved(op: Op) -> Work:
    """Read every operand once and write every result once."""
    return traffic(op)


def written(op: Op) -> Work:
    """Write a result that is made from nothing, or from its own indices."""
    return Work(bytes_written=memory_bytes(result(op)))


def sliced(op: Op) -> Work:
    """Read as much as is written, and the indices that say where; the rest is not touched.

    That holds for slices at fixed and at computed places and for gathers. Rows that are
    gathered twice are read twice.
    """
    cut = result(op)
    read = in_memory(operand(op, 0), cut.size_bytes)
    indices = bytes_of(op.operands[1:])
    return Work(bytes_read=read + indices, bytes_written=memory_bytes(cut))


def dynamic_update_slice(op: Op) -> Work:
    """In place: the update and its indices are read, the update's size is written."""
    written = in_memory(result(op), operand(op, 1).size_bytes)
    return Work(bytes_read=bytes_of(op.operands[1:]), bytes_written=written)


def pad(op: Op) -> Work:
    """Read the operand, less what negative padding cuts off, and write the result."""
    padded, made = operand(op, 0), result(op)
    read = in_memory(padded, min(padded.size_bytes, made.size_bytes))
    return Work(bytes_read=read + bytes_of(op.operands[1:2]), bytes_written=memory_bytes(made))


def infeed(op: Op) -> Work:
    """Write what comes from the host to memory."""
    return Work(bytes_written=sum(memory_bytes(value.type) for value in op.results))


def outfeed(op: Op) -> Work:
    """Read what goes to the host from memory."""
    return Work(bytes_read=bytes_of(op.operands))


# A constant lies in memory before the program starts; each use reads it.
_NOTHING = (
    "add_dependency after_all async_done async_update bitcast constant create_token domain "
    "dynamic_reshape get_dimension_size get_tuple_element optimization_barrier reshape return "
    "trace tuple"
)

RULES = {
    **dict.fromkeys(_NOTHING.split(), nothing),
    "broadcast": moved,
    "broadcast_in_dim": moved,
    "concatenate": moved,
    "copy": moved,
    "dynamic_broadcast_in_dim": moved,
    "dynamic_gather": sliced,
    "dynamic_iota": written,
    "dynamic_pad": pad,
    "dynamic_slice": sliced,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": sliced,
    "infeed": infeed,
    "iota": written,
    "outfeed": outfeed,
    "pad": pad,
    "partition_id": written,
    "real_dynamic_slice": sliced,
    "replica_id": written,
    "reverse": moved,
    "slice": sliced,
    "torch_index_select": sliced,
    "transpose": moved,
}
