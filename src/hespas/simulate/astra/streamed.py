"""Simulate traces as they are read, with only what is under way in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hespas.errors import DeviceCountError, SimulationError
from hespas.hardware.system import System
from hespas.simulate.astra.device_state import EVERYONE, NEVER
from hespas.simulate.astra.folding import GroupClass
from hespas.simulate.astra.plan import ContentionModel, endpoint_ns, has_custom_collectives
from hespas.simulate.astra.running import Slot, Slots
from hespas.simulate.astra.simulate import ClosedForms, check_settings, is_replay
from hespas.simulate.matching import Participant
from hespas.simulate.timeline import ClassTimeline, Interval, Timeline
from hespas.tasks.chakra.format import read_groups
from hespas.tasks.chakra.nodes import EVERYONE as EVERYONE_IN_TRACES
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.chakra.reader import (
    ScannedTrace,
    distinct_files,
    scan_trace,
    stream_trace,
    trace_files,
)
from hespas.tasks.graph import CollectiveTask, ComputeTask, Task, TaskGraph

_HINT = "leave --stream out"


def simulate_streamed(
    prefix: Path,
    comm_groups: Path | None,
    system: System,
    *,
    network: ContentionModel = ContentionModel.CONGESTION_UNAWARE,
) -> Timeline:
    """Return what `simulate` returns for the traces of a prefix, without the times of tasks.

    Each file is read twice: to learn how far behind its dependencies a node can stand, and to be
    simulated. Memory holds the nodes that far, and 8 bytes for each node. Raises `TraceError` and
    `SimulationError` for what is damaged, contradictory or cannot be streamed: tasks other than
    computations and collectives, and what has no closed form.
    """
    if (
        network is not ContentionModel.CONGESTION_UNAWARE
        or has_custom_collectives(system)
        or is_replay(system)
    ):
        message = "traces are streamed without contention, custom collectives and replay"
        raise SimulationError(message, location=system.name, hint=_HINT)
    check_settings(system, 1, 1.0)
    system = replace(system, endpoint_delay_s=int(endpoint_ns(system)) / 1e9)
    files = trace_files(prefix)
    if len(files) != system.device_count:
        message = f"the job is for {len(files)} devices, {system.name} has"
        raise DeviceCountError(f"{message} {system.device_count}")
    members = {} if comm_groups is None else read_groups(comm_groups, len(files))
    contents = [(scan_trace(files[one.devices[0]]), one.devices) for one in distinct_files(files)]
    model = ClosedForms(_samples(contents), system)
    numbers, groups = _groups(contents, members, len(files))
    # Devices of equal traces do the same where all of them meet everyone.
    is_one = len(contents) == 1 and not groups
    states = [
        WindowState(number, devices, scanned, numbers)
        for number, (scanned, devices) in enumerate(_states(contents, is_one=is_one))
    ]
    if not model.run_states(states, groups, is_staggered=True):
        message = "closed forms don't hold for these traces, and only they can be streamed"
        raise SimulationError(message, location=str(prefix), hint=_HINT)
    return Timeline(classes=tuple([state.timeline() for state in states]))


def _states(
    contents: Sequence[tuple[ScannedTrace, list[int]]], *, is_one: bool
) -> Iterator[tuple[ScannedTrace, tuple[int, ...]]]:
    if is_one:
        ((scanned, devices),) = contents
        yield scanned, tuple(devices)
        return
    trace_of = {device: scanned for scanned, devices in contents for device in devices}
    yield from ((trace_of[device], (device,)) for device in sorted(trace_of))


def _samples(contents: Sequence[tuple[ScannedTrace, list[int]]]) -> Iterator[Task]:
    """Yield a collective of each kind that groups of some devices do."""
    for kind in {kind for scanned, _ in contents for kind in scanned.kinds}:
        yield CollectiveTask(id=0, name="", depends_on=(), kind=kind, size_bytes=1, group_table=0)


def _groups(
    contents: Sequence[tuple[ScannedTrace, list[int]]],
    members: Mapping[int, tuple[int, ...]],
    device_count: int,
) -> tuple[dict[int, int], list[GroupClass]]:
    """Return the numbers of the groups that traces name, and the groups by number."""
    numbers = {EVERYONE_IN_TRACES: EVERYONE}
    groups: list[GroupClass] = []
    for scanned, devices in contents:
        for name in sorted(scanned.groups):
            missing = name not in members or not set(devices) <= set(members[name])
            if missing:
                message = f"group {name} is not there, or doesn't hold device {devices[0]}"
                raise SimulationError(message, location=str(scanned.file))
            if len(members[name]) == device_count:
                numbers[name] = EVERYONE
            if name not in numbers:
                numbers[name] = len(groups)
                groups.append(GroupClass(group=members[name], members=frozenset(members[name])))
    return numbers, groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfinished:
    """Tasks of a class of devices that have not ended."""

    devices: tuple[int, ...]
    tasks: list[Task]
    groups: list[int]
    issue_ps: list[int]
    end_ps: list[int]


class WindowState:
    """What a class of devices does now, of a trace that is read as it runs.

    A task's index is its position in the trace; only those that have been read and have not ended
    have one. Nodes are read as far behind those
    that have started as the trace's ``reach``: what stands further behind cannot start yet.
    """

    def __init__(
        self,
        number: int,
        devices: tuple[int, ...],
        scanned: ScannedTrace,
        numbers: Mapping[int, int],
    ) -> None:
        self.number = number
        self.devices = devices
        self.slots = Slots()
        self.tasks: dict[int, Task] = {}
        self.groups: dict[int, int] = {}
        self.issue_ps: dict[int, int] = {}
        self.missing: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}
        self.alarms: dict[int, list[tuple[int, int]]] = {}
        self._file = scanned.file
        self._reach = scanned.reach
        self._numbers = numbers
        self._nodes = stream_trace(scanned.file)
        self._index_of: dict[int, int] = {}
        self._read = 0
        self._ended: list[int] = []
        self._finish_ps = 0
        self._compute_ps = 0
        self._communicating: list[Interval] = []
        self._communication_ps = 0
        self._read_behind(-1)

    @property
    def has_ended(self) -> bool:
        """Whether all tasks that have been read have ended."""
        return not self._index_of

    def unfinished(self) -> Participant:
        """Return the tasks that have been read and have not ended."""
        left = sorted(self._index_of.values())
        return _Unfinished(
            devices=self.devices,
            tasks=[self.tasks[index] for index in left],
            groups=[self.groups[index] for index in left],
            issue_ps=[self.issue_ps.get(index, NEVER) for index in left],
            end_ps=[NEVER] * len(left),
        )

    def _read_behind(self, index: int) -> None:
        while self._read <= index + self._reach:
            node = next(self._nodes, None)
            if node is None:
                return
            self._add(node)

    def _add(self, node: ParsedNode) -> None:
        task, index = node.task, self._read
        waits_for = [self._index_of[one] for one in task.depends_on if one in self._index_of]
        self.tasks[index] = task
        self.groups[index] = self._numbers[node.group]
        self.missing[index] = len(waits_for)
        self.children[index] = []
        self._index_of[task.id] = index
        self._read += 1
        for other in waits_for:
            self.children[other].append(index)
        if not waits_for:
            self._make_ready(index)

    def _make_ready(self, index: int) -> None:
        self.slots.add(self.slot_of(index), (self.tasks[index].id, index))

    def take_ready(self) -> list[tuple[int, int]]:
        """Return what can start now, as (id, index) by ascending id, and take the slots for it."""
        taken = sorted(self.slots.take(self.tasks))
        for _, index in taken:
            self._read_behind(index)
        return taken

    def end(self, index: int, now_ps: int) -> None:
        """Note that a task ends: free its slot, and make ready what waited only for it."""
        if now_ps > self._finish_ps:
            self._forget()
        start_ps = self.issue_ps[index]
        self._finish_ps = now_ps
        if isinstance(self.tasks[index], ComputeTask):
            self._compute_ps += now_ps - start_ps
        else:
            self._communicating.append((start_ps, now_ps))
        self.slots.free(self.slot_of(index))
        del self._index_of[self.tasks[index].id]
        self._ended.append(index)
        for child in self.children[index]:
            self.missing[child] -= 1
            if not self.missing[child]:
                self._make_ready(child)

    def _forget(self) -> None:
        """Forget what ended at an instant that is over: only then is its order settled."""
        for index in self._ended:
            for kept in (self.tasks, self.groups, self.issue_ps, self.missing, self.children):
                del kept[index]
        self._ended.clear()
        # A device does one collective at a time, so that they end in the order of their starts.
        self._communication_ps += sum(end - start for start, end in self._communicating)
        self._communicating.clear()

    def slot_of(self, index: int) -> Slot:
        """Return the slot that a task takes."""
        is_compute = isinstance(self.tasks[index], ComputeTask)
        return Slot.COMPUTE if is_compute else Slot.COMMUNICATION

    def timeline(self) -> ClassTimeline:
        """Return the sums of what the devices did, once they have ended."""
        self._forget()
        graph = TaskGraph(
            name=self._file.name, device_count=len(self.devices), tasks=(), group_tables=()
        )
        overlap_ps = self._compute_ps + self._communication_ps - self._finish_ps
        return ClassTimeline(
            devices=self.devices,
            graph=graph,
            nodes={},
            finish_ps=self._finish_ps,
            compute_ps=self._compute_ps,
            communication_ps=self._communication_ps,
            overlap_ps=max(0, overlap_ps),
            exposed_ps={},
        )
