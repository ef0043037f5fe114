"""Which message is for which receive, and which parts of collectives belong together.

Both follow MPI's rule of order. Messages with the same source, target, tag and size share a
mailbox, whose k-th receive takes its k-th message. The k-th collective that each member of a group
starts on that group is one collective, and all members must start the same one.

An *endpoint* is whatever an engine needs to carry on with one side, such as a device and the index
of its task; matching stores endpoints and hands them back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from hespas.base.units import PS_PER_S, format_time
from hespas.errors import SimulationError
from hespas.tasks.graph import CollectiveTask, ReceiveTask, SendTask, Task, devices_text

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


NEVER = -1
_MOST_SHOWN = 4


_T_co = TypeVar("_T_co", covariant=True)


class Indexed(Protocol[_T_co]):
    """Something of each task, by its index."""

    def __getitem__(self, index: int, /) -> _T_co: ...


class Waiting(Protocol):
    """A class of devices that has started a task: its tasks, and when they started in ps."""

    @property
    def devices(self) -> tuple[int, ...]: ...  # noqa: D102 - described above
    @property
    def tasks(self) -> Indexed[Task]: ...  # noqa: D102
    @property
    def issue_ps(self) -> Indexed[int]: ...  # noqa: D102


class Participant(Protocol):
    """A class of devices that an engine runs: its tasks, and when each starts and ends in ps.

    A time is `NEVER` until it has come. ``groups`` gives, by task, the number of its group.
    """

    @property
    def devices(self) -> tuple[int, ...]: ...  # noqa: D102 - described above
    @property
    def tasks(self) -> Sequence[Task]: ...  # noqa: D102
    @property
    def groups(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def issue_ps(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def end_ps(self) -> Sequence[int]: ...  # noqa: D102


Device = TypeVar("Device", bound=Waiting)
TaskOf: TypeAlias = tuple[Device, int]
"""A class of devices, and the index of one of its tasks."""


def mismatch(match: CollectiveMatch[TaskOf[Device]], other: TaskOf[Device], now_ps: int) -> str:
    """Return what is wrong where members of a group start different collectives."""
    device, index = match.first
    started = f"{devices_text(device.devices)} started {_what(device.tasks[index])}"
    device, index = other
    who = f"{devices_text(device.devices)} at {_time(now_ps)} {_what(device.tasks[index])}"
    return f"{started} at {_time(match.start_ps)}, and as its partners {who}"


def check_complete(
    devices: Sequence[Participant],
    collectives: Sequence[CollectiveMatch[TaskOf[Device]]],
    messages: Sequence[TaskOf[Device]],
    members: Callable[[int], Iterable[int]],
) -> None:
    """Raise `SimulationError` if some task never ends.

    ``collectives`` are those that lack members, ``messages`` the sends and receives without
    another side, and ``members`` gives the numbers of the devices of a group. The error says which
    devices wait since when for which collective or message, what those they wait for do instead,
    and the first task in which the orders of two of them differ.
    """
    waits = [_unmatched(*end) for end in messages]
    waits += [_incomplete(match, devices, members(match.group)) for match in collectives]
    stuck = [device for device in devices if NEVER in device.end_ps]
    if not waits and not stuck:
        return
    if not waits:
        task = stuck[0].tasks[stuck[0].end_ps.index(NEVER)]
        waits = [f"{devices_text(stuck[0].devices)} never end task {task.id} ({task.name})"]
    more = f"; and {len(waits) - _MOST_SHOWN} more wait" if len(waits) > _MOST_SHOWN else ""
    differences = _differences(collectives, devices, members)
    difference = next(differences, None)
    where = f"; their orders differ first at {difference}" if difference else ""
    raise SimulationError("; ".join(waits[:_MOST_SHOWN]) + more + where)


def _unmatched(device: Waiting, index: int) -> str:
    task = device.tasks[index]
    what, other = ("send", "receive") if isinstance(task, SendTask) else ("receive", "send")
    since = _time(device.issue_ps[index])
    return (
        f"{devices_text(device.devices)} started {what} {task.id} ({task.name}) at {since}, "
        f"but no {other} of the same ends, tag and size came"
    )


def _incomplete(
    match: CollectiveMatch[TaskOf[Device]], devices: Sequence[Participant], members: Iterable[int]
) -> str:
    absent = [number for number in sorted(members) if number not in match.endpoints]
    missing = devices_text(one for number in absent for one in devices[number].devices)
    instead = [text for number in absent if (text := _instead(devices[number]))]
    device, index = match.first
    started = f"{devices_text(device.devices)} started {_what(device.tasks[index])}"
    reason = f" (instead {instead[0]})" if instead else ""
    return f"{started} at {_time(match.start_ps)}, but {missing} never did{reason}"


def _instead(device: Participant) -> str | None:
    """Return which task a device started last and has not ended."""
    running = [
        (start_ps, task.id, task)
        for task, start_ps, end_ps in zip(
            device.tasks, device.issue_ps, device.end_ps, strict=True
        )
        if start_ps != NEVER and end_ps == NEVER
    ]  # fmt: skip
    if not running:
        return None
    start_ps, _, task = max(running, key=lambda entry: entry[:2])
    since = _time(start_ps)
    return f"{devices_text(device.devices)} wait from {since} on for task {task.id} ({task.name})"


def _differences(
    collectives: Sequence[CollectiveMatch[TaskOf[Device]]],
    devices: Sequence[Participant],
    members: Callable[[int], Iterable[int]],
) -> Iterator[str]:
    """Yield where two devices that wait for each other first do different things."""
    for match in collectives:
        for number in sorted(members(match.group)):
            if number not in match.endpoints:
                first = next(iter(match.endpoints))
                difference = _first_difference(devices[first], devices[number])
                if difference is not None:
                    yield difference


def _first_difference(one: Participant, other: Participant) -> str | None:
    mine, yours = list(_collectives(one)), list(_collectives(other))
    shared = {task[0] for task, _ in mine} & {task[0] for task, _ in yours}
    mine = [entry for entry in mine if entry[0][0] in shared]
    yours = [entry for entry in yours if entry[0][0] in shared]
    for at in range(max(len(mine), len(yours))):
        left = mine[at] if at < len(mine) else None
        right = yours[at] if at < len(yours) else None
        if left is None or right is None or left[0] != right[0]:
            return f"{_entry_text(one, left)} and {_entry_text(other, right)}"
    return None


_Entry = tuple[tuple[int, object, int], Task]


def _collectives(device: Participant) -> Iterator[_Entry]:
    """Yield the group, kind and size of each collective, with its task."""
    for task, group in zip(device.tasks, device.groups, strict=True):
        if isinstance(task, CollectiveTask):
            yield (group, task.kind, task.size_bytes), task


def _entry_text(device: Participant, entry: _Entry | None) -> str:
    who = devices_text(device.devices)
    return f"{who}: nothing" if entry is None else f"{who}: task {entry[1].id} ({entry[1].name})"


def _what(task: Task) -> str:
    if isinstance(task, CollectiveTask | SendTask | ReceiveTask):
        kind = task.kind.name if isinstance(task, CollectiveTask) else "message"
        return f"{kind} {task.id} ({task.name}) of {task.size_bytes} bytes"
    return f"task {task.id} ({task.name})"


def _time(time_ps: int) -> str:
    return format_time(time_ps / PS_PER_S) if time_ps else "the start"
