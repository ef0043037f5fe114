"""Refuse a simulation that would not fit in memory, before it starts."""

from __future__ import annotations

import os

from hespas.errors import SimulationError

_BYTES_PER_MESSAGE = 250  # of arrays, while classes are found
BYTES_PER_TASK = 600
"""Of a task, with its entry in a stream and its times."""
_GIB = 1 << 30


def available_bytes() -> int | None:
    """Return how much memory is free or can be freed; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - not a file
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def check_memory(
    count: int, what: str = "messages", *, bytes_each: int = _BYTES_PER_MESSAGE
) -> None:
    """Raise `SimulationError` if so many messages, or other things, exceed the memory."""
    needed = count * bytes_each
    available = available_bytes()
    if available is not None and needed > available:
        message = (
            f"the job has {count} {what} to keep track of at a time, which take about "
            f"{needed / _GIB:.1f} GiB of memory, and {available / _GIB:.1f} GiB are available"
        )
        hint = "make devices alike, use groups of fewer devices or another algorithm"
        raise SimulationError(message, hint=hint)
