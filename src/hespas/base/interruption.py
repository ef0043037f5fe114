"""An interruption reaches the programs that other threads wait for.

Signals reach the main thread alone. A pool's threads get an event when they begin, and
a wait for a program in one of them ends once it is set.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import Event

_EVENT: ContextVar[Event | None] = ContextVar("interruption", default=None)


def end_programs_on(event: Event) -> None:
    """Let the programs that this thread runs from now on end when ``event`` is set.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> event = Event()
    >>> with ThreadPoolExecutor(1, initializer=end_programs_on, initargs=(event,)) as pool:
    ...     pool.submit(lambda: interruption() is event).result()
    True
    >>> interruption() is None
    True
    """
    _EVENT.set(event)


def interruption() -> Event | None:
    """Return the event that ends this thread's programs; None where there is none."""
    return _EVENT.get()
