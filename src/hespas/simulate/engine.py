"""Run the tasks of device classes; a network times communication.

The network is ASTRA-sim's by closed forms (`hespas.simulate.astra.classes`) or message by message
(`hespas.simulate.astra.events`), or has links that transfers share
(`hespas.simulate.flow.simulate`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias, assert_never

from hespas.simulate.devices import Device, End, Match, TaskRun
from hespas.simulate.kernel import ActorQueue, Collectives, Kernel
from hespas.simulate.waits import check_complete, other_collective
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)


class Network(Protocol):
    """Decides when communication ends, and calls ``end`` then."""

    def members(self, group: int) -> Collection[int]:
        """Return the numbers of the device classes in a group."""
        ...

    def join(self, run: TaskRun, match: Match, end: End, *, is_complete: bool) -> None:
        """Register that devices start a collective.

        With ``is_complete`` all members have started it.
        """
        ...

    def send(self, run: TaskRun, task: SendTask, end: End) -> None:
        """Send a message."""
        ...

    def receive(self, run: TaskRun, task: ReceiveTask, end: End) -> None:
        """Wait for a message."""
        ...

    def access(self, run: TaskRun, task: MemoryTask, end: End) -> None:
        """Move data from or to memory outside the device."""
        ...

    def unmatched(self) -> Iterable[TaskRun]:
        """Return the sends and receives without a partner."""
        ...


Compute: TypeAlias = Callable[[TaskRun, ComputeTask, End], None]
"""Starts a computation, decides when it ends, and calls its last argument then."""


class Ties(Protocol):
    """Watches whether the order of simultaneous events is known."""

    def end(self, run: TaskRun) -> None:
        """Register that a task is about to end."""
        ...

    def start(self, runs: Sequence[TaskRun]) -> None:
        """Register the tasks that start after the last end."""
        ...


class Engine:
    """A simulation: `run` sets the tasks' starts and ends.

    As in ASTRA-sim, a device starts all ready tasks whenever one of its tasks ends, and its own
    events of one instant happen together. ``compute`` decides how long computation takes (None: as
    long as its tasks say). With ``settle``, all tasks that end at an instant do so
    before any task starts, and ``settle`` is called after that.
    """

    def __init__(
        self,
        kernel: Kernel,
        devices: Sequence[Device],
        network: Network,
        *,
        ties: Ties | None = None,
        settle: Callable[[], None] | None = None,
        compute: Compute | None = None,
    ) -> None:
        self.devices = devices
        self._kernel = kernel
        self._network = network
        self._ties = ties
        self._settle = settle
        self._compute = compute
        self._collectives: Collectives[TaskRun] = Collectives()
        self._changed: set[int] = set()
        for device in devices:
            device.clock = ActorQueue(kernel) if settle is None else kernel

    def run(self) -> None:
        """Advance time until no event is left.

        Raises `SimulationError` if members of a group start different collectives.
        """
        was_enabled = gc.isenabled()
        gc.disable()  # it would go through millions of mailboxes repeatedly
        try:
            if self._settle is not None:
                self._changed.update(range(len(self.devices)))
                self._kernel.run(self._start_changed)
            else:
                for device in self.devices:
                    self._start_ready(device)
                self._kernel.run()
        finally:
            if was_enabled:
                gc.enable()

    @property
    def is_complete(self) -> bool:
        """Whether all tasks, messages and collectives have completed."""
        has_waiting = self._collectives.pending() or any(True for _ in self._network.unmatched())
        return not has_waiting and all(device.has_ended for device in self.devices)

    def check_complete(self) -> None:
        """Raise `SimulationError`, which says why, if some task never ends."""
        unmatched, collectives = self._network.unmatched(), self._collectives.pending()
        check_complete(self.devices, unmatched, collectives, self._network.members)

    def _start_changed(self) -> None:
        while self._changed:
            changed = sorted(self._changed)
            self._changed.clear()
            for number in changed:
                self._start_ready(self.devices[number])
        if self._settle is not None:
            self._settle()

    def end(self, run: TaskRun) -> None:
        """End a task and start the tasks that it releases."""
        if self._ties is not None:
            self._ties.end(run)
        device = run.device
        device.end(run, self._kernel.now_ps)
        if self._settle is None:
            self._start_ready(device)
        else:
            self._changed.add(device.number)

    def _start_ready(self, device: Device) -> None:
        ready = device.take_ready()
        if self._ties is not None:
            self._ties.start(ready)
        for run in ready:
            run.issue_ps = self._kernel.now_ps
            self._start(run)

    def _start(self, run: TaskRun) -> None:
        match run.task:
            case ComputeTask(is_on_host=False) as task if self._compute is not None:
                self._compute(run, task, self.end)
            case (
                ComputeTask(duration_ps=int(duration_ps))
                | CollectiveTask(recorded_ps=int(duration_ps))
                | MemoryTask(duration_ps=int(duration_ps))
            ):
                run.device.clock.after(duration_ps, self.end, run)
            case CollectiveTask():
                self._join(run, run.task)
            case SendTask() as task:
                self._network.send(run, task, self.end)
            case ReceiveTask() as task:
                self._network.receive(run, task, self.end)
            case MemoryTask() as task:
                self._network.access(run, task, self.end)
            case EmptyTask() if self._settle is None:
                # Its children start only at the next end of another task.
                run.device.end(run, self._kernel.now_ps)
            case EmptyTask():
                self.end(run)
            case _:
                assert_never(run.task)

    def _join(self, run: TaskRun, task: CollectiveTask) -> None:
        now_ps, number = self._kernel.now_ps, run.device.number
        signature = (task.kind, task.size_bytes)
        match = self._collectives.join(run.group, number, run, signature=signature, now_ps=now_ps)
        if match.signature != signature:
            raise other_collective(match, run, now_ps)
        is_complete = len(match.endpoints) == len(self._network.members(run.group))
        if is_complete:
            self._collectives.complete(match)
        self._network.join(run, match, self.end, is_complete=is_complete)
