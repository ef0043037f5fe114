"""Jobs whose tasks take as long as they did where they were recorded: ``replay-only``.

Source: ASTRA-sim's replay. A collective, a send or a memory access lasts its recorded time in the
slot of communication, a receive its own without a slot; nobody waits for anybody else.
"""

from __future__ import annotations

from dataclasses import replace

from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, Task

OPTION = "replay-only"


def is_replay(system: System) -> bool:
    """Return whether a system only replays what was recorded."""
    return bool(system.options.get(OPTION))


def check_recorded(job: Job) -> None:
    """Raise `SimulationError` for a task whose recorded duration isn't there."""
    for graph in job.graphs:
        for task in graph.tasks:
            if not _is_recorded(task):
                raise SimulationError(
                    f"{OPTION} needs the recorded duration of task {task.id} ({task.name})",
                    location=graph.name,
                    hint="read its traces with is_recorded=True",
                )


def _is_recorded(task: Task) -> bool:
    match task:
        case ComputeTask():
            return True
        case CollectiveTask():
            return task.recorded_ps is not None
        case _:
            return False


def with_replayed(timeline: Timeline) -> Timeline:
    """Return a timeline that counts what was replayed as ASTRA-sim does.

    Replayed communication counts as computation in what is called exposed, which may thus be
    less than 0, where communication was hidden.
    """
    return Timeline(classes=tuple([_with_replayed(one) for one in timeline.classes]))


def _with_replayed(one: ClassTimeline) -> ClassTimeline:
    spans = [one.nodes[task.id] for task in one.graph.tasks if isinstance(task, CollectiveTask)]
    return replace(one, replayed_ps=sum(end - start for start, end in spans))
