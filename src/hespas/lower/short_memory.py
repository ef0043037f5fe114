"""Whether memory is short for what would run beside collectives.

XLA's scheduler has a limit (`hespas.program.program`). It does not give up all overlap at once:
compiled for eight H100, nearly all collectives of llama3-8b with 3,584 tokens run beside other work
though the scheduler counts 79.0 GB where its limit is 58.8, and with 3,840 a part of them runs
alone; those of llama3-70b on 256 H100 with 71.0 GB of temporaries all do at limits up to 66.3 GB,
and nearly none at 79.6. So temporaries may exceed the limit by the ratio that they may at the
flag's default: all of what arguments and results leave of 80 % of the memory.
"""

from __future__ import annotations

from hespas.memory.usage import unpacked_bytes
from hespas.program.program import (
    SLOP_FACTOR,
    OverlapLimit,
    Program,
    all_ops,
    counted_bytes,
    full_factor,
    is_communication_op,
)


def exceeded_limit(
    program: Program, capacity_bytes: int | None, factor: int = SLOP_FACTOR
) -> OverlapLimit | None:
    """Return the scheduler's limit where temporaries need more; None where they don't.

    ``factor`` is that of the limit, in per cent. Programs without collectives have nothing that
    could wait.
    """
    if capacity_bytes is None or not any(map(is_communication_op, all_ops(program))):
        return None
    held_bytes, temporary_bytes = unpacked_bytes(program)
    counted = counted_bytes(capacity_bytes, held_bytes)
    if temporary_bytes <= factor / SLOP_FACTOR * counted:
        return None
    return OverlapLimit(
        limit_bytes=max(0, round(factor / 100 * counted)),
        needed_bytes=temporary_bytes,
        factor=factor,
        full_factor=full_factor(capacity_bytes, counted, above=factor),
    )
