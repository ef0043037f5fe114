"""Rings and relays of messages in a group's network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.plan import AlgorithmName, Route
from hespas.simulate.kernel import Action, Kernel

if TYPE_CHECKING:
    from hespas.simulate.astra.messages import Message

_AG, _RS = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
_AR = CollectiveKind.ALL_REDUCE


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group's size, and its routes by algorithm and distance.

    A route is None if members at that distance have unequal routes.
    """

    size: int
    routes: tuple[tuple[AlgorithmName, int, Route | None], ...]


@frozen
class LogicalRing:
    """A logical ring of ``size`` members with equal distances.

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
    """A duration, and the last wait's distance from the end."""

    total_ns: int
    last_wait_ns: int


def span(
    algorithm: AlgorithmName,
    window: int | None,
    kind: CollectiveKind,
    ring: LogicalRing,
    size_bytes: int,
) -> Span | None:
    """Return a collective's duration, if it has a closed form.

    The double binary tree has none. ``window`` limits how many peers a direct collective serves at
    once.
    """
    match algorithm:
        case "ring" | "halving-doubling":
            return _relay(relay_rounds(algorithm, kind, ring.size, size_bytes), ring)
        case "direct":
            return _direct(kind, ring, size_bytes, min(window or ring.size, ring.size - 1))
        case "double-binary-tree":
            return None


def message_bytes(kind: CollectiveKind, members: int, size_bytes: int) -> int:
    """Return a ring's or direct collective's message size."""
    return size_bytes if kind is _AG else size_bytes // members


class RelayRounds(NamedTuple):
    """Sequential messages to and from members at a distance.

    There are ``repeats`` of them. With ``is_exchange`` the peer is the member whose position
    differs in the bit ``distance``. After each message ``reduced_bytes`` are reduced, unless None.
    """

    distance: int
    is_exchange: bool
    size_bytes: int
    repeats: int
    reduced_bytes: int | None


@cache
def relay_rounds(
    algorithm: Literal["ring", "halving-doubling"],
    kind: CollectiveKind,
    members: int,
    size_bytes: int,
) -> tuple[RelayRounds, ...]:
    """Return each member's rounds in a ring or halving-doubling.

    They come from its schedule. Raises `SimulationError` for halving-doubling among a number that
    isn't a power of two, and for an all-to-all by it.
    """
    # Imported here, so runs without collectives don't pay for it.
    from hespas.collectives.algorithms import ALGORITHMS  # noqa: PLC0415
    from hespas.collectives.schedule import Operation  # noqa: PLC0415

    is_exchange = algorithm == "halving-doubling"
    if is_exchange and members & members - 1:
        raise SimulationError(f"halvingDoubling among {members}, which is not a power of two")
    if is_exchange and kind is CollectiveKind.ALL_TO_ALL:
        raise SimulationError("there is no all-to-all by halvingDoubling")
    schedule = ALGORITHMS[algorithm].schedule(kind, members)
    result: list[RelayRounds] = []
    for rounds, following in zip(schedule.rounds, (*schedule.rounds[1:], None), strict=True):
        message = schedule.message_bytes(rounds, size_bytes)
        reduced = message if rounds.operation is Operation.REDUCE else None
        if reduced is not None and is_exchange:
            # ASTRA-sim uses the size of the next halving's message; after the last one, nothing.
            is_last = following is None or following.operation is not rounds.operation
            reduced = None if is_last else message // 2
        result.append(
            RelayRounds(rounds.pattern.first, is_exchange, message, rounds.count, reduced)
        )
    return tuple(result)


def _relay(rounds: Iterable[RelayRounds], ring: LogicalRing) -> Span:
    """Return the sum of E and all messages' D, E, R."""
    total_ns = last_wait_ns = ring.endpoint_ns
    for item in rounds:
        reduce_ns = 0 if item.reduced_bytes is None else ring.reduce_ns(item.reduced_bytes)
        message_ns = ring.delay_ns(item.distance, item.size_bytes) + ring.endpoint_ns + reduce_ns
        total_ns += item.repeats * message_ns
        last_wait_ns = ring.endpoint_ns if item.reduced_bytes is None else reduce_ns
    return Span(total_ns, last_wait_ns)


def _direct(kind: CollectiveKind, ring: LogicalRing, size_bytes: int, window: int) -> Span:
    """Return the duration of serving all peers at once.

    It is 2E + D, and R per reduction. An all-reduce takes two such halves: 3E + 2D. In a group
    smaller than the system, of more than two members, its second half pays R again. D is the
    farthest peer's. There is no such formula for a smaller window, nor for an all-reduce with peers
    at several distances, whose halves overlap.
    """
    n, message = ring.size, message_bytes(kind, ring.size, size_bytes)
    delays_ns = {ring.delay_ns(distance, message) for distance in range(1, n)}
    reduce_ns = ring.reduce_ns(message)
    if window < n - 1 or (kind is _AR and len(delays_ns) > 1):
        return Span(_one_member_ns(kind, ring, size_bytes, window), ring.endpoint_ns)
    rounds = 2 if kind is _AR else 1
    reduces_twice = kind is _AR and ring.is_subgroup and n > 2
    reductions = {_AR: 2 if reduces_twice else 1, _RS: 1}.get(kind, 0)
    total_ns = (rounds + 1) * ring.endpoint_ns + rounds * max(delays_ns) + reductions * reduce_ns
    return Span(total_ns, reduce_ns if kind is _RS or reduces_twice else ring.endpoint_ns)


def _one_member_ns(kind: CollectiveKind, ring: LogicalRing, size_bytes: int, window: int) -> int:
    """Simulate one member of a direct collective, message by message.

    All members act alike at equal times: when one sends to a distance, the member at that distance
    before it sends to it.
    """
    # Imported here, because few runs need the messages of collectives.
    from hespas.simulate.astra.algorithms import Direct, PhaseMember  # noqa: PLC0415
    from hespas.simulate.astra.messages import Transport  # noqa: PLC0415

    kernel = Kernel()

    def mirror(message: Message, arrive: Action) -> None:
        """Deliver the corresponding message from the other side."""
        sent, *_ = message
        delay_ps = ring.delay_ns(sent.target, sent.size_bytes) * PS_PER_NS
        twin = transport.mailbox(sent.tag, -sent.target % ring.size, 0, sent.size_bytes)
        kernel.after(delay_ps, arrive, (twin, None, None))

    transport = Transport(kernel, mirror)
    member = PhaseMember(
        actor=kernel,
        transport=transport,
        mailboxes=transport.mailboxes_of_tag(""),
        tag="",
        members=range(ring.size),
        position=0,
        direction=1,
        kind=kind,
        size_bytes=size_bytes,
        endpoint_ps=ring.endpoint_ns * PS_PER_NS,
        reduce_ps=lambda count: ring.reduce_ns(count) * PS_PER_NS,
        is_subgroup=ring.is_subgroup,
        tree=0,
        done=kernel.stop,
    )
    Direct(member, window).start()
    kernel.run()
    return kernel.now_ps // PS_PER_NS
