"""Whether memory is short for what would run beside collectives.

A gather that runs ahead of its use takes memory for its result meanwhile. XLA's scheduler for GPUs
has a limit, beyond which it orders operations for memory alone, and collectives run by themselves.
It is 95 % of what arguments and results leave of 80 % of the device's memory. What the scheduler
counts before buffers are assigned is less than what they take: compiled for eight H100, collectives
of llama3-8b with 3,584 tokens run beside other work though its temporaries take 62.1 GB where 95 %
are 59.6, and with 3,840 and 66 GB a part of them runs alone. So temporaries are held against all of
what is left.
"""

from __future__ import annotations

from hespas.memory.usage import unpacked_bytes
from hespas.program.program import Program, all_ops, is_communication_op

SHORT = (
    "overlap: memory is short for work beside collectives: as XLA's scheduler, which counts on "
    "four fifths of a device's memory, each runs by itself"
)
OF_DEVICE = 0.8
"""The part of a device's memory that XLA's scheduler for GPUs counts on."""


def is_short(program: Program, capacity_bytes: int | None) -> bool:
    """Return whether temporaries need more than XLA's scheduler counts on.

    That is what arguments and results leave of 80 % of a device's memory. Programs without
    collectives have nothing that could wait.
    """
    if capacity_bytes is None or not any(map(is_communication_op, all_ops(program))):
        return False
    held_bytes, temporary_bytes = unpacked_bytes(program)
    return temporary_bytes > OF_DEVICE * capacity_bytes - held_bytes
