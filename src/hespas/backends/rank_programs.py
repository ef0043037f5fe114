"""What each rank does, one thing after the other, for simulators that play messages.

Collectives are lowered to rounds of messages by an algorithm of `hespas.collectives`; a round ends
for a rank when it has sent and received what it has to. A rank does one thing at a time, in the
order of its task graph: what would overlap does not, which `notes` say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import assert_never

from hespas.collectives.registry import ALGORITHMS, algorithms_for
from hespas.collectives.schedule import Collective, Rounds, Schedule
from hespas.errors import SimulationError
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    ComputeTask,
    EmptyTask,
    Job,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)

_COLLECTIVES = {
    CommunicationKind.ALL_REDUCE: Collective.ALL_REDUCE,
    CommunicationKind.REDUCE: Collective.REDUCE,
    CommunicationKind.ALL_GATHER: Collective.ALL_GATHER,
    CommunicationKind.GATHER: Collective.GATHER,
    CommunicationKind.SCATTER: Collective.SCATTER,
    CommunicationKind.BROADCAST: Collective.BROADCAST,
    CommunicationKind.ALL_TO_ALL: Collective.ALL_TO_ALL,
    CommunicationKind.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    CommunicationKind.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
    CommunicationKind.BARRIER: Collective.BARRIER,
}
_OF_COLLECTIVES = 0
"""The tag of all their messages: the ranks of a group run its collectives in one order."""
_NOT_OVERLAPPED = (
    "a rank does one thing at a time: nothing is hidden behind computation, and collectives follow "
    "each other"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Computation, or anything else that keeps a rank busy without messages."""

    duration_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A message to or from ``peer``; messages between two ranks are matched by their ``tag``."""

    peer: int
    size_bytes: int
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Messages that go at once; it ends when all are sent and received."""

    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


Action = Wait | Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrograms:
    """The actions of every rank, in order; ``notes`` are what was lost or assumed."""

    ranks: tuple[tuple[Action, ...], ...]
    notes: tuple[str, ...]


def rank_programs(job: Job, *, algorithm: str | None = None) -> RankPrograms:
    """Return what the ranks of a job do.

    Collectives run by ``algorithm``, or by the usual one of each. Raises `SimulationError` for
    tasks without a duration, recorded ones, collectives along some dimensions alone, and an
    algorithm that cannot run a collective.
    """
    writers = [_Writer(rank=rank, algorithm=algorithm) for rank in range(job.device_count)]
    for writer, index in zip(writers, job.graph_of_device, strict=True):
        for task in job.graphs[index].tasks:
            writer.add(task, job.graphs[index])
    used = sorted({name for writer in writers for name in writer.algorithms})
    notes = [_NOT_OVERLAPPED, *(f"{collective} runs as {name}" for collective, name in used)]
    return RankPrograms(ranks=tuple([writer.finished() for writer in writers]), notes=tuple(notes))


class _Writer:
    """Writes the actions of one rank; transfers that stand side by side are one exchange."""

    def __init__(self, *, rank: int, algorithm: str | None) -> None:
        self._rank = rank
        self._algorithm = algorithm
        self._actions: list[Action] = []
        self._sends: list[Transfer] = []
        self._receives: list[Transfer] = []
        self.algorithms: set[tuple[str, str]] = set()

    def add(self, task: Task, graph: TaskGraph) -> None:
        match task:
            case SendTask():
                self._sends += [
                    Transfer(peer=target, size_bytes=task.size_bytes, tag=task.tag + 1)
                    for source, target in task.pairs
                    if source == self._rank
                ]
            case ReceiveTask():
                self._receives += [
                    Transfer(peer=source, size_bytes=task.size_bytes, tag=task.tag + 1)
                    for source, target in task.pairs
                    if target == self._rank
                ]
            case ComputeTask() | MemoryTask():
                self._flush()
                self._actions.append(Wait(duration_ps=_duration_ps(task)))
            case CollectiveTask():
                self._flush()
                self._collective(task, graph)
            case EmptyTask():
                pass
            case _:
                assert_never(task)

    def finished(self) -> tuple[Action, ...]:
        self._flush()
        return tuple(self._actions)

    def _flush(self) -> None:
        if self._sends or self._receives:
            sends, receives = tuple(self._sends), tuple(self._receives)
            self._actions.append(Exchange(sends=sends, receives=receives))
            self._sends, self._receives = [], []

    def _collective(self, task: CollectiveTask, graph: TaskGraph) -> None:
        if task.recorded_ps is not None or task.involved_dimensions is not None:
            what = "recorded" if task.recorded_ps is not None else "along some dimensions alone"
            raise SimulationError(
                f"{task.name} is {what}, which no message says",
                location=graph.name,
                hint="simulate it by hespas: --backend hespas",
            )
        group = _group(task, graph, self._rank)
        if len(group) < 2 or not task.size_bytes:
            return
        schedule = _schedule(_COLLECTIVES[task.kind], len(group), self._algorithm)
        self.algorithms.add((schedule.collective.value, schedule.name))
        place = group.index(self._rank)
        for rounds, sources, targets in _of_place(schedule, place):
            size_bytes = schedule.message_bytes(rounds, task.size_bytes)
            self._actions.append(
                Exchange(
                    sends=tuple(_transfers(targets, group, size_bytes)),
                    receives=tuple(_transfers(sources, group, size_bytes)),
                )
            )


def _transfers(
    places: tuple[int, ...], group: tuple[int, ...], size_bytes: int
) -> Iterator[Transfer]:
    for place in places:
        yield Transfer(peer=group[place], size_bytes=size_bytes, tag=_OF_COLLECTIVES)


def _duration_ps(task: ComputeTask | MemoryTask) -> int:
    is_known = task.has_duration if isinstance(task, ComputeTask) else task.duration_ps is not None
    if not is_known or task.duration_ps is None:
        raise SimulationError(
            f"{task.name} has no duration", hint="simulate it by hespas: --backend hespas"
        )
    return task.duration_ps


def _group(task: CollectiveTask, graph: TaskGraph, rank: int) -> tuple[int, ...]:
    if task.group_table is None:
        return tuple(range(graph.device_count))
    return next((each for each in graph.group_tables[task.group_table] if rank in each), ())


@cache
def _schedule(collective: Collective, members: int, algorithm: str | None) -> Schedule:
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise SimulationError(
            f"no algorithm is called {algorithm!r}",
            hint=f"choose one of {', '.join(sorted(ALGORITHMS))}",
        )
    if algorithm is not None:
        return ALGORITHMS[algorithm].schedule(collective, members)
    able = [one for one in algorithms_for(collective, members) if one.name != "in-switch"]
    if not able:
        raise SimulationError(f"no algorithm runs {collective.value} among {members} ranks")
    return able[0].schedule(collective, members)


@cache
def _of_place(
    schedule: Schedule, place: int
) -> tuple[tuple[Rounds, tuple[int, ...], tuple[int, ...]], ...]:
    """Return, round by round, whom a member hears and whom it tells; rounds without it are left."""
    found: list[tuple[Rounds, tuple[int, ...], tuple[int, ...]]] = []
    for _, group in groupby(schedule.messages(), key=lambda one: (id(one[0]), one[1].round)):
        sent = list(group)
        sources = tuple([message.source for _, message, _ in sent if message.target == place])
        targets = tuple([message.target for _, message, _ in sent if message.source == place])
        if sources or targets:
            found.append((sent[0][0], sources, targets))
    return tuple(found)
