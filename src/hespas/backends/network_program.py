"""Share code of network simulators: runs, checks and lower bounds.

Each adapter is a `Backend` once it has its options. `check_answer` compares the results of all of
them with the least time that computation and links allow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from hespas.backends.rank_programs import Action, Place, RankPrograms, Wait, matched, rank_programs
from hespas.backends.result import ExternalResult
from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.process import Limits, run_program
from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.errors import ImpossibleTimeError, SimulationError, ToolError
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System, astra_name
from hespas.program.collectives import CollectiveKind
from hespas.simulate.models import check_size, option_of_astra_sim
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, TaskGraph

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


def find_program(name: str, variable: str, program: Path | None, *, source: str) -> Path:
    """Return a program that an option or environment variable names.

    It is searched for in the working directory, and then on the PATH; the default is ``name`` on
    the PATH. ``source`` is what users build.
    """
    requested = str(program) if program is not None else os.environ.get(variable, "")
    local_path = Path(requested or name).absolute()
    is_local = bool(requested) and local_path.is_file() and os.access(local_path, os.X_OK)
    path = str(local_path) if is_local else shutil.which(requested or name)
    if path is None:
        message = f"there is no program {requested}" if requested else f"{name} is not on the PATH"
        hint = f"build {source}, and give its path or set {variable}"
        raise ToolError(message, location=name, hint=hint)
    return Path(path).absolute()


def check_plays_messages(system: System) -> str:
    """Return a note on properties that message engines ignore.

    Raises `SimulationError` for a system whose own files describe its collectives.
    """
    name = option_of_astra_sim(system)
    if name is not None:
        raise SimulationError(
            f"{name} is set, which messages between ranks cannot express",
            location=system.name,
            hint="use --backend astra-sim, or hespas' own model of it: --model astra-sim",
        )
    return (
        "of the system only the bandwidth and latency of links are simulated, as ASTRA-sim's files "
        "have them: no overheads of messages, delays of endpoints, chunks or reductions"
    )


def run_on_files(
    command: Sequence[str],
    files: Mapping[str, bytes],
    *,
    name: str,
    directory: Path,
    time_limit_s: float,
) -> Path:
    """Return the log of a command run beside its files."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        write_file(directory / file, content)
    return run_program(
        command, name=name, directory=directory, limits=Limits(time_s=time_limit_s)
    ).log


def messages_of(job: Job, system: System, options: ProgramOptions) -> RankPrograms:
    """Return the ranks' actions for a message engine."""
    check_size(job.device_count, system)
    system_note = check_plays_messages(system)
    programs = rank_programs(job, algorithm=options.algorithm)
    return RankPrograms(ranks=programs.ranks, notes=(*programs.notes, system_note))


def dimensions_text(system: System) -> str:
    """Return a system's dimensions as text.

    Example: ``4 FullyConnected x 2 Switch``.
    """
    used = [f"{dimension.size} {astra_name(dimension.shape)}" for dimension in system.dimensions]
    return " x ".join(used) or "described for hespas' own model alone"


@frozen
class LinkRate:
    """The rate and latency of a rank's link."""

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
    """Return a lower bound of ranks' actions in sequence.

    A rank is busy during its computation. An exchange ends once all its messages have arrived,
    which left when their senders started the exchange, at the rate of the link; and no rank ends
    before its link has carried all that it sends, or all that it receives. Raises `SimulationError`
    if ranks deadlock.
    """
    ps_of_byte = PS_PER_S / link.bytes_per_s
    arrivals: dict[Place, list[tuple[Place, int]]] = {}
    sent, received = [0] * len(ranks), [0] * len(ranks)
    for source, target, size_bytes in matched(ranks):
        arrivals.setdefault(target, []).append((source, size_bytes))
        sent[source[0]] += size_bytes
        received[target[0]] += size_bytes
    ends_ps = _ends_ps(ranks, arrivals, ps_of_byte, link.latency_s * PS_PER_S)
    return max(*ends_ps, max(sent) * ps_of_byte, max(received) * ps_of_byte, 0.0)


def _ends_ps(
    ranks: Sequence[Sequence[Action]],
    arrivals: Mapping[Place, Sequence[tuple[Place, int]]],
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
            messages = arrivals.get(place, ())
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

    Messages need not share links. A device runs one computation at a time, in whole microseconds. A
    member of a collective receives its data from all others at once, each over a separate link, and
    all pieces of the data at once: this takes less time than any network, but more than zero.
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
    """Return each member's least received bytes; None if some need nothing."""
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
    """Return the one-way rate of a device along a dimension."""
    match dimension.shape:
        case Shape.FULLY_CONNECTED:
            links = dimension.size - 1
        case Shape.SWITCH:
            links = 1
        case _:
            links = 2  # a ring's
    return links * dimension.bandwidth_bytes_per_s
