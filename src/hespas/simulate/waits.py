"""Say why tasks of a run never end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import starmap, zip_longest

from hespas.base.units import PS_PER_S, format_time
from hespas.errors import SimulationError
from hespas.simulate.devices import NEVER, Device, Match, TaskRun
from hespas.tasks.graph import CollectiveTask, ReceiveTask, SendTask, Task, devices_text

_MOST_SHOWN = 4


def check_complete(
    devices: Sequence[Device],
    unmatched: Iterable[TaskRun],
    collectives: Sequence[Match],
    members: Callable[[int], Collection[int]],
) -> None:
    """Raise `SimulationError` if some task never ends.

    ``unmatched`` messages and incomplete ``collectives`` wait; ``members`` gives the numbers of the
    devices in a group. The error says which devices wait since when for which collective or
    message, what their partners do instead, and the first task in which the orders of two devices
    differ.
    """
    waits = [_unmatched(run) for run in unmatched]
    waits += [_incomplete(match, devices, members(match.group)) for match in collectives]
    stuck = [run for device in devices for run in device.runs.values() if run.end_ps == NEVER]
    if not waits and not stuck:
        return
    if not waits:
        first, task = _devices_text(stuck[0]), stuck[0].task
        waits = [f"{first} never end task {task.id} ({task.name})"]
    omitted = f"; and {len(waits) - _MOST_SHOWN} more wait" if len(waits) > _MOST_SHOWN else ""
    absent = [
        (match.first.device, devices[number])
        for match in collectives
        for number in sorted(members(match.group))
        if number not in match.endpoints
    ]
    difference = next(filter(None, starmap(_first_difference, absent)), None)
    where = f"; their orders differ first at {difference}" if difference else ""
    raise SimulationError("; ".join(waits[:_MOST_SHOWN]) + omitted + where)


def other_collective(match: Match, run: TaskRun, now_ps: int) -> SimulationError:
    """Return the error of a member that starts another collective."""
    first = f"{_devices_text(match.first)} started {_task_text(match.first.task)}"
    own = f"{_devices_text(run)} at {_time(now_ps)} {_task_text(run.task)}"
    return SimulationError(f"{first} at {_time(match.start_ps)}, and as its partners {own}")


def _unmatched(run: TaskRun) -> str:
    kind, opposite = ("send", "receive") if isinstance(run.task, SendTask) else ("receive", "send")
    return (
        f"{_devices_text(run)} started {kind} {run.task.id} ({run.task.name}) "
        f"at {_time(run.issue_ps)}, but no {opposite} of the same ends, tag and size came"
    )


def _incomplete(match: Match, devices: Sequence[Device], members: Iterable[int]) -> str:
    absent = [devices[number] for number in sorted(members) if number not in match.endpoints]
    missing = devices_text(number for device in absent for number in device.devices)
    instead = [text for device in absent if (text := _current_task_text(device))]
    reason = f" (instead {instead[0]})" if instead else ""
    started = f"{_devices_text(match.first)} started {_task_text(match.first.task)}"
    return f"{started} at {_time(match.start_ps)}, but {missing} never did{reason}"


def _current_task_text(device: Device) -> str | None:
    runs = [run for run in device.runs.values() if run.issue_ps != NEVER and run.end_ps == NEVER]
    if not runs:
        return None
    last = max(runs, key=lambda run: (run.issue_ps, run.task.id))
    since = _time(last.issue_ps)
    return f"{_devices_text(last)} wait from {since} on for task {last.task.id} ({last.task.name})"


def _first_difference(first: Device, second: Device) -> str | None:
    """Return where two waiting devices first do different things."""
    collectives = [
        [run for run in device.runs.values() if isinstance(run.task, CollectiveTask)]
        for device in (first, second)
    ]
    shared = {run.group for run in collectives[0]} & {run.group for run in collectives[1]}
    orders = ([run for run in runs if run.group in shared] for runs in collectives)
    for run, counterpart in zip_longest(*orders):
        if _agreed_values(run) != _agreed_values(counterpart):
            return f"{_entry_text(first, run)} and {_entry_text(second, counterpart)}"
    return None


def _agreed_values(run: TaskRun | None) -> tuple[object, ...]:
    if run is None or not isinstance(run.task, CollectiveTask):
        return ()
    return run.group, run.task.kind, run.task.size_bytes


def _entry_text(device: Device, run: TaskRun | None) -> str:
    task = "nothing" if run is None else f"task {run.task.id} ({run.task.name})"
    return f"{devices_text(device.devices)}: {task}"


def _devices_text(run: TaskRun) -> str:
    return devices_text(run.device.devices)


def _task_text(task: Task) -> str:
    if isinstance(task, CollectiveTask | SendTask | ReceiveTask):
        kind = task.kind.name if isinstance(task, CollectiveTask) else "message"
        return f"{kind} {task.id} ({task.name}) of {task.size_bytes} bytes"
    return f"task {task.id} ({task.name})"


def _time(time_ps: int) -> str:
    return format_time(time_ps / PS_PER_S) if time_ps else "the start"
