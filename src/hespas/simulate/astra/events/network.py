"""Messages: what is sent, what is awaited, which is for which, and the links that they cross.

Source of the rules: ASTRA-sim's analytical back ends, congestion-unaware and -aware.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import pairwise
from typing import Any, Protocol

from hespas.errors import SimulationError
from hespas.hardware.system import NetworkDimension, System, Topology
from hespas.simulate.kernel import Action, Kernel
from hespas.simulate.network import Network, Route, bytes_per_ns, delay_ns, route
from hespas.units import PS_PER_NS, to_ns

_CONTROL_BYTES = 8192
_Waiting = tuple[Action, Any]


class Box:
    """Messages of equal source, target, tag and size, which arrive in the order of sending.

    ``route`` is the network's own note about the way.
    """

    __slots__ = ("arrived", "receivers", "route", "size_bytes", "source", "tag", "target")

    def __init__(self, tag: Hashable, source: int, target: int, size_bytes: int) -> None:
        self.tag = tag
        self.source = source
        self.target = target
        self.size_bytes = size_bytes
        self.arrived = 0
        self.receivers: list[_Waiting] | None = None
        self.route: Any = None


Boxes = dict[tuple[int, int, int], Box]
"""The boxes of one tag, by source, target and size."""

Message = tuple[Box, Action | None, Any]
"""A box, and what the sender has called, with its argument, when the message arrives."""


class Carrier(Protocol):
    """A network: it has ``arrive(message)`` called when the message is at its target."""

    def carry(self, message: Message, arrive: Action) -> None:
        """Send a message on its way now."""
        ...


class Post:
    """Hands messages to a network, and to those who await them."""

    def __init__(self, clock: Kernel, carrier: Carrier) -> None:
        self._clock = clock
        self._carrier = carrier
        self._boxes: dict[Hashable, Boxes] = {}

    def box(self, tag: Hashable, source: int, target: int, size_bytes: int) -> Box:
        """Return the box of these ends, tag and size."""
        boxes = self._boxes.setdefault(tag, {})
        key = (source, target, size_bytes)
        box = boxes.get(key)
        if box is None:
            box = boxes[key] = Box(tag, source, target, size_bytes)
        return box

    def boxes(self, tag: Hashable) -> Boxes:
        """Return the boxes of a tag that `box` has made."""
        return self._boxes.setdefault(tag, {})

    def forget(self, tag: Hashable) -> None:
        """Drop the boxes of a tag, whose messages have all been received."""
        self._boxes.pop(tag, None)
        self._boxes.pop(("control", tag), None)

    def send(self, box: Box, act: Action | None = None, argument: object = None) -> None:
        """Send a message; have ``act(argument)`` called when it arrives."""
        self._carrier.carry((box, act, argument), self._arrive)

    def receive(self, box: Box, act: Action, argument: object = None) -> None:
        """Have ``act(argument)`` called when the next message of the box has arrived."""
        if box.arrived:
            box.arrived -= 1
            self._clock.at(self._clock.now_ps, act, argument)
        elif box.receivers is None:
            box.receivers = [(act, argument)]
        else:
            box.receivers.append((act, argument))

    def _arrive(self, message: Message) -> None:
        box, act, argument = message
        receiver: _Waiting | None = None
        if box.receivers:
            receiver = box.receivers.pop(0)
            if not box.receivers:
                box.receivers = None
        if receiver is None:
            box.arrived += 1
        if act is not None:
            act(argument)
        if receiver is not None:
            receiver[0](receiver[1])


class RendezvousPost(Post):
    """A post where a message leaves only when a control message from its receiver has come.

    The receive itself is posted when the control message has been delivered.
    """

    def send(self, box: Box, act: Action | None = None, argument: object = None) -> None:
        """Await the control message, then send."""
        super().receive(self._control(box), self._send_now, (box, act, argument))

    def receive(self, box: Box, act: Action, argument: object = None) -> None:
        """Send the control message, then receive."""
        super().send(self._control(box), self._receive_now, (box, act, argument))

    def _send_now(self, message: Message) -> None:
        super().send(*message)

    def _receive_now(self, waiting: tuple[Box, Action, Any]) -> None:
        super().receive(*waiting)

    def _control(self, box: Box) -> Box:
        return self.box(("control", box.tag), box.target, box.source, _CONTROL_BYTES)


def make_carrier(network: Network, system: System, clock: Kernel) -> Carrier:
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

    def __init__(self, system: System, clock: Kernel) -> None:
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

    def carry(self, message: Message, arrive: Action) -> None:
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

    def __init__(self, message: Message, links: tuple[_Link, ...], arrive: Action) -> None:
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

    def __init__(self, dimension: NetworkDimension, clock: Kernel) -> None:
        self._dimension = dimension
        self._rate = bytes_per_ns(dimension)
        self._latency_ns = to_ns(dimension.latency_s)
        self._clock = clock
        self._links: dict[tuple[int, int], _Link] = {}

    def carry(self, message: Message, arrive: Action) -> None:
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


def check_not_at_start(now_ps: int, wait_ps: int, what: str) -> None:
    """Raise `SimulationError` for communication that takes no time at time 0.

    ASTRA-sim's event queue aborts there; at any later time it goes on.
    """
    if now_ps == 0 and wait_ps == 0:
        message = f"{what} takes no time at the very start, where ASTRA-sim aborts"
        raise SimulationError(message, hint="give a latency or an endpoint-delay above 0")
