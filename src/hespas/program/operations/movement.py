"""Count the bytes of operations that only move data.

Bytes are those the operation has to touch. A slice reads the slice, not its source. The bodies of
loops, calls and fusions are counted where `hespas.work.expand` opens them. For collectives only the
arithmetic on each device counts: the network simulation prices their data, memory traffic included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hespas.program.operations.traits import (
    UNKNOWN,
    Category,
    Traits,
    arithmetic_type,
    bytes_of,
    in_memory,
    memory_bytes,
    operand,
    result,
    tensor,
    traffic,
)
from hespas.program.work import ZERO, Work, flop_counts, summed

if TYPE_CHECKING:
    from hespas.program.program import Op


def nothing(op: Op) -> Work:  # noqa: ARG001 - every rule takes the operation
    """Count nothing: the result is existing memory."""
    return ZERO


def moved(op: Op) -> Work:
    """Count each operand read once and each result written once."""
    return traffic(op)


def written(op: Op) -> Work:
    """Count a result written without operands read."""
    return Work(bytes_written=memory_bytes(result(op)))


def sliced(op: Op) -> Work:
    """Count the slice read and written, and the indices read.

    The rest of the operand is not touched. It holds for slices at fixed and at computed positions
    and for gathers. Rows that are gathered twice are read twice.
    """
    output = result(op)
    read = in_memory(operand(op, 0), output.size_bytes)
    indices = bytes_of(op.operands[1:])
    return Work(bytes_read=read + indices, bytes_written=memory_bytes(output))


def dynamic_update_slice(op: Op) -> Work:
    """Count an in-place update: update and indices read, update written."""
    written = in_memory(result(op), operand(op, 1).size_bytes)
    return Work(bytes_read=bytes_of(op.operands[1:]), bytes_written=written)


def pad(op: Op) -> Work:
    """Count a padded operand read and the result written, without negative padding."""
    padded, padded_result = operand(op, 0), result(op)
    read = in_memory(padded, min(padded.size_bytes, padded_result.size_bytes))
    return Work(
        bytes_read=read + bytes_of(op.operands[1:2]), bytes_written=memory_bytes(padded_result)
    )


def infeed(op: Op) -> Work:
    """Count the bytes from the host, written to memory."""
    return Work(bytes_written=sum(memory_bytes(value.type) for value in op.results))


def outfeed(op: Op) -> Work:
    """Count the bytes to the host, read from memory."""
    return Work(bytes_read=bytes_of(op.operands))


_CREATION = Traits(category=Category.CREATION, work=written)
_BROADCAST = Traits(category=Category.BROADCAST, work=moved, gpu_instructions=0)
_MOVEMENT = Traits(
    category=Category.MOVEMENT, work=moved, kernel_name="data movement", gpu_instructions=0
)
_PART = replace(_MOVEMENT, work=sliced, reads_part=True)
_NOTHING = Traits(category=Category.STRUCTURE, work=nothing)
_NO_KERNEL = replace(_NOTHING, runs_nothing=True)
_VIEW = replace(_NO_KERNEL, relabels=True)

# A constant lies in memory before the program starts; each use reads it.
TRAITS = {
    **dict.fromkeys(("add_dependency", "after_all", "create_token", "return"), _NO_KERNEL),
    **dict.fromkeys(("domain", "get_dimension_size", "trace"), _NOTHING),
    **dict.fromkeys(("bitcast", "get_tuple_element", "optimization_barrier", "tuple"), _VIEW),
    "broadcast": _BROADCAST,
    "broadcast_in_dim": replace(_BROADCAST, kernel_name="broadcast"),
    "concatenate": replace(_MOVEMENT, keeps_dimensions=True),
    "constant": replace(_CREATION, work=nothing, runs_nothing=True, gpu_instructions=0),
    "copy": replace(_MOVEMENT, kernel_name="copy"),
    "dynamic_broadcast_in_dim": _BROADCAST,
    "dynamic_gather": _PART,
    "dynamic_iota": _CREATION,
    "dynamic_pad": replace(_MOVEMENT, work=pad),
    "dynamic_reshape": replace(_MOVEMENT, work=nothing, relabels=True),
    "dynamic_slice": replace(_PART, keeps_dimensions=True, kernel_name="slice"),
    "dynamic_update_slice": Traits(
        category=Category.UPDATE,
        work=dynamic_update_slice,
        keeps_dimensions=True,
        written_operand=1,
        kernel_name="in-place update",
        fusion_rank=4,
    ),
    "gather": replace(_PART, kernel_name="gather", fusion_rank=5),
    "infeed": Traits(category=Category.HOST, work=infeed, has_effect=True),
    "iota": replace(_CREATION, kernel_name="broadcast"),
    "outfeed": Traits(category=Category.HOST, work=outfeed, has_effect=True),
    "pad": replace(_MOVEMENT, work=pad, keeps_dimensions=True),
    "partition_id": _CREATION,
    "real_dynamic_slice": _PART,
    "replica_id": _CREATION,
    "reshape": replace(_MOVEMENT, work=nothing, relabels=True),
    "reverse": replace(_MOVEMENT, keeps_dimensions=True),
    "slice": replace(_PART, keeps_dimensions=True, kernel_name="slice"),
    "torch_index_select": _PART,
    "transpose": replace(_MOVEMENT, kernel_name="transpose", fusion_rank=8),
}


_CONTROL = Traits(category=Category.CONTROL, has_effect=True)
_CALL = Traits(category=Category.CALL)
_ASYNCHRONOUS = Traits(category=Category.ASYNCHRONOUS)
_DYNAMIC = "its result has a size that is known only when it runs"
_QUANTIZED = "quantised types are not supported"

CONTROL_TRAITS = {
    "async_done": replace(_ASYNCHRONOUS, work=nothing),
    "async_start": _ASYNCHRONOUS,
    "async_update": replace(_ASYNCHRONOUS, work=nothing),
    "call": _CALL,
    "case": _CONTROL,
    "composite": _CALL,
    "custom_call": Traits(category=Category.CUSTOM_CALL, has_effect=True),
    "fusion": Traits(category=Category.FUSION),
    "if": _CONTROL,
    "set_dimension_size": replace(UNKNOWN, without_work=_DYNAMIC),
    "uniform_dequantize": replace(UNKNOWN, without_work=_QUANTIZED),
    "uniform_quantize": replace(UNKNOWN, without_work=_QUANTIZED),
    "while": _CONTROL,
}


def all_reduce(op: Op) -> Work:
    """Count one FLOP per element (XLA's HloCostAnalysis, whatever the reduction)."""
    types = [tensor(op, value) for value in op.operands]
    return summed(
        Work(flops=flop_counts(arithmetic_type(kind.element), kind.element_count)) for kind in types
    )


def reduce_scatter(op: Op) -> Work:
    """Count one FLOP per input less outputs.

    These are (p - 1) N / p: each of the device's N / p results sums p contributions. XLA's
    HloCostAnalysis counts nothing.
    """
    works: list[Work] = []
    for operand_value, result_value in zip(op.operands, op.results, strict=True):
        source, scattered = tensor(op, operand_value), tensor(op, result_value)
        additions = max(0, source.element_count - scattered.element_count)
        works.append(Work(flops=flop_counts(arithmetic_type(source.element), additions)))
    return summed(works)


_COLLECTIVE = Traits(category=Category.COLLECTIVE, work=nothing, kernel_name="collective")
_SUM = replace(_COLLECTIVE, work=all_reduce)
_END = Traits(category=Category.HOST, work=nothing, has_effect=True)

COLLECTIVE_TRAITS = {
    "all_gather": _COLLECTIVE,
    "all_reduce": _SUM,
    "all_to_all": _COLLECTIVE,
    "collective_broadcast": _COLLECTIVE,
    "collective_permute": _COLLECTIVE,
    "cross-replica-sum": _SUM,
    "ragged_all_to_all": _COLLECTIVE,
    "recv": replace(_COLLECTIVE, has_effect=True),
    "recv_done": _END,
    "reduce_scatter": replace(_COLLECTIVE, work=reduce_scatter),
    "send": replace(_COLLECTIVE, has_effect=True),
    "send_done": _END,
}
