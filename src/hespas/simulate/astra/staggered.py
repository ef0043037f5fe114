"""When members of collectives end that start at different times.

Source: ASTRA-sim's algorithms over a network without congestion, message by message. A member
posts the receive of a step when it sends its own message of that step; so with s the times of
sending and D the delay, a message is received at max(s of its sender + D, s of the receiver).
Times are arrays with a row for each of several rings of one shape, a column for each member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never

import numpy as np

from hespas.base.units import PS_PER_NS
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.closed_forms import (
    AlgorithmName,
    LogicalRing,
    halving_doubling_steps,
    message_bytes,
    ring_steps,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times: TypeAlias = NDArray[np.int64]

_AR, _RS = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER


def staggered_ends_ps(
    algorithm: AlgorithmName,
    kind: CollectiveKind,
    ring: LogicalRing,
    size_bytes: int,
    starts_ps: Times,
    *,
    direction: int,
) -> Times | None:
    """Return when each member ends, given when each starts; None where there is no closed form.

    That is, for direct all-reduces and double binary trees. ``direction`` is -1 for rings that
    turn backwards. No member ends before all of its ring have started.
    """
    match algorithm:
        case "ring":
            return _ring(kind, ring, size_bytes, starts_ps, direction)
        case "direct":
            return None if kind is _AR else _direct(kind, ring, size_bytes, starts_ps)
        case "halving-doubling":
            return _halving_doubling(kind, ring, size_bytes, starts_ps)
        case "double-binary-tree":
            return None
        case _:
            assert_never(algorithm)


def _ring(
    kind: CollectiveKind, ring: LogicalRing, size_bytes: int, starts_ps: Times, direction: int
) -> Times:
    """Return the times after the last of the steps; the first n - 1 messages are reduced."""
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    wait_ps = ring.endpoint_ns * PS_PER_NS
    reduce_ps = ring.reduce_ns(message) * PS_PER_NS if kind in (_AR, _RS) else 0
    delay_ps = ring.delay_ns(1, message) * PS_PER_NS
    sent = starts_ps + wait_ps
    for step in range(1, ring_steps(kind, n) + 1):
        after_ps = wait_ps + (reduce_ps if step < n else 0)
        sent = np.maximum(np.roll(sent, direction, axis=1) + delay_ps, sent) + after_ps
    return sent


def _direct(kind: CollectiveKind, ring: LogicalRing, size_bytes: int, starts_ps: Times) -> Times:
    """Return the times when messages from all others are through; they are sent at once."""
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    wait_ps = ring.endpoint_ns * PS_PER_NS
    reduce_ps = ring.reduce_ns(message) * PS_PER_NS if kind is _RS else 0
    sent = starts_ps + wait_ps
    received = sent
    for distance in range(1, n):
        delay_ps = ring.delay_ns(distance, message) * PS_PER_NS
        received = np.maximum(received, np.roll(sent, distance, axis=1) + delay_ps)
    return received + wait_ps + reduce_ps


def _halving_doubling(
    kind: CollectiveKind, ring: LogicalRing, size_bytes: int, starts_ps: Times
) -> Times:
    """Return the times after the last exchange with a partner."""
    steps = halving_doubling_steps(kind, ring.size, size_bytes)
    levels = ring.size.bit_length() - 1
    wait_ps = ring.endpoint_ns * PS_PER_NS
    positions = np.arange(ring.size)
    sent = starts_ps + wait_ps
    for number, (distance, message) in enumerate(steps, 1):
        delay_ps = ring.delay_ns(distance, message) * PS_PER_NS
        after_ps = wait_ps
        if kind in (_AR, _RS) and number < levels:
            after_ps += ring.reduce_ns(steps[number][1]) * PS_PER_NS
        sent = np.maximum(sent[:, positions ^ distance] + delay_ps, sent) + after_ps
    return sent
