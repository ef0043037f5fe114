"""Simulate traces while reading them, in little memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.astra.classes import run_classes, stream_of
from hespas.simulate.astra.durations import ClosedForms
from hespas.simulate.astra.folding import GroupClass
from hespas.simulate.astra.plan import has_custom_collectives
from hespas.simulate.astra.simulate import checked_system
from hespas.simulate.devices import EVERYONE, Device, Work
from hespas.simulate.models import check_size, is_replay
from hespas.simulate.options import USUAL, ContentionModel
from hespas.simulate.timeline import Timeline
from hespas.tasks.chakra.format import read_groups
from hespas.tasks.chakra.nodes import EVERYONE as EVERYONE_IN_TRACES
from hespas.tasks.chakra.reader import (
    ScannedTrace,
    distinct_files,
    scan_trace,
    stream_trace,
    trace_files,
)
from hespas.tasks.graph import CollectiveTask

_HINT = "leave --stream out"
_Contents = Sequence[tuple[ScannedTrace, list[int]]]
"""Traces, and the devices of each."""


def simulate_streamed(
    prefix: Path,
    comm_groups: Path | None,
    system: System,
    *,
    network: ContentionModel = ContentionModel.CONGESTION_UNAWARE,
) -> Timeline:
    """Return what `simulate` returns for traces, without task times.

    Each file is read twice: to find the largest distance from a node to its dependencies, and to
    simulate it. Memory holds the nodes within that distance, and 8 bytes for each node. Raises
    `SimulationError` for traces that cannot be streamed: with tasks other than computations and
    collectives, or without a closed form.
    """
    if (
        network is not ContentionModel.CONGESTION_UNAWARE
        or has_custom_collectives(system)
        or is_replay(system)
    ):
        message = "traces are streamed without contention, custom collectives and replay"
        raise SimulationError(message, location=system.name, hint=_HINT)
    system = checked_system(system, USUAL)
    files = trace_files(prefix)
    check_size(len(files), system)
    members = {} if comm_groups is None else read_groups(comm_groups, len(files))
    contents = [(scan_trace(files[own[0]]), own) for own in distinct_files(files)]
    # One collective of each kind that groups run.
    kinds = {kind for scanned, _ in contents for kind in scanned.kinds}
    samples = [
        CollectiveTask(id=0, name="", depends_on=(), kind=kind, size_bytes=1, group_table=0)
        for kind in kinds
    ]
    forms = ClosedForms(samples, system)
    numbers, groups = _groups(contents, members, len(files))
    if len(contents) == 1 and not groups:
        # Devices of equal traces behave alike if all their collectives are among all devices.
        classes = [(scanned, tuple(devices)) for scanned, devices in contents]
    else:
        trace_of = {device: scanned for scanned, devices in contents for device in devices}
        classes = [(trace_of[device], (device,)) for device in sorted(trace_of)]
    running = [
        Device(number, devices, _work(scanned, numbers), stream_of, reach=scanned.reach)
        for number, (scanned, devices) in enumerate(classes)
    ]
    if not run_classes(forms, running, groups, is_staggered=True):
        message = "closed forms don't hold for these traces, and only they can be streamed"
        raise SimulationError(message, location=str(prefix), hint=_HINT)
    names = [scanned.file.name for scanned, _ in classes]
    return Timeline(classes=tuple(map(Device.sums, running, names)))


def _work(scanned: ScannedTrace, numbers: Mapping[int, int]) -> Iterator[Work]:
    for node in stream_trace(scanned.file):
        yield node.task, numbers[node.group], node.task.depends_on


def _groups(
    contents: _Contents, members: Mapping[int, tuple[int, ...]], device_count: int
) -> tuple[dict[int, int], list[GroupClass]]:
    numbers = {EVERYONE_IN_TRACES: EVERYONE}
    groups: list[GroupClass] = []
    for scanned, devices in contents:
        for name in sorted(scanned.groups):
            if name not in members or not set(devices) <= set(members[name]):
                message = f"group {name} is not there, or doesn't hold device {devices[0]}"
                raise SimulationError(message, location=str(scanned.file))
            if len(members[name]) == device_count:
                numbers[name] = EVERYONE
            if name not in numbers:
                numbers[name] = len(groups)
                groups.append(GroupClass(group=members[name], members=frozenset(members[name])))
    return numbers, groups
