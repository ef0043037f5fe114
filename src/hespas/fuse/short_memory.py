"""Whether memory is short for what would run beside collectives.

A gather that runs ahead of its use takes memory for its result meanwhile. XLA's scheduler for GPUs
has a limit, beyond which it orders operations for memory alone, and collectives run by themselves.
"""

from __future__ import annotations

from hespas.memory.usage import unpacked_bytes
from hespas.program.program import Program, all_ops, is_communication_op

SHORT = (
    "memory is short for work beside collectives: as XLA's scheduler, which counts on four fifths "
    "of a device's memory, each runs by itself"
)
_OF_DEVICE, _SLOP = 0.8, 0.95
"""Of XLA's ``GetSchedulerMemoryLimit``, and its flag ``xla_gpu_memory_limit_slop_factor``."""


def is_short(program: Program, capacity_bytes: int | None) -> bool:
    """Return whether temporaries need more than XLA's scheduler counts on.

    That is 95 % of what arguments and results leave of 80 % of a device's memory. Programs without
    collectives have nothing that could wait.
    """
    if capacity_bytes is None or not any(map(is_communication_op, all_ops(program))):
        return False
    held_bytes, temporary_bytes = unpacked_bytes(program)
    return temporary_bytes > _SLOP * (_OF_DEVICE * capacity_bytes - held_bytes)
