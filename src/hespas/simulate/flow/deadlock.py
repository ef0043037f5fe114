"""Say who waits for whom when nothing happens any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hespas.errors import SimulationError
from hespas.schedule.devices_text import devices_text
from hespas.schedule.tasks import CollectiveTask, ReceiveTask, SendTask, Task
from hespas.simulate.flow.device import NEVER, Device
from hespas.units import PS_PER_S, format_time

_SHOWN = 4


@dataclass(slots=True)
class Meeting:
    """A collective at a place: who came first, when, and who has come, with their tasks."""

    place: int
    task: CollectiveTask
    first: Device
    start_ps: int
    come: dict[int, int] = field(default_factory=dict[int, int])


def mismatch(meeting: Meeting, device: Device, task: CollectiveTask, now_ps: int) -> str:
    """Return what is wrong where members of a group start different collectives."""
    who = f"{devices_text(device.devices)} at {_time(now_ps)} {_what(task)}"
    first = f"{devices_text(meeting.first.devices)} started {_what(meeting.task)}"
    return f"{first} at {_time(meeting.start_ps)}, and as its partners {who}"


def deadlock(
    devices: Sequence[Device],
    meetings: Sequence[Meeting],
    unmatched: Sequence[tuple[Device, int] | None],
    members: Callable[[int], Iterable[int]],
) -> None:
    """Raise `SimulationError` if somebody waits for what never comes.

    The message says which devices wait since when for which collective or message, what those
    they wait for do instead, and the first place where the orders of two of them differ.
    """
    waits = [_lonely(end) for end in unmatched if end is not None]
    waits += [_incomplete(meeting, devices, members(meeting.place)) for meeting in meetings]
    stuck = [device for device in devices if NEVER in device.end_ps]
    if not waits and not stuck:
        return
    if not waits:
        task = stuck[0].tasks[stuck[0].end_ps.index(NEVER)]
        waits = [f"{devices_text(stuck[0].devices)} never end task {task.id} ({task.name})"]
    more = f"; and {len(waits) - _SHOWN} more wait" if len(waits) > _SHOWN else ""
    difference = _difference(meetings, devices, members)
    where = f"; their orders differ first at {difference}" if difference else ""
    raise SimulationError("; ".join(waits[:_SHOWN]) + more + where)


def _lonely(end: tuple[Device, int]) -> str:
    device, index = end
    task = device.tasks[index]
    what, other = ("send", "receive") if isinstance(task, SendTask) else ("receive", "send")
    since = _time(device.issue_ps[index])
    return (
        f"{devices_text(device.devices)} started {what} {task.id} ({task.name}) at {since}, "
        f"but no {other} of the same ends, tag and size came"
    )


def _incomplete(meeting: Meeting, devices: Sequence[Device], members: Iterable[int]) -> str:
    absent = [number for number in sorted(members) if number not in meeting.come]
    missing = devices_text(one for number in absent for one in devices[number].devices)
    instead = [text for number in absent if (text := _instead(devices[number]))]
    first = f"{devices_text(meeting.first.devices)} started {_what(meeting.task)}"
    reason = f" (instead {instead[0]})" if instead else ""
    return f"{first} at {_time(meeting.start_ps)}, but {missing} never did{reason}"


def _instead(device: Device) -> str | None:
    under_way = sorted(device.waiting_for(), key=lambda pair: (pair[0], pair[1].id))
    if not under_way:
        return None
    start_ps, task = under_way[-1]
    since = _time(start_ps)
    return f"{devices_text(device.devices)} wait from {since} on for task {task.id} ({task.name})"


def _difference(
    meetings: Sequence[Meeting],
    devices: Sequence[Device],
    members: Callable[[int], Iterable[int]],
) -> str | None:
    """Return where two devices that wait for each other first do different things."""
    for meeting in meetings:
        for number in sorted(members(meeting.place)):
            if number not in meeting.come:
                found = _first_difference(meeting.first, devices[number])
                if found is not None:
                    return found
    return None


def _first_difference(one: Device, other: Device) -> str | None:
    shared = set(_collective_places(one)) & set(_collective_places(other))
    mine, yours = _in(one, shared), _in(other, shared)
    for at in range(max(len(mine), len(yours))):
        left = mine[at] if at < len(mine) else None
        right = yours[at] if at < len(yours) else None
        if left is None or right is None or left[0] != right[0]:
            return f"{_told(one, left)} and {_told(other, right)}"
    return None


def _collective_places(device: Device) -> list[int]:
    return [
        place
        for task, place in zip(device.tasks, device.places, strict=True)
        if isinstance(task, CollectiveTask)
    ]


def _in(device: Device, places: set[int]) -> list[tuple[tuple[int, object, int], Task]]:
    return [
        ((place, task.kind, task.size_bytes), task)
        for task, place in zip(device.tasks, device.places, strict=True)
        if isinstance(task, CollectiveTask) and place in places
    ]


def _told(device: Device, entry: tuple[object, Task] | None) -> str:
    who = devices_text(device.devices)
    return f"{who}: nothing" if entry is None else f"{who}: task {entry[1].id} ({entry[1].name})"


def _what(task: CollectiveTask | SendTask | ReceiveTask) -> str:
    kind = task.kind.name if isinstance(task, CollectiveTask) else "message"
    return f"{kind} {task.id} ({task.name}) of {task.size_bytes} bytes"


def _time(time_ps: int) -> str:
    return format_time(time_ps / PS_PER_S) if time_ps else "the start"
