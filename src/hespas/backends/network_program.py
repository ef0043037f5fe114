"""Share code of network simulators: messages, runs, lower bounds.

Each adapter is a `Backend` once it has its options. `check_answer` compares the results of all of
them with the least time that computation and links allow.

For simulators that play messages, `rank_programs` gives each rank's actions in sequence.
Collectives are lowered to rounds of messages by an algorithm of `hespas.collectives`, to the
messages that hespas' own network model times; a round ends for a rank when it has sent and received
all its messages. A rank does one thing at a time, in the order of its task graph: nothing overlaps,
which ``notes`` say. Messages have at least 1 byte, so barriers are messages too, and are cut below
2 GiB.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import isqrt
from pathlib import Path
from typing import TypeAlias, assert_never

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.process import Limits, run_program
from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.collectives.algorithms import (
    ALGORITHMS,
    algorithms_for,
    binary_tree_all_reduce,
    chain,
)
from hespas.collectives.schedule import WITH_ROOT, Form, Rounds, Schedule
from hespas.errors import ImpossibleTimeError, SimulationError, ToolError
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System, astra_name
from hespas.program.collectives import CollectiveKind
from hespas.simulate.models import check_size, option_of_astra_sim
from hespas.simulate.timeline import ExternalResult
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
    """The actions of every rank, in order, with notes.

    ``notes`` list losses and assumptions.
    """

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
    """Writes the actions of one rank; adjacent transfers form one exchange."""

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
            reason = "recorded" if is_recorded else "along some dimensions alone"
            raise SimulationError(
                f"{task.name} is {reason}, which no message says",
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
    """Return a member's sources and targets in each of its rounds."""
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
        [action for action in actions if isinstance(action, Exchange)] for actions in ranks
    ]
    waiting: dict[tuple[int, int, int], deque[tuple[Place, int]]] = defaultdict(deque)
    for rank, own_exchanges in enumerate(exchanges):
        for number, exchange in enumerate(own_exchanges):
            for transfer in exchange.receives:
                waiting[transfer.peer, rank, transfer.tag].append(
                    ((rank, number), transfer.size_bytes)
                )
    for rank, own_exchanges in enumerate(exchanges):
        for number, exchange in enumerate(own_exchanges):
            for transfer in exchange.sends:
                expected = waiting[rank, transfer.peer, transfer.tag]
                if not expected or expected[0][1] != transfer.size_bytes:
                    raise SimulationError(
                        f"device {transfer.peer} never receives {transfer.size_bytes} bytes "
                        f"of {rank}"
                    )
                yield (rank, number), expected.popleft()[0], transfer.size_bytes
    for (source, target, _), unmatched in waiting.items():
        if unmatched:
            raise SimulationError(f"device {source} never sends what device {target} waits for")


_TOLERANCE = 0.01
"""The relative rounding of simulators: rates to whole Gb/s, answers to four digits."""
_ROUNDED_PS = 1_000_000
"""ASTRA-sim's computations are in whole microseconds: a device's sum is exact within one."""
_UNTIMED = ("roofline-enabled", "replay-only")
"""Options of system.json that replace the durations in a trace."""


Backend: TypeAlias = Callable[[Job, System, Path], ExternalResult]
"""Times a whole job on a system; files and the log stay in the directory.

Raises `DeviceCountError` if the job and the system differ in size, `ToolError` if the program is
missing, fails or takes too long, `ImpossibleTimeError` for an answer below the least possible time,
and `SimulationError` for jobs and systems that it cannot simulate.
"""


@frozen
class ProgramOptions:
    """Options of a simulator that plays messages.

    ``program`` is its file, None to search for it; ``algorithm`` is used by all collectives, None
    for the usual one of each; ``arguments`` are passed on unchanged.
    """

    program: Path | None = None
    algorithm: str | None = None
    arguments: tuple[str, ...] = ()
    time_limit_s: float = 3600.0


def find_program(name: str, variable: str, given: Path | None, *, what: str) -> Path:
    """Return a program: given, from an environment variable, or on the PATH.

    A named program is searched for in the working directory, and then on the PATH; the default is
    ``name`` on the PATH.
    """
    requested = str(given) if given is not None else os.environ.get(variable, "")
    local_path = Path(requested or name).absolute()
    is_local = bool(requested) and local_path.is_file() and os.access(local_path, os.X_OK)
    path = str(local_path) if is_local else shutil.which(requested or name)
    if path is None:
        message = f"there is no program {requested}" if requested else f"{name} is not on the PATH"
        hint = f"build {what}, and give its path or set {variable}"
        raise ToolError(message, location=name, hint=hint)
    return Path(path).absolute()


def check_plays_messages(system: System) -> tuple[str, ...]:
    """Return notes on the system's properties that message engines ignore.

    Raises `SimulationError` for a system whose own files describe its collectives.
    """
    name = option_of_astra_sim(system)
    if name is not None:
        raise SimulationError(
            f"{name} is set, which no message says",
            location=system.name,
            hint="use --backend astra-sim, or hespas' own model of it: --model astra-sim",
        )
    note = (
        "of the system only the bandwidth and latency of links are simulated, as ASTRA-sim's files "
        "have them: no overheads of messages, delays of endpoints, chunks or reductions"
    )
    return (note,)


def run_on_files(
    command: Sequence[str],
    files: Mapping[str, bytes],
    *,
    name: str,
    directory: Path,
    time_limit_s: float,
) -> Path:
    """Write files into a directory, run a command there, and return its log."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_file(directory / file, content)
    return run_program(
        command, name=name, directory=directory, limits=Limits(time_s=time_limit_s)
    ).log


def messages_of(job: Job, system: System, options: ProgramOptions) -> RankPrograms:
    """Return the ranks' actions for a message engine, with all notes."""
    check_size(job.device_count, system)
    of_system = check_plays_messages(system)
    programs = rank_programs(job, algorithm=options.algorithm)
    return RankPrograms(ranks=programs.ranks, notes=(*programs.notes, *of_system))


def dimensions_text(system: System) -> str:
    """Return a system's dimensions as text: ``4 FullyConnected x 2 Switch``."""
    used = [f"{dimension.size} {astra_name(dimension.shape)}" for dimension in system.dimensions]
    return " x ".join(used) or "described for hespas' own model alone"


@frozen
class LinkRate:
    """The bytes per second of a rank's link, and its latency."""

    bytes_per_s: float
    latency_s: float


def check_answer(result: ExternalResult, least_ps: float) -> ExternalResult:
    """Return a simulator's answer; `ImpossibleTimeError` below ``least_ps``."""
    answer_ns = result.finish_ns
    if answer_ns + 1 >= (1 - _TOLERANCE) * least_ps / PS_PER_NS:
        return result
    raise ImpossibleTimeError(
        f"{result.engine} answers {format_time(answer_ns / 1e9)}, where computation and links take "
        f"{format_time(least_ps / PS_PER_S)} at least",
        location=str(result.log or ""),
        hint="read its log, and check that this version reads what hespas writes",
    )


def least_of_ranks_ps(ranks: Sequence[Sequence[Action]], link: LinkRate) -> float:
    """Return a lower bound of the time of ranks' actions in sequence.

    A rank is busy during its computation. An exchange ends once all its messages have arrived,
    which left when their senders started the exchange, at the rate of the link; and no rank ends
    before its link has carried all that it sends, or all that it receives. Raises `SimulationError`
    if ranks deadlock.
    """
    ps_of_byte = PS_PER_S / link.bytes_per_s
    heard: dict[Place, list[tuple[Place, int]]] = {}
    sent, received = [0] * len(ranks), [0] * len(ranks)
    for source, target, size_bytes in matched(ranks):
        heard.setdefault(target, []).append((source, size_bytes))
        sent[source[0]] += size_bytes
        received[target[0]] += size_bytes
    ends_ps = _ends_ps(ranks, heard, ps_of_byte, link.latency_s * PS_PER_S)
    return max(*ends_ps, max(sent) * ps_of_byte, max(received) * ps_of_byte, 0.0)


def _ends_ps(
    ranks: Sequence[Sequence[Action]],
    heard: Mapping[Place, Sequence[tuple[Place, int]]],
    ps_of_byte: float,
    latency_ps: float,
) -> list[float]:
    starts_ps: dict[Place, float] = {}
    now_ps, position, number = [0.0] * len(ranks), [0] * len(ranks), [0] * len(ranks)
    waiting: dict[Place, set[int]] = {}
    ready = set(range(len(ranks)))
    while ready:
        rank = ready.pop()
        while position[rank] < len(ranks[rank]):
            action = ranks[rank][position[rank]]
            if isinstance(action, Wait):
                now_ps[rank] += action.duration_ps
                position[rank] += 1
                continue
            place = rank, number[rank]
            starts_ps[place] = now_ps[rank]
            ready |= waiting.pop(place, set())
            messages = heard.get(place, ())
            absent = next((source for source, _ in messages if source not in starts_ps), None)
            if absent is not None:
                waiting.setdefault(absent, set()).add(rank)
                break
            if messages:
                first_ps = min(starts_ps[source] for source, _ in messages)
                bytes_ps = sum(size for _, size in messages) * ps_of_byte
                alone_ps = max(starts_ps[source] + size * ps_of_byte for source, size in messages)
                now_ps[rank] = max(now_ps[rank], latency_ps + max(first_ps + bytes_ps, alone_ps))
            number[rank] += 1
            position[rank] += 1
    stuck = next((r for r, actions in enumerate(ranks) if position[r] < len(actions)), None)
    if stuck is not None:
        raise SimulationError(f"device {stuck} waits forever for messages that wait for it")
    return now_ps


def least_of_job_ps(job: Job, system: System) -> float:
    """Return a lower bound of a job's time in ASTRA-sim.

    Its messages need not share links.

    A device runs one computation at a time, in whole microseconds. A member of a collective
    receives its data from all others at once, each over a separate link, and all pieces of the data
    at once: this takes less time than any network, but more than zero.
    """
    if any(system.options.get(name) for name in _UNTIMED):
        return 0.0
    computations = [
        sum(
            task.duration_ps
            for task in graph.tasks
            if isinstance(task, ComputeTask) and task.is_on_host is is_on_host
        )
        for graph in job.graphs
        for is_on_host in (False, True)
    ]
    collectives = [
        _least_collective_ps(task, graph, system)
        for graph in job.graphs
        for task in graph.tasks
        if isinstance(task, CollectiveTask) and task.recorded_ps is None
    ]
    return max(0.0, max(computations) - _ROUNDED_PS, *collectives)


def _least_collective_ps(task: CollectiveTask, graph: TaskGraph, system: System) -> float:
    groups = ((),) if task.group_table is None else graph.group_tables[task.group_table]
    members = min(len(group) or graph.device_count for group in groups)
    used = [dimension for dimension in system.dimensions if dimension.size > 1]
    received = _received_bytes(task, members)
    if received is None or task.involved_dimensions or members < 2 or not used:
        return 0.0
    at_once = (members - 1) * system.preferred_dataset_splits
    rate = at_once * sum(map(_bytes_per_s, used))
    return (received / rate + min(dimension.latency_s for dimension in used)) * PS_PER_S


def _received_bytes(task: CollectiveTask, members: int) -> float | None:
    """Return the least bytes that each member receives, or None.

    It is None if some members need nothing.
    """
    match task.kind:
        case CollectiveKind.ALL_REDUCE:
            return task.size_bytes
        case CollectiveKind.ALL_GATHER:
            return (members - 1) * task.size_bytes
        case CollectiveKind.ALL_TO_ALL:
            return (members - 1) / members * task.size_bytes
        case CollectiveKind.REDUCE_SCATTER | CollectiveKind.REDUCE_SCATTER_BLOCK:
            return task.size_bytes / members
        case _:
            return None


def _bytes_per_s(dimension: Dimension) -> float:
    """Return the rate of a device's links along a dimension, one direction."""
    match dimension.shape:
        case Shape.FULLY_CONNECTED:
            links = dimension.size - 1
        case Shape.SWITCH:
            links = 1
        case _:
            links = 2  # a ring's
    return links * dimension.bandwidth_bytes_per_s
