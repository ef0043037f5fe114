"""Direct: everyone sends to everyone, to some or all of the others at a time.

Source: ASTRA-sim's all-to-all algorithm, which it runs the other collectives with, too.
"""

from __future__ import annotations

from collections import deque

from hespas.hardware.system import CollectiveKind
from hespas.simulate.algorithms import message_bytes
from hespas.simulate.events.post import Box
from hespas.simulate.events.seat import Seat


class Direct:
    """Of the messages handed in, message k is for the ``k mod peers``-th next member.

    Each makes a token when it is through the endpoint, and a token allows to send. An
    all-reduce does everything twice; its second half begins when all of the first has come.
    """

    __slots__ = (
        "_boxes",
        "_handed_in",
        "_is_all_reduce",
        "_is_odd_round",
        "_left",
        "_peers",
        "_plain_left",
        "_queue",
        "_received",
        "_reduce_ps",
        "_reduced_left",
        "_seat",
        "_size_bytes",
        "_tokens",
        "_window",
    )

    def __init__(self, seat: Seat, window: int | None) -> None:
        self._seat = seat
        self._peers = len(seat.members) - 1
        self._window = min(window or self._peers, self._peers)
        self._is_all_reduce = seat.kind is CollectiveKind.ALL_REDUCE
        self._size_bytes = message_bytes(seat.kind, len(seat.members), seat.size_bytes)
        self._reduce_ps = seat.reduce_ps(self._size_bytes)
        self._left = self._peers * (2 if self._is_all_reduce else 1)
        self._queue: deque[int] = deque()
        # The second half of an all-reduce goes through the boxes of the first again.
        self._boxes: dict[int, tuple[Box, Box]] = {}
        self._handed_in = self._received = self._tokens = 0
        self._plain_left = self._reduced_left = 0
        self._is_odd_round = False

    def start(self) -> None:
        """Hand in as many messages as the window allows."""
        for _ in range(self._window):
            self._hand_in()

    def _hand_in(self) -> None:
        self._queue.append(self._handed_in % self._peers + 1)
        self._handed_in += 1
        reduce_ps = self._reduce_ps if self._is_reduced() else None
        self._seat.wait(self._take_token, reduce_ps=reduce_ps)

    def _is_reduced(self) -> bool:
        if self._plain_left == self._reduced_left == 0:
            each = self._peers if self._seat.is_subgroup else 1
            self._plain_left, self._reduced_left = self._window, each * self._window
            self._is_odd_round = not self._is_odd_round
        if self._plain_left:
            self._plain_left -= 1
            return False
        self._reduced_left -= 1
        is_scatter = self._seat.kind is CollectiveKind.REDUCE_SCATTER
        return is_scatter or (self._is_all_reduce and self._is_odd_round)

    def _take_token(self, _: object) -> None:
        self._tokens += 1
        if not self._is_all_reduce or self._left > self._peers:
            self._send()
        elif self._received < self._peers:
            return
        else:
            sent = 0
            while sent < self._window and self._send():
                sent += 1
        if self._left == 0 and self._tokens == self._window:
            self._seat.done()

    def _send(self) -> bool:
        """Send the next message, and return whether there was one that might go."""
        if not (self._left and self._tokens and self._queue):
            return False
        self._left -= 1
        self._tokens -= 1
        outgoing, incoming = self._next_boxes()
        post = self._seat.post
        post.send(outgoing)
        post.receive(incoming, self._receive)
        return True

    def _next_boxes(self) -> tuple[Box, Box]:
        distance = self._queue.popleft()
        known = self._boxes.pop(distance, None)
        if known is None:
            known = self._seat.boxes(distance, self._size_bytes)
            if self._is_all_reduce:
                self._boxes[distance] = known
        return known

    def _receive(self, _: object) -> None:
        self._received += 1
        self._hand_in()
