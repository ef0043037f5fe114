"""Direct collectives that serve a window of peers at a time.

All members do the same at the same times, so one stands for all: what it sends at a distance
arrives when what it awaits from that distance does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A direct collective: ``steps`` messages, at most ``window`` under way.

    Message k goes to the ``k mod peers``-th next member and takes ``delays_ns`` of that one.
    Of the messages handed in, ``window`` in each round are never reduced; the next
    ``later_per_round`` are, in a reduce-scatter always, in an all-reduce in odd rounds.
    """

    window: int
    peers: int
    steps: int
    is_all_reduce: bool
    is_reduce_scatter: bool
    later_per_round: int
    endpoint_ns: int
    reduce_ns: int
    delays_ns: tuple[int, ...]


def rotation_ns(rotation: Rotation) -> int:
    """Return the time from the start until all messages are sent, received and handed in."""
    return _Member(rotation).run()


class _Member:
    """One member: tokens allow it to send, and every message handed in makes one."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._now_ns = 0
        self._events: list[tuple[int, int, bool]] = []
        self._sequence = 0
        self._queue: deque[int] = deque()
        self._handed_in = self._received = self._tokens = 0
        self._left = rotation.steps
        self._first_left = self._later_left = 0
        self._is_odd_round = False

    def run(self) -> int:
        for _ in range(self._rotation.window):
            self._hand_in()
        while self._events:
            self._now_ns, _, is_arrival = heappop(self._events)
            if is_arrival:
                self._received += 1
                self._hand_in()
            else:
                self._tokens += 1
                self._send_what_tokens_allow()
            if self._left == 0 and self._tokens == self._rotation.window:
                break
        return self._now_ns

    def _after(self, wait_ns: int, *, is_arrival: bool) -> None:
        self._sequence += 1
        heappush(self._events, (self._now_ns + wait_ns, self._sequence, is_arrival))

    def _hand_in(self) -> None:
        rotation = self._rotation
        reduce_ns = rotation.reduce_ns if self._is_reduced() else 0
        self._queue.append(self._handed_in % rotation.peers)
        self._handed_in += 1
        self._after(rotation.endpoint_ns + reduce_ns, is_arrival=False)

    def _is_reduced(self) -> bool:
        rotation = self._rotation
        if self._first_left == self._later_left == 0:
            self._first_left, self._later_left = rotation.window, rotation.later_per_round
            self._is_odd_round = not self._is_odd_round
        if self._first_left:
            self._first_left -= 1
            return False
        self._later_left -= 1
        return rotation.is_reduce_scatter or (rotation.is_all_reduce and self._is_odd_round)

    def _send_what_tokens_allow(self) -> None:
        rotation = self._rotation
        if not rotation.is_all_reduce or self._left > rotation.peers:
            self._send()
        elif self._received >= rotation.peers:
            # The second half begins only when all of the first has come.
            for _ in range(rotation.window):
                self._send()

    def _send(self) -> None:
        if not (self._left and self._tokens and self._queue):
            return
        self._left -= 1
        self._tokens -= 1
        self._after(self._rotation.delays_ns[self._queue.popleft()], is_arrival=True)
