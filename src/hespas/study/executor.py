"""Executors of evaluations: a protocol and its implementations."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path
from shutil import rmtree
from time import monotonic
from types import TracebackType
from typing import ClassVar, Protocol, Self

import msgspec

from hespas.base.fields import Group, Use, check_options, declare, refuse_unused
from hespas.base.frozen import frozen
from hespas.base.process import Ended, Worker
from hespas.errors import option


class Phase(Enum):
    """The fidelity of an evaluation; values are a prediction's."""

    SCREEN = "fused"
    LIBRARY = "library"
    COMPILE = "compiled"
    EXPORTED = "exported"
    AS_FOUND = "auto"


class Ending(Enum):
    """How an evaluation ended."""

    DONE = "done"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    """A program ended, perhaps for lack of memory; another run retries it."""
    REFUSED = "refused"
    """The machine can't evaluate: other versions or files, or no space.

    That is no property of the candidate, and is not kept.
    """


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation; ``key`` identifies everything that decides it.

    ``versions`` are a part of the key. A report is ``with_tables`` or has figures alone. A task
    that ``may_stay`` leaves JAX running for the next task of its worker. A worker elsewhere
    computes the key again if the task ``is_checked``, and refuses the task if the two differ.
    """

    key: str
    candidate: dict[str, object]
    phase: Phase
    with_report: bool = False
    with_tables: bool = True
    versions: dict[str, str] = {}
    may_stay: bool = False
    is_checked: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by name, or the reason for missing ones.

    ``report`` is the text of ``hespas run --json``. Times and memory are those of the evaluation.
    ``cached`` are files of the user's caches that it used (`hespas.study.store`).
    """

    ending: Ending
    figures: dict[str, float | int | None] = {}
    fidelity: str = ""
    reason: str = ""
    report: str = ""
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    cached: list[str] = []


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome with files of the evaluating machine's caches."""

    outcome: Outcome
    files: dict[str, bytes] = {}


def exhausted(reason: str, *, elapsed_s: float = 0.0) -> Outcome:
    """Return the outcome of a task that may be retried."""
    return Outcome(ending=Ending.EXHAUSTED, reason=reason, elapsed_s=elapsed_s)


class Executor(Protocol):
    """Runs evaluations; crashes and hangs are outcomes too."""

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Run the tasks, and yield each with its outcome."""
        ...


class Place(Enum):
    """The place of evaluations: this machine or a Dask cluster."""

    LOCAL = "local"
    DASK = "dask"


DASK = Use(f" without {option('executor')} dask", "add it")


@frozen
class ExecutorOptions:
    """Where evaluations run, and the time limit of each."""

    GROUP: ClassVar[Group] = Group.MAIN

    executor: Place = declare(
        help="Where predictions run: processes of this machine, or a Dask cluster.",
        default=Place.LOCAL,
    )
    scheduler: str | None = declare(
        help="The address of Dask's scheduler, as in tcp://host:8786.",
        metavar="ADDRESS",
        applies_to=(DASK,),
        default_text="one on this machine",
    )
    workers: int | None = declare(
        help="How many run at a time.", least=1, default_text="one a core"
    )
    time_limit_s: float = declare(
        help="Seconds that one prediction may take; it fails alone if it takes longer.",
        name="time_limit",
        unit="s",
        metavar="SECONDS",
        default=1800.0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        refuse_unused(self, {DASK: self.executor is not Place.DASK})


def executor_of(options: ExecutorOptions) -> AbstractContextManager[Executor]:
    """Return the options' executor.

    It is a context that ends its workers.
    """
    match options.executor:
        case Place.LOCAL:
            return LocalExecutor(workers=options.workers, time_limit_s=options.time_limit_s)
        case Place.DASK:
            from hespas.study.dask_cluster import DaskExecutor  # noqa: PLC0415 - as above

            return DaskExecutor(
                scheduler=options.scheduler,
                workers=options.workers,
                time_limit_s=options.time_limit_s,
            )


_INTERRUPT_EVERY_S = 0.05
_MOST_ATTEMPTS = 3
_KILLED = "was ended by SIGKILL"
_USABLE = 0.9
"""The usable part of the memory that is free at the start."""
_COMMAND = (sys.executable, "-P", "-m", "hespas.study.evaluate")


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """A task, and the number of workers that it ended."""

    task: Task
    lost: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class _Process:
    """A worker and its task; ``stays``: with JAX running."""

    worker: Worker
    stays: bool
    attempt: _Attempt | None = None
    began_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class LocalExecutor:
    """Workers of this machine; a context manager.

    ``workers`` None is one a core. A task starts if nothing else runs, or if the largest memory of
    earlier tasks of its phase (``peaks``) is free; the first task of a phase is its only one.
    """

    workers: int | None = None
    time_limit_s: float = 1800.0
    peaks: dict[Phase, int] = field(default_factory=dict[Phase, int])
    command: Sequence[str] = _COMMAND
    directory: Path | None = None
    _processes: list[_Process] = field(default_factory=list[_Process])
    _pending: dict[Future[bytes | Ended], _Process] = field(
        default_factory=dict[Future[bytes | Ended], _Process]
    )
    _threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    _home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="hespas-study-")))
    _numbers: Iterator[int] = field(default_factory=count)
    _free_bytes: int = 0

    def __enter__(self) -> Self:
        """Measure the free memory; tasks start the workers."""
        self._threads = ThreadPoolExecutor(self.most)
        self._free_bytes = int(free_memory_bytes() * _USABLE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all workers, even during tasks."""
        for future, process in self._pending.items():
            while not future.done():
                process.worker.interrupt()
                wait([future], timeout=_INTERRUPT_EVERY_S)
        self._threads.shutdown()
        for process in list(self._processes):
            self._end(process)
        rmtree(self._home, ignore_errors=True)

    @property
    def most(self) -> int:
        """The most tasks that run at a time."""
        return self.workers or available_cores()

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Run the tasks, and yield each with its outcome.

        A task that ended a worker is retried alone.
        """
        waiting = deque(_Attempt(task=task) for task in tasks)
        while waiting or self._pending:
            while waiting and self._may_begin(waiting[0]):
                self._begin(waiting.popleft())
            for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
                process = self._pending.pop(future)
                attempt, process.attempt = process.attempt, None
                if attempt is None:
                    continue
                outcome = self._outcome(process, attempt, future.result())
                if outcome is None:
                    waiting.appendleft(attempt)
                else:
                    yield attempt.task, outcome

    def _may_begin(self, attempt: _Attempt) -> bool:
        running = [process.attempt for process in self._processes if process.attempt is not None]
        if not running:
            return True
        if len(running) >= self.most or any(peer.lost for peer in (attempt, *running)):
            return False
        peak_bytes = self.peaks.get(attempt.task.phase)
        if peak_bytes is None:
            return all(peer.task.phase is not attempt.task.phase for peer in running)
        used_bytes = sum(self.peaks.get(peer.task.phase, 0) for peer in running)
        return used_bytes + peak_bytes <= self._free_bytes

    def _begin(self, attempt: _Attempt) -> None:
        stays = attempt.task.may_stay
        idle = [process for process in self._processes if process.attempt is None]
        process = next((process for process in idle if process.stays is stays), None)
        if process is None:
            if idle and len(self._processes) >= self.most:
                self._end(idle[0])
            worker = Worker(
                command=self.command,
                name="a worker",
                directory=self._home / str(next(self._numbers)),
                working_directory=self.directory or Path.cwd(),
            )
            process = _Process(worker=worker, stays=stays)
            self._processes.append(process)
        process.attempt, process.began_s = attempt, monotonic()
        line = msgspec.json.encode(attempt.task)
        future = self._threads.submit(process.worker.exchange, line, time_s=self.time_limit_s)
        self._pending[future] = process

    def _outcome(
        self, process: _Process, attempt: _Attempt, answer: bytes | Ended
    ) -> Outcome | None:
        """Return the outcome of an answer; None where the task is to be tried again."""
        elapsed_s = monotonic() - process.began_s
        if isinstance(answer, Ended):
            self._end(process)
            if answer.is_late:
                return Outcome(ending=Ending.FAILED, reason=answer.how, elapsed_s=elapsed_s)
            memory = " (as when memory runs out)" if answer.how.endswith("SIGKILL") else ""
            reason = f"the worker {answer.how}{memory}, {attempt.lost + 1} times: {answer.words}"
            return self._again_or(attempt, exhausted(reason, elapsed_s=elapsed_s))
        outcome = msgspec.json.decode(answer, type=Outcome)
        # A program that it ran was killed, and it reported so.
        is_lost = outcome.ending is Ending.EXHAUSTED and _KILLED in outcome.reason
        if is_lost and self._again_or(attempt, outcome) is None:
            return None
        phase = attempt.task.phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), outcome.peak_memory_bytes)
        return outcome

    @staticmethod
    def _again_or(attempt: _Attempt, outcome: Outcome) -> Outcome | None:
        """Return the outcome of a task that was lost, None where it is tried again."""
        attempt.lost += 1
        return None if attempt.lost < _MOST_ATTEMPTS else outcome

    def _end(self, process: _Process) -> None:
        self._processes.remove(process)
        process.worker.close()


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def free_memory_bytes() -> int:
    """Return the memory that is free for processes."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes.get("MemAvailable", sizes["MemTotal"]).split()[0]) * 1024
