"""The two networks: one where messages never share a link, and one where they queue for it.

Source of the rules: ASTRA-sim's analytical back ends, congestion-unaware and -aware.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from hespas.errors import SimulationError
from hespas.hardware.system import NetworkDimension, System, Topology
from hespas.simulate.events.clock import Act, Clock, check_not_at_start
from hespas.simulate.events.post import Carrier, Message
from hespas.simulate.network import Network, Route, bytes_per_ns, delay_ns, route
from hespas.units import PS_PER_NS, to_ns


def make_carrier(network: Network, system: System, clock: Clock) -> Carrier:
    """Return the network of a system.

    Raises `SimulationError` for congestion in a network that ASTRA-sim has none for: of
    several dimensions, or a ring of two, whose two links would be the same.
    """
    if network is Network.CONGESTION_UNAWARE:
        return FreeLinks(system, clock)
    if len(system.dimensions) != 1:
        message = f"congestion among {len(system.dimensions)} dimensions has no model here"
        hint = "use --network congestion-unaware, or a network of one dimension"
        raise SimulationError(message, location=system.name, hint=hint)
    dimension = system.dimensions[0]
    if dimension.topology is Topology.RING and dimension.npus_count == 2:
        message = "congestion in a ring of two devices has no model here"
        raise SimulationError(message, location=system.name, hint="use FullyConnected")
    return SharedLinks(dimension, clock)


class FreeLinks:
    """Each message has every link to itself: it takes `hespas.simulate.network.delay_ns`."""

    def __init__(self, system: System, clock: Clock) -> None:
        self._system = system
        self._clock = clock
        self._delays_ps: dict[tuple[Route, int], int] = {}

    def _delay_ps(self, source: int, target: int, size_bytes: int) -> int:
        way = route(self._system, source, target)
        known = self._delays_ps.get((way, size_bytes))
        if known is None:
            known = delay_ns(self._system, way, size_bytes) * PS_PER_NS
            self._delays_ps[way, size_bytes] = known
        return known

    def carry(self, message: Message, arrive: Act) -> None:
        """Have the message arrive after its delay."""
        box = message[0]
        delay_ps = box.route
        if delay_ps is None:
            delay_ps = box.route = self._delay_ps(box.source, box.target, box.size_bytes)
        if delay_ps == 0:
            check_not_at_start(self._clock.now_ps, delay_ps, "a message")
        self._clock.at(self._clock.now_ps + delay_ps, arrive, message)


class _Link:
    """One direction of a wire: whether something crosses it, and what waits."""

    __slots__ = ("is_busy", "waiting")

    def __init__(self) -> None:
        self.is_busy = False
        self.waiting: deque[_Trip] = deque()


class _Trip:
    """A message with what is left of its way."""

    __slots__ = ("arrive", "links", "message", "position")

    def __init__(self, message: Message, links: tuple[_Link, ...], arrive: Act) -> None:
        self.message = message
        self.links = links
        self.arrive = arrive
        self.position = 0


class SharedLinks:
    """Messages cross one link after the other, whole, and one at a time, in order of arrival.

    A link is taken for ``floor(size / bandwidth)``, and the message is at its other end after
    ``floor(latency + size / bandwidth)``. A ring goes the shorter way, up if both are equal; a
    switch is a node of its own between any two devices.
    """

    def __init__(self, dimension: NetworkDimension, clock: Clock) -> None:
        self._dimension = dimension
        self._rate = bytes_per_ns(dimension)
        self._latency_ns = to_ns(dimension.latency_s)
        self._clock = clock
        self._links: dict[tuple[int, int], _Link] = {}

    def carry(self, message: Message, arrive: Act) -> None:
        """Put the message on its first link, or in the queue for it."""
        box = message[0]
        if box.route is None:
            box.route = self._way(box.source, box.target)
        self._go(_Trip(message, box.route, arrive))

    def _way(self, source: int, target: int) -> tuple[_Link, ...]:
        stops = self._stops(source, target)
        return tuple([self._links.setdefault(pair, _Link()) for pair in pairwise(stops)])

    def _stops(self, source: int, target: int) -> list[int]:
        count = self._dimension.npus_count
        match self._dimension.topology:
            case Topology.FULLY_CONNECTED:
                return [source, target]
            case Topology.SWITCH:
                return [source, count, target]
            case Topology.RING:
                up = (target - source) % count
                step, hops = (1, up) if up <= count - up else (-1, count - up)
                return [(source + step * hop) % count for hop in range(hops + 1)]

    def _go(self, trip: _Trip) -> None:
        link = trip.links[trip.position]
        if link.is_busy:
            link.waiting.append(trip)
        else:
            self._cross(link, trip)

    def _cross(self, link: _Link, trip: _Trip) -> None:
        link.is_busy = True
        taken_ns = trip.message[0].size_bytes / self._rate
        now_ps = self._clock.now_ps
        check_not_at_start(now_ps, int(taken_ns), "a message")
        after_ns = int(self._latency_ns + taken_ns)
        self._clock.at(now_ps + after_ns * PS_PER_NS, self._cross_over, trip)
        self._clock.at(now_ps + int(taken_ns) * PS_PER_NS, self._free, link)

    def _cross_over(self, trip: _Trip) -> None:
        trip.position += 1
        if trip.position == len(trip.links):
            trip.arrive(trip.message)
        else:
            self._go(trip)

    def _free(self, link: _Link) -> None:
        link.is_busy = False
        if link.waiting:
            self._cross(link, link.waiting.popleft())
