"""Computation on the multiprocessors that collectives leave.

A collective of a GPU library is a kernel: each of its channels occupies a multiprocessor while it
runs. Computation beside it takes longer, by the share of it that arithmetic bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from hespas.simulate.engine import TaskRun
from hespas.simulate.kernel import Kernel
from hespas.tasks.graph import ComputeTask

_MOST_OCCUPIED = 0.5
"""Beyond this share, concurrent collectives wait for each other's multiprocessors."""


@dataclass(slots=True, eq=False)
class _Running:
    """A running computation, and its remaining time at full speed.

    ``remaining_ps`` counts from ``since_ps`` on.
    """

    run: TaskRun
    end: Callable[[TaskRun], None]
    duration_ps: int
    remaining_ps: float
    since_ps: int
    slowdown: float
    version: int = 0


class Multiprocessors:
    """Each device class's computation, and the share collectives take.

    ``slowed_ps`` is, by device class, what computation took longer than alone.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._occupied: dict[int, float] = {}
        self._running: dict[int, _Running] = {}
        self.slowed_ps: dict[int, int] = {}

    def start(self, run: TaskRun, task: ComputeTask, end: Callable[[TaskRun], None]) -> None:
        """Start a computation; ``end`` is called when it has ended."""
        device = run.device.number
        running = self._running[device] = _Running(
            run=run,
            end=end,
            duration_ps=task.duration_ps,
            remaining_ps=task.duration_ps,
            since_ps=self._kernel.now_ps,
            slowdown=self._slowdown(device, task),
        )
        self._schedule(running)

    def occupy(self, device: int, share: float) -> None:
        """Occupy (below 0: free) a share of a device's multiprocessors."""
        if not share:
            return
        self._occupied[device] = self._occupied.get(device, 0.0) + share
        if self._occupied[device] < abs(share) * 1e-6:
            del self._occupied[device]
        running = self._running.get(device)
        if running is None or not isinstance(running.run.task, ComputeTask):
            return
        now_ps = self._kernel.now_ps
        done_ps = (now_ps - running.since_ps) / running.slowdown
        running.remaining_ps = max(0.0, running.remaining_ps - done_ps)
        running.since_ps = now_ps
        running.slowdown = self._slowdown(device, running.run.task)
        running.version += 1
        self._schedule(running)

    def _slowdown(self, device: int, task: ComputeTask) -> float:
        """Return how many times longer a computation takes meanwhile."""
        occupied = min(_MOST_OCCUPIED, self._occupied.get(device, 0.0))
        return 1.0 + task.arithmetic_share * (1.0 / (1.0 - occupied) - 1.0)

    def _schedule(self, running: _Running) -> None:
        remaining_ps = ceil(running.remaining_ps * running.slowdown)
        self._kernel.after(remaining_ps, self._ended, (running, running.version))

    def _ended(self, scheduled: tuple[_Running, int]) -> None:
        running, version = scheduled
        if version != running.version:
            return
        run = running.run
        number = run.device.number
        del self._running[number]
        slowed_ps = self._kernel.now_ps - run.issue_ps - running.duration_ps
        self.slowed_ps[number] = self.slowed_ps.get(number, 0) + slowed_ps
        running.end(run)
