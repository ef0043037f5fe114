"""What the adapters of other network simulators share: how they run, and what none may answer.

Each is a `Backend` once it has its options. `check_answer` holds the answers of all of them against
the least time that computation and links leave a job.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hespas.backends.rank_programs import Action, Place, RankPrograms, Wait, matched, rank_programs
from hespas.base.files import write_file
from hespas.base.process import Limits, run_program
from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.errors import DeviceCountError, ImpossibleTimeError, SimulationError, ToolError
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System, astra_name
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.simulate.astra.plan import PER_NODE, custom_option
from hespas.simulate.timeline import ExternalResult
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, TaskGraph

_TOLERANCE = 0.01
"""For what simulators round: rates to whole Gb/s, answers to four digits."""
_ROUNDED_PS = 1_000_000
"""ASTRA-sim's computations are in whole microseconds: a device's sum is right within one."""
_UNTIMED = ("roofline-enabled", "replay-only")
"""Options of system.json with which durations in a trace are not what passes."""


class Backend(Protocol):
    """A simulator that times a whole job; its files and its log stay in ``directory``.

    Raises `DeviceCountError` where the job and the system differ in size, `ToolError` where the
    program is missing, fails or takes too long, `ImpossibleTimeError` for an answer that nothing
    can be as fast as, and `SimulationError` for what it cannot simulate.
    """

    def __call__(self, job: Job, system: System, directory: Path) -> ExternalResult:
        """Return what the simulator says of a job on a system."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """How to run a simulator that plays messages.

    ``program`` is its file, None for the one that is found; ``algorithm`` is that of all
    collectives, None for the usual one of each; ``arguments`` are passed on as they are.
    """

    program: Path | None = None
    algorithm: str | None = None
    arguments: tuple[str, ...] = ()
    time_limit_s: float = 3600.0


def find_program(name: str, variable: str, given: Path | None, *, what: str) -> Path:
    """Return a program: the one given, of an environment variable, or ``name`` on the PATH.

    One that is named is looked for here, and then on the PATH.
    """
    named = str(given) if given is not None else os.environ.get(variable, "")
    here = Path(named or name).absolute()
    is_here = bool(named) and here.is_file() and os.access(here, os.X_OK)
    found = str(here) if is_here else shutil.which(named or name)
    if found is None:
        message = f"there is no program {named}" if named else f"{name} is not on the PATH"
        hint = f"build {what}, and give its path or set {variable}"
        raise ToolError(message, location=name, hint=hint)
    return Path(found).absolute()


def check_plays_messages(system: System) -> tuple[str, ...]:
    """List the properties of a system that an engine of messages ignores.

    Raises `SimulationError` for a system whose own files say how its collectives run.
    """
    custom = (PER_NODE, *map(custom_option, COMMON_KINDS))
    for name in ("replay-only", "model-shared-bus", *custom):
        if system.options.get(name):
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


def check_size(job: Job, system: System) -> None:
    """Raise `DeviceCountError` if a job and a system differ in size."""
    if job.device_count != system.device_count:
        message = f"the job is for {job.device_count} devices, {system.name} has"
        raise DeviceCountError(f"{message} {system.device_count}")


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
    """Return what ranks do for an engine of messages, with notes on what it ignores."""
    check_size(job, system)
    of_system = check_plays_messages(system)
    programs = rank_programs(job, algorithm=options.algorithm)
    return RankPrograms(ranks=programs.ranks, notes=(*programs.notes, *of_system))


def dimensions_text(system: System) -> str:
    """Return the dimensions of a system in words, such as ``4 FullyConnected x 2 Switch``."""
    used = [f"{one.size} {astra_name(one.shape)}" for one in system.dimensions]
    return " x ".join(used) or "described for hespas' own model alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """What a rank sends, or receives, in a second, and how long a byte is under way at least."""

    bytes_per_s: float
    latency_s: float


def check_answer(result: ExternalResult, least_ps: float) -> ExternalResult:
    """Return a simulator's answer; `ImpossibleTimeError` where it is less than ``least_ps``."""
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
    """Return the least time in which ranks can do their actions, each of them one by one.

    A rank is busy for its computation. An exchange ends once all that it receives is there, which
    left when those that sent it came so far, at the rate of the link; and no rank ends before its
    link has carried all that it sends, or all that it receives. Raises `SimulationError` where
    ranks wait for each other forever.
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
    """Return the least time of a job by ASTRA-sim, whose messages need not share links.

    A device computes one thing at a time, in whole microseconds. A member of a collective receives
    what it needs from all others at once, each by a link of its own, and all pieces of the data at
    once: less than any network can, and more than nothing.
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
    used = [one for one in system.dimensions if one.size > 1]
    received = _received_bytes(task, members)
    if received is None or task.involved_dimensions or members < 2 or not used:
        return 0.0
    at_once = (members - 1) * system.preferred_dataset_splits
    rate = at_once * sum(map(_bytes_per_s, used))
    return (received / rate + min(one.latency_s for one in used)) * PS_PER_S


def _received_bytes(task: CollectiveTask, members: int) -> float | None:
    """Return what each member receives at least, by any algorithm; None where some need nothing."""
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
    """Return what all links of a device along a dimension carry in one direction."""
    match dimension.shape:
        case Shape.FULLY_CONNECTED:
            links = dimension.size - 1
        case Shape.SWITCH:
            links = 1
        case _:
            links = 2  # a ring's
    return links * dimension.bandwidth_bytes_per_s
