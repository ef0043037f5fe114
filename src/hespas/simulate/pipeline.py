"""How the chunks of a collective pass through its phases.

Source: ASTRA-sim's stream scheduler. Every phase has a queue; a queue runs at most ``width``
chunks at once, in order of arrival, and all members of the collective do so alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase of one chunk: the queue that it waits in, and how long it then takes."""

    queue: int
    duration_ns: int


def pipeline_ns(chunks: Sequence[Sequence[Stage]], width: int) -> int:
    """Return when the last of the chunks, which are all there from the start, is through.

    >>> pipeline_ns([[Stage(0, 5), Stage(1, 3)]] * 3, width=1)
    18
    """
    return _Pipeline(chunks, width).run()


class _Pipeline:
    def __init__(self, chunks: Sequence[Sequence[Stage]], width: int) -> None:
        self._chunks = chunks
        self._width = width
        self._now_ns = 0
        self._position = [-1] * len(chunks)
        self._waiting: dict[int, deque[int]] = {}
        self._running: dict[int, int] = {}
        self._ends: list[tuple[int, int, int]] = []
        self._sequence = 0

    def run(self) -> int:
        for chunk in range(len(self._chunks)):
            self._proceed(chunk)
        while self._ends:
            self._now_ns, _, chunk = heappop(self._ends)
            self._proceed(chunk)
        return self._now_ns

    def _proceed(self, chunk: int) -> None:
        stages = self._chunks[chunk]
        position = self._position[chunk]
        self._position[chunk] = following = position + 1
        if following < len(stages):
            self._waiting.setdefault(stages[following].queue, deque()).append(chunk)
        if position >= 0:
            self._running[stages[position].queue] -= 1
            self._kick(stages[position].queue)
        if following < len(stages):
            self._kick(stages[following].queue)

    def _kick(self, queue: int) -> None:
        waiting = self._waiting.get(queue)
        while waiting and self._running.get(queue, 0) < self._width:
            chunk = waiting.popleft()
            self._running[queue] = self._running.get(queue, 0) + 1
            stage = self._chunks[chunk][self._position[chunk]]
            self._sequence += 1
            heappush(self._ends, (self._now_ns + stage.duration_ns, self._sequence, chunk))
