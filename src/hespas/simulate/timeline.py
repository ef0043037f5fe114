"""The result of a simulation: when each task starts and ends, and sums of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hespas.schedule.intervals import Interval, covered_ps, exposed_parts
from hespas.schedule.tasks import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)
from hespas.units import PS_PER_NS, PS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTimeline:
    """What devices that behave alike do. Times are in ps from the start of the step.

    ``nodes`` gives (issue, end) by task id. ``compute_ps`` is the sum of the computations,
    ``communication_ps`` the time during which any communication is under way (a receive from
    when it is posted), ``overlap_ps`` the time during which both are.
    ``exposed_communication_ps`` is ASTRA-sim's term: the finish less ``compute_ps``, and less
    ``replayed_ps``, the sum of replayed communication; idle time included. ``exposed_ps`` gives, by
    communication task, the part of it that no computation hides. ``streams`` names, by task id,
    the streams of communication tasks where there are several.
    """

    devices: tuple[int, ...]
    graph: TaskGraph
    nodes: Mapping[int, Interval]
    finish_ps: int
    compute_ps: int
    communication_ps: int
    overlap_ps: int
    exposed_ps: Mapping[int, int]
    replayed_ps: int = 0
    streams: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def exposed_communication_ps(self) -> int:
        """The finish less the sum of the computations, and of replayed communication."""
        return self.finish_ps - self.compute_ps - self.replayed_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What all devices do, in classes; each device is in one of them.

    ``model`` names the network model, and ``assumptions`` what it assumes.
    """

    classes: tuple[ClassTimeline, ...]
    model: str = "astra-sim"
    assumptions: tuple[str, ...] = ()

    @property
    def finish_ps(self) -> int:
        """When the last device ends: the duration of the step."""
        return max((one.finish_ps for one in self.classes), default=0)

    @property
    def step_time_s(self) -> float:
        """The duration of the step in seconds."""
        return self.finish_ps / PS_PER_S

    def of_device(self, device: int) -> ClassTimeline:
        """Return what one device does. Raises `KeyError` for an absent one."""
        for one in self.classes:
            if device in one.devices:
                return one
        raise KeyError(device)

    def as_json(self, *, with_nodes: bool = False) -> dict[str, object]:
        """Return the object that ``hespas simulate`` prints; times in ns, whole ones as ints.

        Keys: ``step_time_ns``; ``devices``, by device; ``model`` and ``assumptions``, where the
        model has any; and, if asked for, ``nodes``, by device and task id, as [issue, end].
        """
        per_device = {device: one for one in self.classes for device in one.devices}
        figures = {id(one): _figures(one) for one in self.classes}
        result: dict[str, object] = {
            "step_time_ns": _ns(self.finish_ps),
            "devices": {str(d): figures[id(per_device[d])] for d in sorted(per_device)},
        }
        if self.assumptions:
            result |= {"model": self.model, "assumptions": list(self.assumptions)}
        if with_nodes:
            nodes = {id(one): _nodes(one) for one in self.classes}
            result["nodes"] = {str(d): nodes[id(per_device[d])] for d in sorted(per_device)}
        return result


def class_timeline(
    devices: tuple[int, ...],
    graph: TaskGraph,
    tasks: Sequence[Task],
    issue_ps: Sequence[int],
    end_ps: Sequence[int],
) -> ClassTimeline:
    """Return the timeline of a class of devices from the starts and ends of its tasks."""
    spans = list(zip(issue_ps, end_ps, strict=True))
    computing = sorted(
        span
        for task, span in zip(tasks, spans, strict=True)
        if isinstance(task, ComputeTask) and not task.is_on_host
    )
    communicating = {
        task.id: span
        for task, span in zip(tasks, spans, strict=True)
        if isinstance(task, CollectiveTask | SendTask | ReceiveTask)
    }
    finish_ps = max(end_ps, default=0)
    communication_ps = covered_ps(communicating.values())
    compute_ps = sum(end - start for start, end in computing)
    exposed = exposed_parts(computing, communicating.values())
    return ClassTimeline(
        devices=devices,
        graph=graph,
        nodes={task.id: span for task, span in zip(tasks, spans, strict=True)},
        finish_ps=finish_ps,
        compute_ps=compute_ps,
        communication_ps=communication_ps,
        overlap_ps=max(0, compute_ps + communication_ps - finish_ps),
        exposed_ps={
            task: sum(end - start for start, end in parts)
            for task, parts in zip(communicating, exposed, strict=True)
        },
    )


def _ns(time_ps: int) -> int | float:
    return time_ps // PS_PER_NS if time_ps % PS_PER_NS == 0 else time_ps / PS_PER_NS


def _figures(one: ClassTimeline) -> dict[str, int | float]:
    return {
        "finish_ns": _ns(one.finish_ps),
        "compute_ns": _ns(one.compute_ps),
        "communication_ns": _ns(one.communication_ps),
        "exposed_communication_ns": _ns(one.exposed_communication_ps),
        "overlap_ns": _ns(one.overlap_ps),
    }


def _nodes(one: ClassTimeline) -> dict[str, list[int | float]]:
    return {str(task): [_ns(start), _ns(end)] for task, (start, end) in one.nodes.items()}
