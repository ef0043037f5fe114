"""What an algorithm knows of the member that it runs for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hespas.hardware.system import CollectiveKind
from hespas.simulate.events.clock import Act, Alarms
from hespas.simulate.events.post import Box, Boxes, Post


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One member's place in one phase of one chunk of a collective.

    ``members`` are the devices of the logical ring, ``position`` is the own one among them, and
    ``direction`` is 1, or -1 for a ring that turns backwards. ``size_bytes`` is the phase's.
    ``known_boxes`` are those of ``tag`` that the post has made so far. ``tree`` alternates
    between 0 and 1 for the two trees. ``done`` is called at the end.
    """

    alarms: Alarms
    post: Post
    known_boxes: Boxes
    tag: Hashable
    members: Sequence[int]
    position: int
    direction: int
    kind: CollectiveKind
    size_bytes: int
    endpoint_ps: int
    reduce_ps: Callable[[int], int]
    is_subgroup: bool
    tree: int
    done: Callable[[], None]

    def boxes(self, distance: int, size_bytes: int) -> tuple[Box, Box]:
        """Return where to send at a distance in the ring, and where the like of it comes from."""
        distance *= self.direction
        return (self.box_to(distance, size_bytes), self.box_from(-distance, size_bytes))

    def box_to(self, distance: int, size_bytes: int) -> Box:
        """Return the box for messages to the member at a distance."""
        members = self.members
        other = members[(self.position + distance) % len(members)]
        key = (members[self.position], other, size_bytes)
        return self.known_boxes.get(key) or self.post.box(self.tag, *key)

    def box_from(self, distance: int, size_bytes: int) -> Box:
        """Return the box of messages from the member at a distance."""
        members = self.members
        other = members[(self.position + distance) % len(members)]
        key = (other, members[self.position], size_bytes)
        return self.known_boxes.get(key) or self.post.box(self.tag, *key)

    def wait(self, act: Act, *, reduce_ps: int | None = None) -> None:
        """Have ``act`` called after the endpoint's delay, and then a reduction if there is one."""
        if reduce_ps is None:
            self.alarms.after(self.endpoint_ps, act)
        else:
            self.alarms.after(self.endpoint_ps, self._reduce, (reduce_ps, act))

    def _reduce(self, reduction: tuple[int, Act]) -> None:
        # Even a reduction that takes no time goes behind what else is set for this instant.
        self.alarms.after(*reduction)


class Running(Protocol):
    """An algorithm that runs for one member."""

    def start(self) -> None:
        """Begin."""
        ...
