"""Count kernels known by their bytes; define stream and host events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hespas.program.attrs import KernelAttrs
from hespas.program.operations.movement import nothing
from hespas.program.operations.traits import Category, Traits
from hespas.program.work import ZERO, Work

if TYPE_CHECKING:
    from hespas.program.program import Op


def moved_bytes(op: Op) -> Work:
    """Return the work of kernels known only by the bytes they move."""
    if not isinstance(op.attrs, KernelAttrs):
        return ZERO
    return Work(bytes_read=op.attrs.bytes_read, bytes_written=op.attrs.bytes_written)


LAUNCHED = Traits(category=Category.KERNEL, work=moved_bytes, has_effect=True)
"""The traits of all operations with `hespas.program.attrs.KernelAttrs`, under any name."""

_EVENT = Traits(category=Category.STRUCTURE, work=nothing, runs_nothing=True, has_effect=True)
TRAITS = {"host_wait": _EVENT, "record_event": _EVENT, "wait_event": _EVENT}
