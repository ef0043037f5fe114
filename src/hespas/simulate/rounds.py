"""A whole step from the simulation of one in which each loop has one round.

Where all devices begin a round at the same time and with nothing under way, every round of a loop
takes what its first one takes: what a step takes follows by multiplication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hespas.schedule.intervals import covered_ps
from hespas.schedule.tasks import CollectiveTask, ComputeTask, ReceiveTask, SendTask, Task
from hespas.simulate.timeline import ClassTimeline, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Tasks between two beginnings or ends of rounds, by id, and how often they run in a step."""

    tasks: frozenset[int]
    count: int


def multiplied(timeline: Timeline, stretches: Sequence[Stretch]) -> Timeline | None:
    """Return a timeline's sums with each stretch as often as it runs.

    ``stretches`` have every task, in order. ``nodes`` stay those of one round. None where rounds
    need not be alike: where something is under way between two stretches, where devices reach an
    end at different times, or where they aren't as specified.
    """
    if timeline.as_specified is not None:
        return None
    ends = {_ends(one, stretches) for one in timeline.classes}
    if len(ends) != 1:
        return None
    (found,) = ends
    if found is None:
        return None
    return replace(
        timeline,
        classes=tuple([_multiplied(one, stretches, found) for one in timeline.classes]),
    )


def _ends(one: ClassTimeline, stretches: Sequence[Stretch]) -> tuple[int, ...] | None:
    """Return when each stretch ends, 0 first; None where one begins before another has ended."""
    found = [0]
    for stretch in stretches:
        spans = [one.nodes[task] for task in stretch.tasks if task in one.nodes]
        if any(start < found[-1] for start, _ in spans):
            return None
        found.append(max((end for _, end in spans), default=found[-1]))
    return tuple(found)


def _multiplied(
    one: ClassTimeline, stretches: Sequence[Stretch], ends: Sequence[int]
) -> ClassTimeline:
    tasks: Mapping[int, Task] = {task.id: task for task in one.graph.tasks if task.id in one.nodes}
    times = [stretch.count for stretch in stretches]
    finish_ps = sum(
        count * (end - start) for count, (start, end) in zip(times, pairwise(ends), strict=True)
    )
    compute_ps = communication_ps = 0
    counts: dict[int, int] = {}
    for stretch in stretches:
        inside = [tasks[number] for number in stretch.tasks if number in tasks]
        computing = [each for each in inside if isinstance(each, ComputeTask)]
        spans = [one.nodes[each.id] for each in computing if not each.is_on_host]
        compute_ps += stretch.count * sum(end - start for start, end in spans)
        communicating = [
            each for each in inside if isinstance(each, CollectiveTask | SendTask | ReceiveTask)
        ]
        covered = covered_ps(one.nodes[each.id] for each in communicating)
        communication_ps += stretch.count * covered
        counts.update(dict.fromkeys(stretch.tasks, stretch.count))
    return replace(
        one,
        finish_ps=finish_ps,
        compute_ps=compute_ps,
        communication_ps=communication_ps,
        overlap_ps=max(0, compute_ps + communication_ps - finish_ps),
        exposed_ps={task: counts[task] * exposed for task, exposed in one.exposed_ps.items()},
    )
