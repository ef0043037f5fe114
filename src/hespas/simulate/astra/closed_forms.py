"""How long one collective takes in one logical ring whose members start together.

Source of every formula: ASTRA-sim's collective algorithms over a network without congestion,
where n members each wait E at an endpoint, D(m) for a message of m bytes, R(m) for a reduction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.program.collectives import CollectiveKind
from hespas.simulate.kernel import Kernel

if TYPE_CHECKING:
    from hespas.collectives.schedule import Schedule


_AG, _RS = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_AR, _A2A = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL


AlgorithmName: TypeAlias = Literal["ring", "direct", "halving-doubling", "double-binary-tree"]
"""The algorithms of `hespas.collectives.algorithms.ALGORITHMS` that ASTRA-sim has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRing:
    """A logical ring of ``size`` members, all of which see the same distances.

    ``delay_ns`` gives D for (distance in the ring, bytes), ``reduce_ns`` R for bytes.
    ``is_subgroup`` marks a group smaller than the system, which ASTRA-sim treats differently.
    """

    size: int
    endpoint_ns: int
    delay_ns: Callable[[int, int], int]
    reduce_ns: Callable[[int], int]
    is_subgroup: bool


@dataclass(frozen=True, slots=True)
class Span:
    """How long something takes, and how long before its end the last wait begins."""

    total_ns: int
    last_wait_ns: int


def output_bytes(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return how many bytes a member holds after a collective that it began with ``size_bytes``.

    >>> output_bytes(CollectiveKind.REDUCE_SCATTER, 4, 1000)
    250
    """
    match kind:
        case CollectiveKind.REDUCE_SCATTER:
            return size_bytes // members
        case CollectiveKind.ALL_GATHER:
            return size_bytes * members
        case _:
            return size_bytes


def ring_bytes_sent(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return the bytes that each member of a ring sends.

    An all-reduce sends ``2 (n - 1) / n`` of its buffer, the others as many messages as steps.

    >>> ring_bytes_sent(CollectiveKind.ALL_REDUCE, 4, 1000)
    1500
    """
    return ring_steps(kind, members) * message_bytes(kind, members, size_bytes)


def span(
    algorithm: AlgorithmName,
    window: int | None,
    kind: CollectiveKind,
    ring: LogicalRing,
    size_bytes: int,
) -> Span | None:
    """Return how long ``kind`` takes; None for the double binary tree, which has no closed form.

    ``window`` limits how many peers a direct collective serves at once. Raises `SimulationError`
    for halving-doubling among a number that isn't a power of two, and for a halving-doubling
    all-to-all, which doesn't exist.
    """
    match algorithm:
        case "ring":
            return _ring(kind, ring, size_bytes)
        case "direct":
            return _direct(kind, ring, size_bytes, min(window or ring.size, ring.size - 1))
        case "halving-doubling":
            return _halving_doubling(kind, ring, size_bytes)
        case "double-binary-tree":
            return None
        case _:
            assert_never(algorithm)


def message_bytes(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return the size of each message of a ring or a direct collective."""
    return size_bytes if kind is _AG else size_bytes // members


def ring_steps(kind: CollectiveKind, members: int) -> int:
    """Return how many messages each member of a ring sends."""
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return 2 * (members - 1)
        case CollectiveKind.REDUCE_SCATTER | CollectiveKind.ALL_GATHER:
            return members - 1
        case _:
            # All-to-all: data for the k-th neighbour is handed on k times, 1 + 2 + ... + (n - 1).
            return members * (members - 1) // 2


def _ring(kind: CollectiveKind, ring: LogicalRing, size_bytes: int) -> Span:
    """Return (steps + 1) E + steps D, and for a reduction (n - 1) R."""
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    steps = ring_steps(kind, n)
    reduce_ns = ring.reduce_ns(message)
    total_ns = (steps + 1) * ring.endpoint_ns + steps * ring.delay_ns(1, message)
    if kind in (_AR, _RS):
        total_ns += (n - 1) * reduce_ns
    return Span(total_ns, reduce_ns if kind is _RS else ring.endpoint_ns)


def _direct(kind: CollectiveKind, ring: LogicalRing, size_bytes: int, window: int) -> Span:
    """Return the time to serve all peers at once: 2E + D, and R per reduction.

    An all-reduce does so twice: 3E + 2D. In a group smaller than the system, of more than two
    members, its second half pays R again. D is that of the farthest peer. There is no such
    formula for a smaller window, nor for an all-reduce with peers at several distances, whose
    halves overlap.
    """
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    delays_ns = tuple([ring.delay_ns(distance, message) for distance in range(1, n)])
    reduce_ns = ring.reduce_ns(message)
    if window < n - 1 or (kind is _AR and len(set(delays_ns)) > 1):
        return _rotation(kind, ring, window, delays_ns, reduce_ns)
    rounds = 2 if kind is _AR else 1
    twice = kind is _AR and ring.is_subgroup and n > 2
    reductions = {_AR: 2 if twice else 1, _RS: 1}.get(kind, 0)
    total_ns = (rounds + 1) * ring.endpoint_ns + rounds * max(delays_ns) + reductions * reduce_ns
    return Span(total_ns, reduce_ns if kind is _RS or twice else ring.endpoint_ns)


def _rotation(
    kind: CollectiveKind,
    ring: LogicalRing,
    window: int,
    delays_ns: tuple[int, ...],
    reduce_ns: int,
) -> Span:
    peers = len(delays_ns)
    rotation = Rotation(
        window=window,
        peers=peers,
        steps=2 * peers if kind is _AR else peers,
        is_all_reduce=kind is _AR,
        is_reduce_scatter=kind is _RS,
        later_per_round=peers * window if ring.is_subgroup else window,
        endpoint_ns=ring.endpoint_ns,
        reduce_ns=reduce_ns,
        delays_ns=delays_ns,
    )
    return Span(rotation_ns(rotation), ring.endpoint_ns)


def halving_doubling_steps(
    kind: CollectiveKind, members: int, size_bytes: int
) -> list[tuple[int, int]]:
    """Return the (distance to the partner, bytes) of each message of halving-doubling.

    Raises `SimulationError` among a number that isn't a power of two, and for an all-to-all.

    >>> halving_doubling_steps(CollectiveKind.ALL_GATHER, 4, 100)
    [(2, 100), (1, 200)]
    """
    schedule = halving_doubling_schedule(kind, members)
    return [
        (rounds.pattern.first, schedule.message_bytes(rounds, size_bytes))
        for rounds in schedule.rounds
    ]


def halving_doubling_schedule(kind: CollectiveKind, members: int) -> Schedule:
    """Return the schedule of halving-doubling; raises as `halving_doubling_steps` does."""
    # Most runs do without, and save the import.
    from hespas.collectives.algorithms import HALVING_DOUBLING  # noqa: PLC0415

    if members & members - 1:
        raise SimulationError(f"halvingDoubling among {members}, which is not a power of two")
    if kind is _A2A:
        raise SimulationError("there is no all-to-all by halvingDoubling")
    return HALVING_DOUBLING.schedule(kind, members)


def _halving_doubling(kind: CollectiveKind, ring: LogicalRing, size_bytes: int) -> Span:
    """Return (steps + 1) E and the sum of D over messages that halve, double, or both.

    A reduction adds R of every message of the first half but the first.
    """
    steps = halving_doubling_steps(kind, ring.size, size_bytes)
    levels = ring.size.bit_length() - 1
    total_ns = (len(steps) + 1) * ring.endpoint_ns
    total_ns += sum(ring.delay_ns(distance, message) for distance, message in steps)
    if kind is not _AG:
        total_ns += sum(ring.reduce_ns(message) for _, message in steps[1:levels])
    return Span(total_ns, ring.endpoint_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A direct collective that serves a window of peers at a time, at most ``window`` messages.

    All members do the same at the same times, so one stands for all: what it sends at a distance
    arrives when what it awaits from that distance does. Of ``steps`` messages, message k goes to
    the ``k mod peers``-th next member and takes ``delays_ns`` of that one. Of the messages handed
    in, ``window`` in each round are never reduced; the next ``later_per_round`` are, in a
    reduce-scatter always, in an all-reduce in odd rounds.
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
    return _RotatingMember(rotation).run()


class _RotatingMember:
    """One member: tokens allow it to send, and every message handed in makes one."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._kernel = Kernel()
        self._queue: deque[int] = deque()
        self._handed_in = self._received = self._tokens = 0
        self._left = rotation.steps
        self._first_left = self._later_left = 0
        self._is_odd_round = False

    def run(self) -> int:
        for _ in range(self._rotation.window):
            self._hand_in()
        self._kernel.run()
        return self._kernel.now_ps // PS_PER_NS

    def _hand_in(self) -> None:
        rotation = self._rotation
        reduce_ns = rotation.reduce_ns if self._is_reduced() else 0
        self._queue.append(self._handed_in % rotation.peers)
        self._handed_in += 1
        self._kernel.after((rotation.endpoint_ns + reduce_ns) * PS_PER_NS, self._take_token)

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

    def _take_token(self, _: object) -> None:
        rotation = self._rotation
        self._tokens += 1
        if not rotation.is_all_reduce or self._left > rotation.peers:
            self._send()
        elif self._received >= rotation.peers:
            # The second half begins only when all of the first has come.
            for _ in range(rotation.window):
                self._send()
        if self._left == 0 and self._tokens == rotation.window:
            self._kernel.stop()

    def _send(self) -> None:
        if not (self._left and self._tokens and self._queue):
            return
        self._left -= 1
        self._tokens -= 1
        delay_ns = self._rotation.delays_ns[self._queue.popleft()]
        self._kernel.after(delay_ns * PS_PER_NS, self._receive)

    def _receive(self, _: object) -> None:
        self._received += 1
        self._hand_in()
