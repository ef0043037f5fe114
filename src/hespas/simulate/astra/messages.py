"""Match messages with receives and carry them over links.

Source of the rules: ASTRA-sim's analytical back ends, congestion-unaware and -aware.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hespas.base.units import PS_PER_NS, to_gb_per_s, to_ns
from hespas.errors import SimulationError, option
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System
from hespas.simulate.astra.plan import Route, bytes_per_ns, delay_ns, route
from hespas.simulate.kernel import Action, Clock, Kernel, Mailbox, Mailboxes
from hespas.simulate.options import ContentionModel

_CONTROL_BYTES = 8192
Waiting = tuple[Action, Any]
"""The action, with its argument, for the arrival of an endpoint's message."""
Message = tuple[Mailbox[Any], Action | None, Any]
"""A mailbox, and the sender's action, with its argument, for the arrival."""
Carry = Callable[[Message, Action], None]
"""Sends a message now; the action is called with it on arrival."""


class Transport:
    """Hands messages to links, and to waiting receives."""

    def __init__(self, kernel: Kernel, carry: Carry) -> None:
        self._kernel = kernel
        self._carry = carry
        self._mailboxes: Mailboxes[Any] = Mailboxes()
        self.mailbox = self._mailboxes.mailbox
        self.mailboxes_of_tag = self._mailboxes.of_tag

    def forget(self, tag: Hashable) -> None:
        """Drop the mailboxes of a fully received tag."""
        self._mailboxes.forget(tag)
        self._mailboxes.forget(("control", tag))

    def send(
        self, mailbox: Mailbox[Any], action: Action | None = None, argument: object = None
    ) -> None:
        """Send a message; ``action(argument)`` is called on arrival."""
        self._carry((mailbox, action, argument), self._arrive)

    def receive(self, mailbox: Mailbox[Any], action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` for the mailbox's next message."""
        if mailbox.receive((action, argument)) is not None:
            self._kernel.at(self._kernel.now_ps, action, argument)

    def _arrive(self, message: Message) -> None:
        mailbox, action, argument = message
        receiver: Waiting | None = mailbox.deliver(message)
        if action is not None:
            action(argument)
        if receiver is not None:
            receiver[0](receiver[1])


class RendezvousTransport(Transport):
    """A transport whose messages wait for the receiver's control message.

    The receive itself begins when the control message has been delivered.
    """

    def send(
        self, mailbox: Mailbox[Any], action: Action | None = None, argument: object = None
    ) -> None:
        """Wait for the control message, then send."""
        super().receive(self._control(mailbox), self._send_now, (mailbox, action, argument))

    def receive(self, mailbox: Mailbox[Any], action: Action, argument: object = None) -> None:
        """Send the control message, then receive."""
        super().send(self._control(mailbox), self._receive_now, (mailbox, action, argument))

    def _send_now(self, message: Message) -> None:
        super().send(*message)

    def _receive_now(self, waiting: tuple[Mailbox[Any], Action, Any]) -> None:
        super().receive(*waiting)

    def _control(self, mailbox: Mailbox[Any]) -> Mailbox[Any]:
        tag = ("control", mailbox.tag)
        return self.mailbox(tag, mailbox.target, mailbox.source, _CONTROL_BYTES)


def make_links(network: ContentionModel, system: System, kernel: Kernel) -> Carry:
    """Return the function that carries messages over a system's links.

    Raises `SimulationError` for congestion in a network without a model in ASTRA-sim: several
    dimensions, or a ring of two, whose two links would be the same.
    """
    if network is ContentionModel.CONGESTION_UNAWARE:
        return FreeLinks(system, kernel).carry
    if len(system.dimensions) != 1:
        message = f"congestion among {len(system.dimensions)} dimensions has no model here"
        hint = f"use {option('network')} congestion-unaware, or a network of one dimension"
        raise SimulationError(message, location=system.name, hint=hint)
    dimension = system.dimensions[0]
    if dimension.shape is Shape.RING and dimension.size == 2:
        message = "congestion in a ring of two devices has no model here"
        raise SimulationError(message, location=system.name, hint="use FullyConnected")
    return SharedLinks(dimension, kernel).carry


class FreeLinks:
    """Carries each message as if it were alone, in `plan.delay_ns`."""

    def __init__(self, system: System, kernel: Kernel) -> None:
        self._system = system
        self._kernel = kernel
        self._delays_ps: dict[tuple[Route, int], int] = {}

    def _delay_ps(self, mailbox: Mailbox[Any]) -> int:
        path = route(self._system, mailbox.source, mailbox.target)
        key = (path, mailbox.size_bytes)
        if key not in self._delays_ps:
            self._delays_ps[key] = delay_ns(self._system, *key) * PS_PER_NS
        return self._delays_ps[key]

    def carry(self, message: Message, arrive: Action) -> None:
        """Schedule the message's arrival after its delay."""
        mailbox = message[0]
        delay_ps = mailbox.route
        if delay_ps is None:
            delay_ps = mailbox.route = self._delay_ps(mailbox)
        if delay_ps == 0:
            check_not_at_start(self._kernel.now_ps, delay_ps, "a message")
        self._kernel.at(self._kernel.now_ps + delay_ps, arrive, message)


@dataclass(slots=True, eq=False)
class _Crossing:
    """A message on its route, and the next link's position."""

    message: Message
    links: tuple[_Link, ...]
    arrive: Action
    position: int = 0


@dataclass(slots=True, eq=False)
class _Link:
    """One direction of a wire, with its queue."""

    is_busy: bool = False
    waiting: deque[_Crossing] = field(default_factory=deque[_Crossing])


class SharedLinks:
    """Carries messages over links in order of arrival.

    A link carries one message at a time. It is busy for ``floor(size / bandwidth)``, and the
    message arrives at its other end after ``floor(latency + size / bandwidth)``. A ring uses the
    shorter direction, up if both are equal; a switch is a separate node between any two devices.
    """

    def __init__(self, dimension: Dimension, kernel: Kernel) -> None:
        self._dimension = dimension
        self._rate = bytes_per_ns(dimension)
        self._latency_ns = to_ns(dimension.latency_s)
        self._kernel = kernel
        self._links: dict[tuple[int, int], _Link] = {}

    def carry(self, message: Message, arrive: Action) -> None:
        """Put a message on its first link or queue."""
        mailbox = message[0]
        if mailbox.route is None:
            stops = self._stops(mailbox.source, mailbox.target)
            mailbox.route = tuple(
                [self._links.setdefault(pair, _Link()) for pair in pairwise(stops)]
            )
        self._enter_link(_Crossing(message, mailbox.route, arrive))

    def _stops(self, source: int, target: int) -> list[int]:
        count = self._dimension.size
        match self._dimension.shape:
            case Shape.FULLY_CONNECTED:
                return [source, target]
            case Shape.SWITCH:
                return [source, count, target]
            case _:
                up = (target - source) % count
                step, hops = (1, up) if up <= count - up else (-1, count - up)
                return [(source + step * hop) % count for hop in range(hops + 1)]

    def _enter_link(self, crossing: _Crossing) -> None:
        link = crossing.links[crossing.position]
        if link.is_busy:
            link.waiting.append(crossing)
        else:
            self._cross(link, crossing)

    def _cross(self, link: _Link, crossing: _Crossing) -> None:
        link.is_busy = True
        transfer_ns = crossing.message[0].size_bytes / self._rate
        now_ps = self._kernel.now_ps
        check_not_at_start(now_ps, int(transfer_ns), "a message")
        after_ns = int(self._latency_ns + transfer_ns)
        self._kernel.at(now_ps + after_ns * PS_PER_NS, self._cross_over, crossing)
        self._kernel.at(now_ps + int(transfer_ns) * PS_PER_NS, self._release_link, link)

    def _cross_over(self, crossing: _Crossing) -> None:
        crossing.position += 1
        if crossing.position == len(crossing.links):
            crossing.arrive(crossing.message)
        else:
            self._enter_link(crossing)

    def _release_link(self, link: _Link) -> None:
        link.is_busy = False
        if link.waiting:
            self._cross(link, link.waiting.popleft())


def check_not_at_start(now_ps: int, wait_ps: int, subject: str) -> None:
    """Raise `SimulationError` for instant communication at time 0, where ASTRA-sim aborts."""
    if now_ps == 0 and wait_ps == 0:
        message = f"{subject} takes no time at the very start, where ASTRA-sim aborts"
        raise SimulationError(message, hint="give a latency or an endpoint-delay above 0")


_Request = tuple[Clock, int, Action, Any]


class Memory:
    """The remote memory of a system.

    A request takes ``latency + size / bandwidth``; shared memory serves one request at a time, in
    order of arrival. Source: ASTRA-sim's analytical memory.
    """

    def __init__(self, remote: RemoteMemory, kernel: Kernel) -> None:
        self._remote = remote
        self._kernel = kernel
        self._requests: dict[int, deque[_Request]] = {}

    def duration_ps(self, size_bytes: int) -> int:
        """Return the duration of one request; `SimulationError` without memory."""
        latency_s, rate = self._remote.latency_s, self._remote.bandwidth_bytes_per_s
        is_absent = self._remote.kind is RemoteMemoryKind.NO_MEMORY_EXPANSION
        if is_absent or latency_s is None or rate is None:
            hint = "give another memory-type in remote_memory.json"
            raise SimulationError("the system has no memory outside the devices", hint=hint)
        return (int(to_ns(latency_s)) + int(size_bytes / to_gb_per_s(rate))) * PS_PER_NS

    def request(
        self,
        device: int,
        queue_of_device: Clock,
        size_bytes: int,
        action: Action,
        argument: object,
    ) -> None:
        """Schedule ``action(argument)`` for when ``size_bytes`` have moved."""
        duration_ps = self.duration_ps(size_bytes)
        check_not_at_start(self._kernel.now_ps, duration_ps, "a memory access")
        node = self._memory_node(device)
        if node is None:
            queue_of_device.after(duration_ps, action, argument)
            return
        queue = self._requests.setdefault(node, deque())
        queue.append((queue_of_device, duration_ps, action, argument))
        if len(queue) == 1:
            queue_of_device.after(duration_ps, self._serve_next, queue)

    def _serve_next(self, queue: deque[_Request]) -> None:
        _, _, action, argument = queue.popleft()
        if queue:
            queue_of_device, duration_ps, _, _ = queue[0]
            queue_of_device.after(duration_ps, self._serve_next, queue)
        action(argument)

    def _memory_node(self, device: int) -> int | None:
        match self._remote.kind:
            case RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION:
                return device // (self._remote.npus_per_node or 1)
            case RemoteMemoryKind.MEMORY_POOL:
                return 0
            case _:
                return None
