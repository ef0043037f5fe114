"""Which collectives of a trace have algorithms."""

from __future__ import annotations

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind
from hespas.schedule.tasks import CollectiveTask, CommunicationKind

_KINDS = {
    CommunicationKind.ALL_REDUCE: CollectiveKind.ALL_REDUCE,
    CommunicationKind.ALL_GATHER: CollectiveKind.ALL_GATHER,
    CommunicationKind.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER,
    CommunicationKind.ALL_TO_ALL: CollectiveKind.ALL_TO_ALL,
}


def task_text(task: CollectiveTask) -> str:
    """Return how errors name a collective."""
    return f"{task.kind.name} {task.id} ({task.name})"


def collective_kind(task: CollectiveTask) -> CollectiveKind:
    """Return the kind whose algorithm runs a collective. Raises `SimulationError` without one."""
    if task.kind not in _KINDS:
        raise SimulationError(f"{task.kind.name} has no model here", location=task_text(task))
    return _KINDS[task.kind]
