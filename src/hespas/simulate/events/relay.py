"""Ring and halving-doubling: one message at a time, the next when the last has come.

Source: ASTRA-sim's algorithms. Each message is handed in, waits at the endpoint, and makes a
token, which allows to send; each one that comes is handed in again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hespas.hardware.system import CollectiveKind
from hespas.simulate.algorithms import halving_doubling_steps, message_bytes, ring_steps
from hespas.simulate.events.post import Box
from hespas.simulate.events.seat import Running, Seat

_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


def ring(seat: Seat) -> Running:
    """Return the ring algorithm: every message goes to the next member."""
    n = len(seat.members)
    size_bytes = message_bytes(seat.kind, n, seat.size_bytes)
    reductions: list[int] = []
    if seat.kind in _REDUCING:
        reductions = [seat.reduce_ps(size_bytes)] * (n - 1)
    return _Relay(seat, [seat.boxes(1, size_bytes)], ring_steps(seat.kind, n), reductions)


def halving_doubling(seat: Seat) -> Running:
    """Return halving-doubling: the k-th message goes across 2**k members.

    Raises `SimulationError` among a number that isn't a power of two, and for an all-to-all.
    """
    steps = halving_doubling_steps(seat.kind, len(seat.members), seat.size_bytes)
    pairs = [_partner_boxes(seat, distance, size_bytes) for distance, size_bytes in steps]
    levels = len(seat.members).bit_length() - 1
    reductions: list[int] = []
    if seat.kind in _REDUCING:
        reductions = [seat.reduce_ps(size_bytes) for _, size_bytes in steps[1:levels]]
    return _Relay(seat, pairs, len(steps), reductions)


def _partner_boxes(seat: Seat, distance: int, size_bytes: int) -> tuple[Box, Box]:
    away = distance if seat.position // distance % 2 == 0 else -distance
    return seat.box_to(away, size_bytes), seat.box_from(away, size_bytes)


class _Relay:
    """``steps`` messages through ``pairs`` in turn; after the first, some are reduced."""

    __slots__ = ("_in_hand", "_left", "_next", "_pairs", "_reductions", "_seat", "_tokens")

    def __init__(
        self, seat: Seat, pairs: Sequence[tuple[Box, Box]], steps: int, reductions: Sequence[int]
    ) -> None:
        self._seat = seat
        self._pairs = pairs
        self._left = steps
        self._reductions = iter((None, *reductions))
        self._next = self._tokens = self._in_hand = 0

    def start(self) -> None:
        self._hand_in(None)

    def _hand_in(self, _: object) -> None:
        self._in_hand += 1
        self._seat.wait(self._take_token, reduce_ps=next(self._reductions, None))

    def _take_token(self, _: object) -> None:
        self._tokens += 1
        if self._left and self._in_hand:
            self._send()
        if self._left == 0 and self._tokens == 1:
            self._seat.done()

    def _send(self) -> None:
        outgoing, incoming = self._pairs[self._next % len(self._pairs)]
        self._next += 1
        self._left -= 1
        self._tokens -= 1
        self._in_hand -= 1
        post = self._seat.post
        post.send(outgoing)
        post.receive(incoming, self._hand_in)
