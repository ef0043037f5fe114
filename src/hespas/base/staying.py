"""Whether work that has a process of its own elsewhere stays in this one.

A process that exists to be lost, and that does such work again and again, is a process of its own
already: it needn't start another, and start JAX in it, each time.
"""

from __future__ import annotations

from contextvars import ContextVar

_STAYS: ContextVar[bool] = ContextVar("stays", default=False)


def stay(*, stays: bool) -> None:
    """Let exports and partitions of this thread run here from now on, or no longer.

    JAX is then started on the CPU alone: no other use of it is possible in this process.

    >>> stay(stays=True)
    >>> is_staying()
    True
    >>> stay(stays=False)
    """
    _STAYS.set(stays)


def is_staying() -> bool:
    """Return whether exports and partitions run in this process."""
    return _STAYS.get()
