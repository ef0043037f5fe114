"""Which message is for which receive, and which parts of collectives belong together.

Both follow MPI's rule of order. Messages with the same source, target, tag and size share a
mailbox, whose k-th receive takes its k-th message. The k-th collective that each member of a group
starts on that group is one collective, and all members must start the same one.

An *endpoint* is whatever an engine needs to carry on with one side; matching stores endpoints and
hands them back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

TAG_LIMIT = 500_000_000
"""ASTRA-sim takes the tags of sends and receives modulo this."""

Endpoint = TypeVar("Endpoint")


class Mailbox(Generic[Endpoint]):
    """The messages of one source, target, tag and size, which arrive in the order of sending.

    Messages wait for receives here, or receives for messages, never both. ``route`` is free for the
    network that carries the messages.
    """

    __slots__ = ("arrived", "receivers", "route", "size_bytes", "source", "tag", "target")

    def __init__(self, tag: Hashable, source: int, target: int, size_bytes: int) -> None:
        self.tag = tag
        self.source = source
        self.target = target
        self.size_bytes = size_bytes
        # None in place of an empty list: there may be millions of mailboxes.
        self.arrived: list[Endpoint] | None = None
        self.receivers: list[Endpoint] | None = None
        self.route: Any = None

    def deliver(self, sender: Endpoint) -> Endpoint | None:
        """Return the receiver of a message that arrives; without one, store the message."""
        if self.receivers:
            return self.receivers.pop(0)
        if self.arrived is None:
            self.arrived = [sender]
        else:
            self.arrived.append(sender)
        return None

    def receive(self, receiver: Endpoint) -> Endpoint | None:
        """Return the sender of the next message that has arrived; if none has, wait for it."""
        if self.arrived:
            return self.arrived.pop(0)
        if self.receivers is None:
            self.receivers = [receiver]
        else:
            self.receivers.append(receiver)
        return None

    def waiting(self) -> Iterator[Endpoint]:
        """Yield the endpoints that have no other side."""
        yield from self.arrived or ()
        yield from self.receivers or ()


MailboxesOfTag = dict[tuple[int, int, int], Mailbox[Endpoint]]
"""The mailboxes of one tag by (source, target, size)."""


class Mailboxes(Generic[Endpoint]):
    """All mailboxes of a simulation, created when first used.

    >>> mailbox = Mailboxes[str]().mailbox("tag", 0, 1, 4096)
    >>> mailbox.receive("device 1"), mailbox.deliver("device 0")
    (None, 'device 1')
    """

    __slots__ = ("_by_tag",)

    def __init__(self) -> None:
        self._by_tag: dict[Hashable, MailboxesOfTag[Endpoint]] = {}

    def mailbox(
        self, tag: Hashable, source: int, target: int, size_bytes: int
    ) -> Mailbox[Endpoint]:
        """Return the mailbox of a source, a target, a tag and a size."""
        mailboxes = self._by_tag.setdefault(tag, {})
        key = (source, target, size_bytes)
        mailbox = mailboxes.get(key)
        if mailbox is None:
            mailbox = mailboxes[key] = Mailbox(tag, source, target, size_bytes)
        return mailbox

    def of_tag(self, tag: Hashable) -> MailboxesOfTag[Endpoint]:
        """Return the mailboxes of a tag; the result grows with `mailbox`."""
        return self._by_tag.setdefault(tag, {})

    def forget(self, tag: Hashable) -> None:
        """Drop the mailboxes of a tag, all of whose messages have been received."""
        self._by_tag.pop(tag, None)

    def waiting(self) -> Iterator[Endpoint]:
        """Yield the endpoints that have no other side, in the order of their mailboxes."""
        for mailboxes in self._by_tag.values():
            for mailbox in mailboxes.values():
                yield from mailbox.waiting()


@dataclass(slots=True)
class CollectiveMatch(Generic[Endpoint]):
    """The ``number``-th collective of a group, from the moment that its first member starts it.

    ``signature`` is what all members must agree on, such as the kind and the size. ``endpoints``
    holds, by member, those that have started it.
    """

    group: int
    number: int
    signature: Hashable
    start_ps: int
    endpoints: dict[int, Endpoint] = field(default_factory=dict[int, Endpoint])

    @property
    def first(self) -> Endpoint:
        """The endpoint of the member that started it first."""
        return next(iter(self.endpoints.values()))


class Collectives(Generic[Endpoint]):
    """The collectives that not all members of their groups have started.

    >>> collectives = Collectives[str]()
    >>> first = collectives.join(0, 7, "device 7", signature="all_reduce", now_ps=0)
    >>> first is collectives.join(0, 9, "device 9", signature="all_reduce", now_ps=5)
    True
    >>> list(first.endpoints)
    [7, 9]
    """

    __slots__ = ("_counts", "_pending")

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._pending: dict[tuple[int, int], CollectiveMatch[Endpoint]] = {}

    def join(
        self, group: int, member: int, endpoint: Endpoint, *, signature: Hashable, now_ps: int
    ) -> CollectiveMatch[Endpoint]:
        """Return the collective of a group that a member starts now, with its endpoint.

        The caller compares ``signature`` with that of the result, and calls `complete` once all
        members have joined.
        """
        number = self._counts.get((group, member), 0)
        self._counts[group, member] = number + 1
        key = (group, number)
        match = self._pending.get(key)
        if match is None:
            match = self._pending[key] = CollectiveMatch(group, number, signature, now_ps)
        match.endpoints[member] = endpoint
        return match

    def complete(self, match: CollectiveMatch[Endpoint]) -> None:
        """Forget a collective that all members have joined."""
        del self._pending[match.group, match.number]

    def pending(self) -> list[CollectiveMatch[Endpoint]]:
        """Return the collectives that some members have not joined, in order of their start."""
        return list(self._pending.values())
