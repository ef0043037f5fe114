"""How long the communication between the stages and the data-parallel parts of a pipeline takes.

Each kind is simulated alone on the whole system, all groups at once, as all stages communicate at
about the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hespas.hardware.system import System
from hespas.models.model import MeshAxes
from hespas.models.part import PIPE
from hespas.program.collectives import CollectiveKind
from hespas.program.groups import groups_along
from hespas.simulate.models import ModelChoice, simulate_job
from hespas.tasks.graph import CollectiveTask, GroupTable, ReceiveTask, SendTask, Task, TaskGraph


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Times of communication on a system, each found once."""

    system: System
    choice: ModelChoice
    mesh: MeshAxes
    assumptions: list[str] = field(default_factory=list[str])
    _known: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    def collective_ps(self, kind: CollectiveKind, size_bytes: int, axes: Sequence[str]) -> int:
        """Return how long a collective along some axes takes.

        ``size_bytes`` is what one device puts in.
        """
        present = tuple(axis for axis in axes if self.mesh.size(axis) > 1)
        if not present or size_bytes <= 0:
            return 0
        key = (kind, size_bytes, present)
        if key not in self._known:
            table = groups_along(self.mesh.axes, present)
            everyone = len(table) == 1
            task = CollectiveTask(
                id=0,
                name=kind.name.lower(),
                depends_on=(),
                kind=kind,
                size_bytes=size_bytes,
                group_table=None if everyone else 0,
            )
            self._known[key] = self._simulated((task,), () if everyone else (table,))
        return self._known[key]

    def message_ps(self, size_bytes: int) -> int:
        """Return how long it takes to send to the next stage, while every other stage does so."""
        key = ("message", size_bytes)
        if key not in self._known:
            pairs = tuple(self._pairs())
            send = SendTask(
                id=0, name="send", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=0
            )
            receive = ReceiveTask(
                id=1, name="receive", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=0
            )
            self._known[key] = self._simulated((send, receive), ())
        return self._known[key]

    def _pairs(self) -> Sequence[tuple[int, int]]:
        rings = groups_along(self.mesh.axes, (PIPE,))
        return [
            (ring[number], ring[(number + 1) % len(ring)])
            for ring in rings
            for number in range(len(ring))
        ]

    def _simulated(self, tasks: tuple[Task, ...], tables: tuple[GroupTable, ...]) -> int:
        graph = TaskGraph(
            name="pipeline",
            device_count=self.system.device_count,
            tasks=tasks,
            group_tables=tables,
        )
        timeline = simulate_job(graph, self.system, self.choice)
        self.assumptions.extend(
            each for each in timeline.assumptions if each not in self.assumptions
        )
        return timeline.finish_ps
