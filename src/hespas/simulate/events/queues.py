"""A device's queues for chunks, which its collectives take turns in.

Source: ASTRA-sim's stream scheduler and its queue levels. A queue lets a number of chunks run at
once, in order of arrival. Which queue of several a chunk takes goes on from collective to
collective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Queues:
    """Queues that run ``width`` chunks each."""

    __slots__ = ("_allocated", "_running", "_waiting", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._waiting: dict[int, deque[Callable[[], None]]] = {}
        self._running: dict[int, int] = {}
        self._allocated: dict[range, int] = {}

    def allocate(self, pool: range, count: int) -> int:
        """Return the turn, in some queues, of the first of ``count`` chunks that now come."""
        first = self._allocated.get(pool, 0)
        self._allocated[pool] = (first + count) % len(pool)
        return first

    def enter(self, queue: int, start: Callable[[], None]) -> None:
        """Put a chunk into a queue: ``start`` is called, from `kick`, when it may run."""
        self._waiting.setdefault(queue, deque()).append(start)

    def kick(self, queue: int) -> None:
        """Start what may run."""
        waiting = self._waiting.get(queue)
        while waiting and self._running.get(queue, 0) < self._width:
            self._running[queue] = self._running.get(queue, 0) + 1
            waiting.popleft()()

    def leave(self, queue: int) -> None:
        """Note that a chunk that ran in a queue is through, and start what then may run."""
        self._running[queue] -= 1
        self.kick(queue)
