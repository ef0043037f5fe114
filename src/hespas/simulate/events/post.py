"""Messages: what is sent, what is awaited, and which is for which.

Source of the rules: ASTRA-sim's analytical front end. A message is for the receive of the same
source, target, tag and size; of several, the k-th is for the k-th.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from hespas.simulate.events.clock import Act, Clock

_CONTROL_BYTES = 8192
_Waiting = tuple[Act, Any]


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

Message = tuple[Box, Act | None, Any]
"""A box, and what the sender has called, with its argument, when the message arrives."""


class Carrier(Protocol):
    """A network: it has ``arrive(message)`` called when the message is at its target."""

    def carry(self, message: Message, arrive: Act) -> None:
        """Send a message on its way now."""
        ...


class Post:
    """Hands messages to a network, and to those who await them."""

    def __init__(self, clock: Clock, carrier: Carrier) -> None:
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

    def send(self, box: Box, act: Act | None = None, argument: object = None) -> None:
        """Send a message; have ``act(argument)`` called when it arrives."""
        self._carrier.carry((box, act, argument), self._arrive)

    def receive(self, box: Box, act: Act, argument: object = None) -> None:
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

    def send(self, box: Box, act: Act | None = None, argument: object = None) -> None:
        """Await the control message, then send."""
        super().receive(self._control(box), self._send_now, (box, act, argument))

    def receive(self, box: Box, act: Act, argument: object = None) -> None:
        """Send the control message, then receive."""
        super().send(self._control(box), self._receive_now, (box, act, argument))

    def _send_now(self, message: Message) -> None:
        super().send(*message)

    def _receive_now(self, waiting: tuple[Box, Act, Any]) -> None:
        super().receive(*waiting)

    def _control(self, box: Box) -> Box:
        return self.box(("control", box.tag), box.target, box.source, _CONTROL_BYTES)
