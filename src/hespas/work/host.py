"""What an operation moves between device memory and the host's, from the spaces of its types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hespas.program.operations.table import kinds_where
from hespas.program.operations.traits import Category
from hespas.program.program import Op, Value, is_communication_op
from hespas.program.types import HOST_MEMORY, TensorType, size_bytes, tensors
from hespas.work.fusion import block_traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """The bytes that an operation moves to the host's memory and from it."""

    to_host_bytes: int = 0
    from_host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Both directions together."""
        return self.to_host_bytes + self.from_host_bytes

    def __bool__(self) -> bool:
        return self.total_bytes > 0


NO_HOST_TRAFFIC = HostTraffic()
_HOLDING = (Category.ASYNCHRONOUS, Category.CALL, Category.CONTROL)

# They pass values on, or hold what moves them.
_STILL = kinds_where(lambda traits: traits.runs_nothing or traits.category in _HOLDING) | {
    "reshape"
}


def host_traffic(op: Op) -> HostTraffic:
    """Return what an operation moves over the link to the host.

    What is cut from a buffer on the host counts as much as is cut, and what is written over a part
    of one as much as is written. Nothing counts that stays on its side.
    """
    results = any(map(_is_on_host, op.results))
    if not results and not any(map(_is_on_host, op.operands)):
        return NO_HOST_TRAFFIC
    if op.kind in _STILL or is_communication_op(op):
        return NO_HOST_TRAFFIC
    to_host = _writes(op) if results and _has_array_on_device(op.operands) else 0
    stays = results and all(map(_is_on_host, op.results))
    return HostTraffic(to_host_bytes=to_host, from_host_bytes=0 if stays else _reads(op))


def is_on_host(op: Op) -> bool:
    """Return whether an operation makes something on the host, and moves nothing there."""
    if op.kind in _STILL or is_communication_op(op) or not op.results:
        return False
    return all(map(_is_on_host, op.results)) and not host_traffic(op)


def _is_on_host(value: Value) -> bool:
    kind = value.type
    if isinstance(kind, TensorType):
        return kind.memory_space == HOST_MEMORY
    return any(tensor.memory_space == HOST_MEMORY for tensor in tensors(kind))


def _has_array_on_device(values: Iterable[Value]) -> bool:
    """Return whether there is data on the device; numbers such as indices go with the command."""
    return any(
        tensor.memory_space != HOST_MEMORY and tensor.rank > 0
        for value in values
        for tensor in tensors(value.type)
    )


def _writes(op: Op) -> int:
    """Return the bytes that are written to results on the host."""
    if op.kind == "fusion":
        _, written = block_traffic(op.regions[0])
        pairs = zip(op.results, written, strict=True)
        return sum(count for value, count in pairs if _is_on_host(value))
    if op.kind == "dynamic_update_slice":
        update = op.operands[1]
        return 0 if _is_on_host(update) else size_bytes(update.type)
    return _on_host_bytes(op.results)


def _reads(op: Op) -> int:
    """Return the bytes that are read of operands on the host."""
    if op.kind == "fusion":
        needed, _ = block_traffic(op.regions[0])
        pairs = zip(op.regions[0].arguments, op.operands, strict=True)
        return sum(needed.bytes_of(inner) for inner, outer in pairs if _is_on_host(outer))
    if op.traits.reads_part:
        return sum(size_bytes(value.type) for value in op.results)
    return _on_host_bytes(dict.fromkeys(op.operands))


def _on_host_bytes(values: Iterable[Value]) -> int:
    return sum(
        tensor.size_bytes
        for value in values
        for tensor in tensors(value.type)
        if tensor.memory_space == HOST_MEMORY
    )
