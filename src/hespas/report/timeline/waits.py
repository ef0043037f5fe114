"""What devices wait for: others that come late to a collective, and whatever starts a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hespas.report.timeline.partners import Partners
from hespas.simulate.timeline import ClassTimeline
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, Task, short_devices_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A time in which something waits; ``reason`` says for what."""

    start_ps: int
    end_ps: int
    reason: str


def own_dependencies(one: ClassTimeline) -> Mapping[int, tuple[int, ...]]:
    """Return the tasks that each task of a class waits for, by id.

    In the place of a task in which the class takes no part stand that one's dependencies.
    """
    own: dict[int, tuple[int, ...]] = {}
    skipped: dict[int, tuple[int, ...]] = {}
    for task in one.graph.tasks:
        before = task.depends_on
        if skipped and not skipped.keys().isdisjoint(before):
            before = tuple(dict.fromkeys(d for dep in before for d in skipped.get(dep, (dep,))))
        (own if task.id in one.nodes else skipped)[task.id] = before
    return own


def last_before(one: ClassTimeline, dependencies: tuple[int, ...], start_ps: int) -> int | None:
    """Return the dependency that ended last, and not after ``start_ps``; None for none."""
    ended = [each for each in dependencies if one.nodes[each][1] <= start_ps]
    return max(ended, key=lambda each: (one.nodes[each][1], -each), default=None)


def arrivals(partners: Partners, number: int) -> Mapping[int, Wait]:
    """Return how long a class waits in a collective or a receive, by the task's id.

    It waits for devices that start the same collective later, or send later.
    """
    classes = partners.timeline.classes
    late: dict[int, Wait] = {}
    for task_id, task in partners.tasks[number].items():
        start_ps, end_ps = classes[number].nodes[task_id]
        latest = max(
            _starts_of_others(partners, number, task), key=lambda each: each[0], default=None
        )
        if latest is not None and latest[0] > start_ps:
            reason = short_devices_text(classes[latest[1]].devices)
            late[task_id] = Wait(start_ps=start_ps, end_ps=min(latest[0], end_ps), reason=reason)
    return late


def _starts_of_others(partners: Partners, number: int, task: Task) -> Iterator[tuple[int, int]]:
    """Yield when others start their part in a task, and which class they are."""
    classes = partners.timeline.classes
    match task:
        case CollectiveTask(recorded_ps=None):
            for other in partners.others(number, task):
                yield classes[other].nodes[task.id][0], other
        case ReceiveTask():
            send = partners.send_of(number, task)
            if send is not None:
                yield classes[send[0]].nodes[send[1]][0], send[0]
        case _:
            return


def waits_of(partners: Partners, number: int) -> Iterator[Wait]:
    """Yield the times in which a class doesn't compute, each with what it waits for.

    That is what the next computation needs last; after the last one, whatever ends the step.
    """
    timeline = partners.timeline
    one = timeline.classes[number]
    tasks = partners.tasks[number]
    needed = own_dependencies(one)
    computing = sorted(
        (one.nodes[task.id], task.id)
        for task in tasks.values()
        if isinstance(task, ComputeTask) and not task.is_on_host
    )
    reached = 0
    for (start_ps, end_ps), task_id in computing:
        if start_ps > reached:
            last = last_before(one, needed[task_id], start_ps)
            reason = "its turn" if last is None else tasks[last].name
            yield Wait(start_ps=reached, end_ps=start_ps, reason=reason)
        reached = max(reached, end_ps)
    if reached < one.finish_ps:
        last = max(tasks, key=lambda each: one.nodes[each][1])
        yield Wait(start_ps=reached, end_ps=one.finish_ps, reason=tasks[last].name)
        reached = one.finish_ps
    if reached < timeline.finish_ps:
        slowest = short_devices_text(timeline.slowest.devices)
        yield Wait(start_ps=reached, end_ps=timeline.finish_ps, reason=f"the end of {slowest}")
