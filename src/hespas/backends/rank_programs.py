"""What each rank does, one thing after the other, for simulators that play messages.

Collectives are lowered to rounds of messages by an algorithm of `hespas.collectives`, to the
messages that hespas' own network model times; a round ends for a rank when it has sent and received
what it has to. A rank does one thing at a time, in the order of its task graph: what would overlap
does not, which `notes` say. Messages have 1 byte at least, so that barriers are messages too, and
are cut below 2 GiB.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import assert_never

from hespas.collectives.algorithms import (
    ALGORITHMS,
    algorithms_for,
    binary_tree_all_reduce,
    chain,
)
from hespas.collectives.schedule import Form, Rounds, Schedule
from hespas.errors import SimulationError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    Job,
    MemoryTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
)

_MOST_BYTES = 2**31 - 1
"""What htsim and SST's traces count a message's bytes to."""
_BYTES_OF_A_ROUND = 2**16
"""What a link moves while a round of a chain begins: 1.3 us at 50 GB/s."""
_NOT_OF_MESSAGES = "in-switch"
_WITH_ROOT = {
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
    CollectiveKind.GATHER,
    CollectiveKind.SCATTER,
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

    Collectives run by ``algorithm``, or by the usual one of each; broadcasts too, though a trace
    has their duration. Raises `SimulationError` for tasks without a duration, other recorded ones,
    collectives along some dimensions alone, and an algorithm that cannot run a collective.
    """
    writers = [_Writer(rank=rank, algorithm=algorithm) for rank in range(job.device_count)]
    for writer, index in zip(writers, job.graph_of_device, strict=True):
        for task in job.graphs[index].tasks:
            writer.add(task, job.graphs[index])
    used = sorted({name for writer in writers for name in writer.algorithms})
    notes = [_NOT_OVERLAPPED]
    for collective, name in used:
        if CollectiveKind(collective) in _WITH_ROOT:
            notes.append(f"one end of a group is the root of its {collective}")
        notes.append(f"{collective} runs as {name}")
    if any(writer.is_raised for writer in writers):
        notes.append("messages without a byte, as those of barriers, have 1")
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
        self.is_raised = False

    def add(self, task: Task, graph: TaskGraph) -> None:
        match task:
            case SendTask():
                peers = [target for source, target in task.pairs if source == self._rank]
                self._sends += self._transfers(peers, task.size_bytes, task.tag + 1)
            case ReceiveTask():
                peers = [source for source, target in task.pairs if target == self._rank]
                self._receives += self._transfers(peers, task.size_bytes, task.tag + 1)
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
        is_recorded = task.recorded_ps is not None and task.kind is not CollectiveKind.BROADCAST
        if is_recorded or task.involved_dimensions is not None:
            what = "recorded" if is_recorded else "along some dimensions alone"
            raise SimulationError(
                f"{task.name} is {what}, which no message says",
                location=graph.name,
                hint="simulate it by hespas: --backend hespas",
            )
        group = _group(task, graph, self._rank)
        if len(group) < 2:
            return
        schedule = _schedule(task.kind.base, len(group), self._algorithm, task.size_bytes)
        self.algorithms.add((schedule.collective.value, schedule.name))
        for rounds, sources, targets in _of_place(schedule, group.index(self._rank)):
            size_bytes = schedule.message_bytes(rounds, task.size_bytes)
            self._actions.append(
                Exchange(
                    sends=self._transfers([group[each] for each in targets], size_bytes),
                    receives=self._transfers([group[each] for each in sources], size_bytes),
                )
            )

    def _transfers(
        self, peers: Sequence[int], size_bytes: int, tag: int = _OF_COLLECTIVES
    ) -> tuple[Transfer, ...]:
        """Return a message for each peer; one of 2 GiB or more is cut."""
        if size_bytes < 0:
            raise SimulationError(f"a message has {size_bytes} bytes")
        self.is_raised |= bool(peers) and not size_bytes
        whole, rest = divmod(max(1, size_bytes), _MOST_BYTES)
        sizes = [_MOST_BYTES] * whole + [rest] * (rest > 0)
        return tuple([Transfer(peer=peer, size_bytes=s, tag=tag) for peer in peers for s in sizes])


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


def _schedule(
    collective: CollectiveKind, members: int, algorithm: str | None, size_bytes: int
) -> Schedule:
    """Return the messages of a collective as hespas' network model times them.

    Members of a tree hand on whole buffers. Those of a chain hand on pieces: k of them, of s / k
    bytes, take k + members - 2 rounds, the least time where k**2 is (members - 2) s by what a link
    moves while a round begins.
    """
    schedule = _chosen(collective, members, algorithm)
    if schedule.name == "double-binary-tree":
        return _binary_tree(members)
    if schedule.rounds[0].pattern.form is not Form.PATH:
        return schedule
    pieces = max(1, isqrt((members - 2) * size_bytes // _BYTES_OF_A_ROUND))
    return _chain(collective, members, pieces)


_binary_tree = cache(binary_tree_all_reduce)
_chain = cache(chain)


@cache
def _chosen(collective: CollectiveKind, members: int, algorithm: str | None) -> Schedule:
    if algorithm is not None and (algorithm not in ALGORITHMS or algorithm == _NOT_OF_MESSAGES):
        raise SimulationError(
            f"no algorithm of messages between ranks is called {algorithm!r}",
            hint=f"choose one of {', '.join(sorted({*ALGORITHMS} - {_NOT_OF_MESSAGES}))}",
        )
    if algorithm is not None:
        return ALGORITHMS[algorithm].schedule(collective, members)
    able = [one for one in algorithms_for(collective, members) if one.name != _NOT_OF_MESSAGES]
    if not able:
        raise SimulationError(f"no algorithm runs {collective.value} among {members} ranks")
    return able[0].schedule(collective, members)


@cache
def _of_place(
    schedule: Schedule, place: int
) -> tuple[tuple[Rounds, tuple[int, ...], tuple[int, ...]], ...]:
    """Return, round by round, whom a member hears and whom it tells; rounds without it are left."""
    found: list[tuple[Rounds, tuple[int, ...], tuple[int, ...]]] = []
    for rounds, sent in schedule.by_round():
        sources = tuple([message.source for message, _ in sent if message.target == place])
        targets = tuple([message.target for message, _ in sent if message.source == place])
        if sources or targets:
            found.append((rounds, sources, targets))
    return tuple(found)


Place = tuple[int, int]
"""A rank, and the number of its exchange."""


def matched(ranks: Sequence[Sequence[Action]]) -> Iterator[tuple[Place, Place, int]]:
    """Yield each message: the exchanges that send and receive it, and its bytes.

    Raises `SimulationError` for messages that are sent and never received, or the reverse.
    """
    exchanges = [[each for each in actions if isinstance(each, Exchange)] for actions in ranks]
    waiting: dict[tuple[int, int, int], deque[tuple[Place, int]]] = defaultdict(deque)
    for rank, own in enumerate(exchanges):
        for number, exchange in enumerate(own):
            for each in exchange.receives:
                waiting[each.peer, rank, each.tag].append(((rank, number), each.size_bytes))
    for rank, own in enumerate(exchanges):
        for number, exchange in enumerate(own):
            for each in exchange.sends:
                expected = waiting[rank, each.peer, each.tag]
                if not expected or expected[0][1] != each.size_bytes:
                    raise SimulationError(
                        f"device {each.peer} never receives {each.size_bytes} bytes of {rank}"
                    )
                yield (rank, number), expected.popleft()[0], each.size_bytes
    for (source, target, _), left in waiting.items():
        if left:
            raise SimulationError(f"device {source} never sends what device {target} waits for")
