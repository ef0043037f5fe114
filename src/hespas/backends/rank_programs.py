"""Write a job as exchanges and waits of ranks.

`rank_programs` gives each rank's actions in sequence, for simulators that play messages.
Collectives are lowered to rounds of messages by an algorithm of `hespas.collectives`, to the
messages that hespas' own network model times; a round ends for a rank when it has sent and received
all its messages. A rank does one thing at a time, in the order of its task graph: nothing overlaps,
which ``notes`` say. Messages have at least 1 byte, so barriers are messages too, and are cut below
2 GiB.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import cache
from math import isqrt
from typing import assert_never

from hespas.base.frozen import frozen
from hespas.collectives.algorithms import ALGORITHMS, algorithms_for, binary_tree_all_reduce, chain
from hespas.collectives.patterns import Form
from hespas.collectives.schedule import WITH_ROOT, Rounds, Schedule
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
"""The largest byte count of a message in htsim and SST's traces."""
_BYTES_OF_A_ROUND = 2**16
"""The bytes that a link moves while a round of a chain begins: 1.3 us at 50 GB/s."""
_NOT_OF_MESSAGES = "in-switch"
_OF_COLLECTIVES = 0
"""The tag of all collectives' messages: the ranks of a group run collectives in one order."""
_NOT_OVERLAPPED = (
    "a rank does one thing at a time: nothing is hidden behind computation, and collectives follow "
    "each other"
)


@frozen
class Wait:
    """Computation or other work that occupies a rank without messages."""

    duration_ps: int


@frozen
class Transfer:
    """A message to or from ``peer``, matched by its ``tag``."""

    peer: int
    size_bytes: int
    tag: int


@frozen
class Exchange:
    """Concurrent messages; it ends when all are sent and received."""

    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


Action = Wait | Exchange


@frozen
class RankPrograms:
    """The actions of every rank, in order; ``notes`` list losses and assumptions."""

    ranks: tuple[tuple[Action, ...], ...]
    notes: tuple[str, ...]


def rank_programs(job: Job, *, algorithm: str | None = None) -> RankPrograms:
    """Return the actions of a job's ranks.

    Collectives run by ``algorithm``, or by the usual one of each; broadcasts too, although a trace
    has their duration. Raises `SimulationError` for tasks without a duration, other recorded tasks,
    collectives along only some dimensions, and an algorithm that cannot run a collective.
    """
    writers = [_Writer(rank=rank, algorithm=algorithm) for rank in range(job.device_count)]
    for writer, index in zip(writers, job.graph_of_device, strict=True):
        for task in job.graphs[index].tasks:
            writer.add(task, job.graphs[index])
    used = sorted({name for writer in writers for name in writer.algorithms})
    notes = [_NOT_OVERLAPPED]
    for collective, name in used:
        if CollectiveKind(collective) in WITH_ROOT:
            notes.append(f"one end of a group is the root of its {collective}")
        notes.append(f"{collective} runs as {name}")
    if any(writer.is_raised for writer in writers):
        notes.append("messages without a byte, as those of barriers, have 1")
    return RankPrograms(ranks=tuple([writer.finished() for writer in writers]), notes=tuple(notes))


class _Writer:
    """Writes the actions of one rank, joining adjacent transfers."""

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
            reason = "recorded" if is_recorded else "along some dimensions only"
            raise SimulationError(
                f"{task.name} is {reason}, which messages between ranks cannot express",
                location=graph.name,
                hint="simulate it by hespas: --backend hespas",
            )
        group = _group_of_rank(task, graph, self._rank)
        if len(group) < 2:
            return
        schedule = _schedule(task.kind.base, len(group), self._algorithm, task.size_bytes)
        self.algorithms.add((schedule.collective.value, schedule.name))
        for rounds, sources, targets in _rounds_of_member(schedule, group.index(self._rank)):
            size_bytes = schedule.message_bytes(rounds, task.size_bytes)
            self._actions.append(
                Exchange(
                    sends=self._transfers([group[member] for member in targets], size_bytes),
                    receives=self._transfers([group[member] for member in sources], size_bytes),
                )
            )

    def _transfers(
        self, peers: Sequence[int], size_bytes: int, tag: int = _OF_COLLECTIVES
    ) -> tuple[Transfer, ...]:
        """Return a message for each peer, cut below 2 GiB."""
        if size_bytes < 0:
            raise SimulationError(f"a message has {size_bytes} bytes")
        self.is_raised |= bool(peers) and not size_bytes
        full_messages, remainder = divmod(max(1, size_bytes), _MOST_BYTES)
        sizes = [_MOST_BYTES] * full_messages + [remainder] * (remainder > 0)
        return tuple([Transfer(peer=peer, size_bytes=s, tag=tag) for peer in peers for s in sizes])


def _duration_ps(task: ComputeTask | MemoryTask) -> int:
    is_known = task.has_duration if isinstance(task, ComputeTask) else task.duration_ps is not None
    if not is_known or task.duration_ps is None:
        raise SimulationError(
            f"{task.name} has no duration", hint="simulate it by hespas: --backend hespas"
        )
    return task.duration_ps


def _group_of_rank(task: CollectiveTask, graph: TaskGraph, rank: int) -> tuple[int, ...]:
    if task.group_table is None:
        return tuple(range(graph.device_count))
    return next((group for group in graph.group_tables[task.group_table] if rank in group), ())


def _schedule(
    collective: CollectiveKind, members: int, algorithm: str | None, size_bytes: int
) -> Schedule:
    """Return a collective's messages as hespas' network model times them.

    Members of a tree forward whole buffers. Members of a chain forward k pieces of s / k bytes,
    which take k + members - 2 rounds; the time is least if k**2 is (members - 2) s divided by the
    bytes that a link moves while a round begins.
    """
    schedule = _usual_schedule(collective, members, algorithm)
    if schedule.name == "double-binary-tree":
        return _binary_tree(members)
    if schedule.rounds[0].pattern.form is not Form.PATH:
        return schedule
    pieces = max(1, isqrt((members - 2) * size_bytes // _BYTES_OF_A_ROUND))
    return _chain(collective, members, pieces)


_binary_tree = cache(binary_tree_all_reduce)
_chain = cache(chain)


@cache
def _usual_schedule(collective: CollectiveKind, members: int, algorithm: str | None) -> Schedule:
    if algorithm is not None and (algorithm not in ALGORITHMS or algorithm == _NOT_OF_MESSAGES):
        raise SimulationError(
            f"no algorithm of messages between ranks is called {algorithm!r}",
            hint=f"choose one of {', '.join(sorted({*ALGORITHMS} - {_NOT_OF_MESSAGES}))}",
        )
    if algorithm is not None:
        return ALGORITHMS[algorithm].schedule(collective, members)
    able = [item for item in algorithms_for(collective, members) if item.name != _NOT_OF_MESSAGES]
    if not able:
        raise SimulationError(f"no algorithm runs {collective.value} among {members} ranks")
    return able[0].schedule(collective, members)


@cache
def _rounds_of_member(
    schedule: Schedule, place: int
) -> tuple[tuple[Rounds, tuple[int, ...], tuple[int, ...]], ...]:
    """Return a member's sources and targets by round."""
    member_rounds: list[tuple[Rounds, tuple[int, ...], tuple[int, ...]]] = []
    for rounds, sent in schedule.by_round():
        sources = tuple([message.source for message, _ in sent if message.target == place])
        targets = tuple([message.target for message, _ in sent if message.source == place])
        if sources or targets:
            member_rounds.append((rounds, sources, targets))
    return tuple(member_rounds)


Place = tuple[int, int]
"""A rank, and the number of its exchange."""


def matched(ranks: Sequence[Sequence[Action]]) -> Iterator[tuple[Place, Place, int]]:
    """Yield each message's sending and receiving exchange, and its bytes.

    Raises `SimulationError` for messages without a receive, or receives without a message.
    """
    exchanges = [
        ((rank, number), exchange)
        for rank, actions in enumerate(ranks)
        for number, exchange in enumerate(item for item in actions if isinstance(item, Exchange))
    ]
    waiting: dict[tuple[int, int, int], deque[tuple[Place, int]]] = defaultdict(deque)
    for place, exchange in exchanges:
        for transfer in exchange.receives:
            waiting[transfer.peer, place[0], transfer.tag].append((place, transfer.size_bytes))
    for place, exchange in exchanges:
        for transfer in exchange.sends:
            peer, size_bytes = transfer.peer, transfer.size_bytes
            expected = waiting[place[0], peer, transfer.tag]
            if not expected or expected[0][1] != size_bytes:
                message = f"device {peer} never receives {size_bytes} bytes of {place[0]}"
                raise SimulationError(message)
            yield place, expected.popleft()[0], size_bytes
    for (source, target, _), unmatched in waiting.items():
        if unmatched:
            raise SimulationError(f"device {source} never sends what device {target} waits for")
