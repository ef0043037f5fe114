"""Run timed actions in order: the event kernel of simulations.

Simulated time is an integer of picoseconds. An action is a function of one argument that is called
at its time; it may schedule others, for the same instant or later ones. Actions of one instant run
in the order of scheduling, so equal input gives equal results. This is the core of SimPy's event
loop, with callbacks instead of generators.

>>> kernel = Kernel()
>>> log = []
>>> kernel.at(30, log.append, "last")
>>> kernel.at(10, lambda text: kernel.after(5, log.append, text), "soon")
>>> kernel.run()
>>> log, kernel.now_ps
(['soon', 'last'], 30)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from hespas.errors import SimulationError

# An action takes one argument, so scheduling one allocates a pair and no closure.
Action: TypeAlias = Callable[[Any], object]


class Clock(Protocol):
    """Schedules actions of an actor: a `Kernel` or an `ActorQueue`."""

    def after(self, delay_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` ``delay_ps`` from now."""
        ...


class Kernel:
    """The clock and the actions in order of time; ``event`` counts those that ran."""

    __slots__ = ("_actions", "_times", "event", "now_ps")

    def __init__(self) -> None:
        self.now_ps = 0
        self.event = 0
        # A heap of the instants, and the actions of each: fewer comparisons than a heap of actions.
        self._times: list[int] = []
        self._actions: dict[int, list[tuple[Action, Any]]] = {}

    def at(self, time_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` at ``time_ps``, which must not be before now."""
        actions = self._actions.get(time_ps)
        if actions is None:
            self._actions[time_ps] = [(action, argument)]
            heappush(self._times, time_ps)
        else:
            actions.append((action, argument))

    def after(self, delay_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` ``delay_ps`` from now."""
        self.at(self.now_ps + delay_ps, action, argument)

    def stop(self) -> None:
        """Drop all actions, also of this instant, to end `run`."""
        self._times.clear()
        for actions in self._actions.values():
            actions.clear()

    def run(self, settle: Callable[[], None] | None = None) -> None:
        """Advance time until no action is left.

        ``settle`` is called before the first instant, and whenever all actions of an instant have
        run. It may schedule more actions for that instant, after which it is called again.
        """
        times, all_actions = self._times, self._actions
        if settle is not None:
            settle()
        while times:
            self.now_ps = now_ps = heappop(times)
            for action, argument in all_actions[now_ps]:  # grows during the loop
                self.event += 1
                action(argument)
            del all_actions[now_ps]
            if settle is not None:
                settle()


class ActorQueue:
    """The actions that one actor schedules for itself.

    Actions of one instant run consecutively, at the place of the first: ASTRA-sim's event queue
    joins the events of a device this way, and its order decides ties.

    >>> kernel, log = Kernel(), []
    >>> actor = ActorQueue(kernel)
    >>> actor.after(10, log.append, "first of the actor")
    >>> kernel.at(10, log.append, "of somebody else")
    >>> actor.after(10, log.append, "second of the actor")
    >>> kernel.run()
    >>> log
    ['first of the actor', 'second of the actor', 'of somebody else']
    """

    __slots__ = ("_actions", "_kernel")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._actions: dict[int, list[tuple[Action, Any]]] = {}

    def after(self, delay_ps: int, action: Action, argument: object = None) -> None:
        """Schedule ``action(argument)`` ``delay_ps`` from now."""
        time_ps = self._kernel.now_ps + delay_ps
        actions = self._actions.get(time_ps)
        if actions is None:
            actions = self._actions[time_ps] = [(action, argument)]
            self._kernel.at(time_ps, self._run, actions)
        else:
            actions.append((action, argument))

    def _run(self, actions: list[tuple[Action, Any]]) -> None:
        for action, argument in actions:  # grows during the loop
            action(argument)
        del self._actions[self._kernel.now_ps]


_BYTES_PER_MESSAGE = 250  # of arrays, during the search for classes
BYTES_PER_TASK = 600
"""The memory of a task, with its entry in a stream and its times."""
_GIB = 1 << 30


def available_bytes() -> int | None:
    """Return the free or reclaimable memory, None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - not a file
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def check_memory(
    count: int, items: str = "messages", *, bytes_each: int = _BYTES_PER_MESSAGE
) -> None:
    """Raise `SimulationError` if ``count`` items exceed the memory."""
    needed = count * bytes_each
    available = available_bytes()
    if available is not None and needed > available:
        message = (
            f"the job has {count} {items} to keep track of at a time, which take about "
            f"{needed / _GIB:.1f} GiB of memory, and {available / _GIB:.1f} GiB are available"
        )
        hint = "make devices alike, use groups of fewer devices or another algorithm"
        raise SimulationError(message, hint=hint)


# Matching follows MPI's rule of order. Messages with the same source, target, tag and size share a
# mailbox, whose k-th receive takes its k-th message. The k-th collective that each member of a
# group starts on that group is one collective, and all members must start the same one. An
# *endpoint* is the value that an engine needs to continue one side: matching stores endpoints and
# returns them.

TAG_LIMIT = 500_000_000
"""ASTRA-sim takes the tags of sends and receives modulo this."""

Endpoint = TypeVar("Endpoint")


@dataclass(slots=True, eq=False)
class Mailbox(Generic[Endpoint]):
    """The ordered messages of one source, target, tag and size.

    Either messages wait for receives, or receives for messages. The network that carries the
    messages may use ``route``.
    """

    tag: Hashable
    source: int
    target: int
    size_bytes: int
    # None instead of an empty list: there may be millions of mailboxes.
    arrived: list[Endpoint] | None = None
    receivers: list[Endpoint] | None = None
    route: Any = None

    def deliver(self, sender: Endpoint) -> Endpoint | None:
        """Return an arriving message's receiver, or store the message."""
        if self.receivers:
            return self.receivers.pop(0)
        if self.arrived is None:
            self.arrived = [sender]
        else:
            self.arrived.append(sender)
        return None

    def receive(self, receiver: Endpoint) -> Endpoint | None:
        """Return the next arrived message's sender, or wait for it."""
        if self.arrived:
            return self.arrived.pop(0)
        if self.receivers is None:
            self.receivers = [receiver]
        else:
            self.receivers.append(receiver)
        return None

    def waiting(self) -> Iterator[Endpoint]:
        """Yield the endpoints without a partner."""
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
        """Return the mailbox of a source, target, tag and size."""
        mailboxes = self._by_tag.setdefault(tag, {})
        key = (source, target, size_bytes)
        mailbox = mailboxes.get(key)
        if mailbox is None:
            mailbox = mailboxes[key] = Mailbox(tag, source, target, size_bytes)
        return mailbox

    def of_tag(self, tag: Hashable) -> MailboxesOfTag[Endpoint]:
        """Return the mailboxes of a tag, which `mailbox` adds to."""
        return self._by_tag.setdefault(tag, {})

    def forget(self, tag: Hashable) -> None:
        """Drop the mailboxes of a fully received tag."""
        self._by_tag.pop(tag, None)

    def waiting(self) -> Iterator[Endpoint]:
        """Yield the endpoints without a partner, by mailbox."""
        for mailboxes in self._by_tag.values():
            for mailbox in mailboxes.values():
                yield from mailbox.waiting()


@dataclass(slots=True)
class CollectiveMatch(Generic[Endpoint]):
    """The ``number``-th collective of a group, once started.

    All members must have equal ``signature``, such as the kind and the size.
    """

    group: int
    number: int
    signature: Hashable
    start_ps: int
    endpoints: dict[int, Endpoint] = field(default_factory=dict[int, Endpoint])

    @property
    def first(self) -> Endpoint:
        """The endpoint of the first member to start it."""
        return next(iter(self.endpoints.values()))


class Collectives(Generic[Endpoint]):
    """The collectives that some members have not started yet.

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
        """Return the collective that a member starts now.

        The caller compares ``signature`` with the result's, and calls `complete` once all members
        have joined.
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
        """Return the incomplete collectives, in order of their start."""
        return list(self._pending.values())
