"""The memory that XLA's scheduler for GPUs may fill with work beside collectives.

A gather that runs ahead of its use takes memory for its result meanwhile. XLA's latency-hiding
scheduler has a limit (``GetSchedulerMemoryLimit``), beyond which it orders operations for memory
alone, so that collectives run by themselves: ``xla_gpu_memory_limit_slop_factor`` per cent of what
arguments and results leave of 80 % of the device's memory.
"""

from __future__ import annotations

import msgspec

SLOP_FLAG = "xla_gpu_memory_limit_slop_factor"
SLOP_FACTOR = 95
"""The flag's default, in per cent."""

_OF_DEVICE = 0.8


class OverlapLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's limit, and what a program needed where it bit.

    ``needed_bytes`` are temporaries. ``factor`` is the flag's value, ``full_factor`` that with
    which the limit is all memory of the device; None where no value helps. ``is_given_up``:
    collectives run by themselves; otherwise the program was scheduled with ``full_factor`` instead.
    """

    limit_bytes: int
    needed_bytes: int
    factor: int
    full_factor: int | None
    is_given_up: bool = True


def counted_bytes(device_bytes: int, held_bytes: int) -> float:
    """Return what arguments and results, the bytes held, leave of what the scheduler counts on."""
    return _OF_DEVICE * device_bytes - held_bytes


def full_factor(device_bytes: int, counted: float, *, above: int) -> int | None:
    """Return the factor with which the limit is all that is left of the device's memory.

    ``counted`` are those of `counted_bytes`. None where that is not ``above`` the present factor.

    >>> full_factor(80, counted_bytes(80, 0), above=SLOP_FACTOR)
    125
    """
    if counted <= 0:
        return None
    factor = int(100 * (1 + (1 - _OF_DEVICE) * device_bytes / counted) + 1e-9)
    return factor if factor > above else None
