"""Flows: from what starts communication to it, and from it to what waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hespas.report.timeline.partners import Partners, TaskOfClass
from hespas.report.timeline.waits import last_before, own_dependencies
from hespas.tasks.graph import CollectiveTask, ReceiveTask, SendTask

_NONE: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """The numbers of the flows that start and end at tasks, by class and task."""

    starts: Mapping[TaskOfClass, tuple[int, ...]]
    ends: Mapping[TaskOfClass, tuple[int, ...]]

    def of(self, number: int, task: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the flows that start at a task of a class, and those that end there."""
        return self.starts.get((number, task), _NONE), self.ends.get((number, task), _NONE)


def flows_of(partners: Partners, shown: Iterable[int]) -> Flows:
    """Return the flows among the classes that are shown.

    A communication has one flow from the task that it waited for last, and one to the first task
    that waits for it; a message has one from its send to its receive or, where that was posted
    before, to what waits for the receive. A flow leads forward in time.
    """
    starts: dict[TaskOfClass, tuple[int, ...]] = {}
    ends: dict[TaskOfClass, tuple[int, ...]] = {}
    classes = partners.timeline.classes
    count = 0
    for source, target in dict.fromkeys(_pairs(partners, frozenset(shown))):
        begun = classes[source[0]].nodes[source[1]][0]
        if begun >= classes[target[0]].nodes[target[1]][0]:
            continue
        count += 1
        starts[source] = (*starts.get(source, _NONE), count)
        ends[target] = (*ends.get(target, _NONE), count)
    return Flows(starts=starts, ends=ends)


def _pairs(partners: Partners, shown: frozenset[int]) -> Iterator[tuple[TaskOfClass, TaskOfClass]]:
    for number in sorted(shown):
        tasks = partners.tasks[number]
        one = partners.timeline.classes[number]
        needed = own_dependencies(one)
        waiting = _first_waiting(one.nodes, needed)
        for task_id, task in tasks.items():
            if not isinstance(task, CollectiveTask | SendTask | ReceiveTask):
                continue
            before = last_before(one, needed[task_id], one.nodes[task_id][0])
            if before is not None:
                yield (number, before), (number, task_id)
            if task_id in waiting:
                yield (number, task_id), (number, waiting[task_id])
            send = partners.send_of(number, task) if isinstance(task, ReceiveTask) else None
            if send is not None and send[0] in shown:
                sent_ps = partners.timeline.classes[send[0]].nodes[send[1]][0]
                is_posted = one.nodes[task_id][0] <= sent_ps
                reader = waiting.get(task_id, task_id) if is_posted else task_id
                yield send, (number, reader)


def _first_waiting(
    nodes: Mapping[int, tuple[int, int]], needed: Mapping[int, tuple[int, ...]]
) -> dict[int, int]:
    """Return, for each task that others need, the one of them that starts first."""
    first: dict[int, int] = {}
    for task, before in needed.items():
        for each in before:
            known = first.get(each)
            if known is None or nodes[task] < nodes[known]:
                first[each] = task
    return first
