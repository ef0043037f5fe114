"""Executors of evaluations: a protocol and its implementations."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, ClassVar, Protocol, Self

import msgspec

from hespas.base.fields import Group, Use, check_options, declare, refuse_unused
from hespas.base.frozen import frozen
from hespas.base.process import ending, last_words
from hespas.errors import ToolError, option


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


_LOOK_EVERY_S = 0.5
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


@dataclass(slots=True, kw_only=True)
class _Process:
    """A worker and its task; ``stays``: with JAX running."""

    process: subprocess.Popen[bytes]
    log: Path
    attempt: _Attempt | None = None
    began_s: float = 0.0
    stays: bool = False
    answer: bytes = b""


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
    _home: tempfile.TemporaryDirectory[str] | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _free_bytes: int = 0

    def __enter__(self) -> Self:
        """Measure the free memory; tasks start the workers."""
        self._home = tempfile.TemporaryDirectory(prefix="hespas-study-")
        self._free_bytes = int(free_memory_bytes() * _USABLE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all workers, even during tasks."""
        for worker in list(self._processes):
            self._end(worker)
        self._selector.close()
        if self._home is not None:
            self._home.cleanup()

    @property
    def most(self) -> int:
        """The most tasks that run at a time."""
        return self.workers or available_cores()

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Run the tasks, and yield each with its outcome.

        A task that ended a worker is retried alone.
        """
        waiting = deque(_Attempt(task=task) for task in tasks)
        while waiting or any(worker.attempt is not None for worker in self._processes):
            while waiting and self._may_begin(waiting[0]):
                self._begin(waiting.popleft())
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                done = self._receive(key.data, waiting)
                if done is not None:
                    yield done
            yield from self._overdue()

    def _may_begin(self, attempt: _Attempt) -> bool:
        running = [worker.attempt for worker in self._processes if worker.attempt is not None]
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
        idle = [worker for worker in self._processes if worker.attempt is None]
        worker = next((worker for worker in idle if worker.stays is stays), None)
        if worker is None:
            if idle and len(self._processes) >= self.most:
                self._end(idle[0])
            worker = self._start()
        worker.stays, worker.attempt = stays, attempt
        worker.began_s, worker.answer = monotonic(), b""
        # The end of its answer reveals a worker that is gone.
        with suppress(OSError):
            _pipe(worker.process.stdin).write(msgspec.json.encode(attempt.task) + b"\n")
            _pipe(worker.process.stdin).flush()

    def _start(self) -> _Process:
        home = Path("." if self._home is None else self._home.name)
        log = home / f"worker-{len(self._processes)}-{monotonic():.6f}.txt"
        try:
            with log.open("wb") as written:
                process = subprocess.Popen(
                    list(self.command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=written,
                    cwd=self.directory,
                    start_new_session=True,
                )
        except OSError as error:
            raise ToolError(
                f"a worker cannot be started: {error.strerror or error}", location=self.command[0]
            ) from error
        started = _Process(process=process, log=log)
        self._processes.append(started)
        self._selector.register(_pipe(process.stdout), selectors.EVENT_READ, started)
        return started

    def _receive(self, worker: _Process, waiting: deque[_Attempt]) -> tuple[Task, Outcome] | None:
        piece = os.read(_pipe(worker.process.stdout).fileno(), 1 << 16)
        if not piece:
            return self._retry_or_give_up(worker, waiting)
        worker.answer += piece
        if not worker.answer.endswith(b"\n") or worker.attempt is None:
            return None
        attempt, task, worker.attempt = worker.attempt, worker.attempt.task, None
        outcome = msgspec.json.decode(worker.answer, type=Outcome)
        if outcome.ending is Ending.EXHAUSTED and _KILLED in outcome.reason:
            # A program that it ran was killed, and it reported so.
            attempt.lost += 1
            if attempt.lost < _MOST_ATTEMPTS:
                waiting.appendleft(attempt)
                return None
        peak = max(self.peaks.get(task.phase, 0), outcome.peak_memory_bytes)
        self.peaks[task.phase] = peak
        return task, outcome

    def _retry_or_give_up(
        self, worker: _Process, waiting: deque[_Attempt]
    ) -> tuple[Task, Outcome] | None:
        """Retry an ended worker's task a few times."""
        attempt = worker.attempt
        end_text, log_end = ending(worker.process.wait()), last_words(worker.log)
        self._end(worker)
        if attempt is None:
            return None
        attempt.lost += 1
        if attempt.lost < _MOST_ATTEMPTS:
            waiting.appendleft(attempt)
            return None
        memory = " (as when memory runs out)" if end_text.endswith("SIGKILL") else ""
        reason = f"the worker {end_text}{memory}, {attempt.lost} times: {log_end}"
        return attempt.task, exhausted(reason, elapsed_s=monotonic() - worker.began_s)

    def _overdue(self) -> Iterator[tuple[Task, Outcome]]:
        now_s = monotonic()
        reason = f"took longer than {self.time_limit_s:g} s"
        for worker in list(self._processes):
            attempt, elapsed_s = worker.attempt, now_s - worker.began_s
            if attempt is not None and elapsed_s > self.time_limit_s:
                self._end(worker)
                failure = Outcome(ending=Ending.FAILED, reason=reason, elapsed_s=elapsed_s)
                yield attempt.task, failure

    def _end(self, worker: _Process) -> None:
        self._processes.remove(worker)
        output = _pipe(worker.process.stdout)
        self._selector.unregister(output)
        with suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        for pipe in (worker.process.stdin, output):
            with suppress(OSError):
                _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ToolError("a worker has no pipe")
    return pipe


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
