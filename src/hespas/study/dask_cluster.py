"""Evaluate on a Dask cluster.

The cluster is an existing one, or processes on this machine. Dask sends tasks to workers and
notices workers that are gone. A worker evaluates in a process of its own, as a
`hespas.study.executor.LocalExecutor` does. A task carries its files, and a worker with other
versions refuses it. An outcome carries the files of caches that it was made with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from logging import CRITICAL, getLogger
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import local
from types import TracebackType
from typing import Any, Self

import msgspec

from hespas.errors import ConfigError, ExtraMissingError, ToolError, option
from hespas.study.executor import Brought, LocalExecutor, Outcome, Task, available_cores, exhausted
from hespas.study.store import contents_of, keep_files

_LOOK_EVERY_S = 0.5
_ANSWERS_WITHIN_S = 30
_MOST_ATTEMPTS = 4
"""The most attempts at a task; in each, Dask itself tries several workers."""
_MOST_CARRIED_BYTES = 64 * 2**20


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task with its files, by relative path."""

    task: Task
    time_limit_s: float
    files: dict[str, bytes] = {}


@dataclass(slots=True, kw_only=True)
class _Attempt:
    task: Task
    number: int = 0


@dataclass(slots=True, kw_only=True)
class DaskExecutor:
    """Gives tasks to Dask workers; a context manager.

    ``scheduler`` None starts one on this machine. At most ``workers`` run at a time, None for all.
    Raises `ExtraMissingError` without Dask, `ToolError` without a scheduler or hespas on a worker.
    """

    scheduler: str | None = None
    workers: int | None = None
    time_limit_s: float = 1800.0
    _client: Any = None
    _cluster: Any = None
    _ended: SimpleQueue[Any] = field(default_factory=SimpleQueue[Any])
    _pending: dict[Any, _Attempt] = field(default_factory=dict[Any, _Attempt])

    def __enter__(self) -> Self:
        """Connect to the scheduler, or start one."""
        try:
            # Dask is an extra: most studies run on one machine.
            dask: Any = import_module("distributed")
        except ImportError as error:
            raise ExtraMissingError(f"{option('executor')} dask", extra="cluster") from error
        # Dask logs every worker that ends; the study's own reports say what matters.
        getLogger("distributed").setLevel(CRITICAL)
        if self.scheduler is None:
            self._cluster = dask.LocalCluster(
                n_workers=self.workers or available_cores(),
                threads_per_worker=1,
                dashboard_address=None,
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
                silence_logs=CRITICAL,
            )
        try:
            self._client = dask.Client(
                self.scheduler or self._cluster, timeout=_ANSWERS_WITHIN_S, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise ToolError(
                f"no Dask scheduler answers: {_line(error)}",
                location=self.scheduler or "",
                hint="start one: dask scheduler",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the remaining tasks, and disconnect."""
        # A cluster that is gone needs no cancelling.
        with suppress(Exception):
            self._client.cancel(list(self._pending), force=True)
        for resource in (self._client, self._cluster):
            if resource is not None:
                with suppress(Exception):
                    resource.close(timeout=5)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Run the tasks, and yield each with its outcome."""
        waiting = deque(_Attempt(task=task) for task in tasks)
        most_pending = self.workers or len(waiting)
        while waiting or self._pending:
            while waiting and len(self._pending) < most_pending:
                self._submit(waiting.popleft())
            for future in self._ended_futures():
                attempt = self._pending.pop(future)
                outcome = self._outcome(future, attempt)
                if outcome is None:
                    waiting.appendleft(attempt)
                else:
                    yield attempt.task, outcome

    def _submit(self, attempt: _Attempt) -> None:
        attempt.number += 1
        work = _Work(
            task=msgspec.structs.replace(attempt.task, is_checked=True),
            time_limit_s=self.time_limit_s,
            files=files_of(attempt.task.candidate),
        )
        try:
            future = self._client.submit(
                evaluated,
                msgspec.json.encode(work),
                key=f"hespas-{attempt.task.key}-{attempt.number}",
                pure=False,
            )
        except (OSError, RuntimeError) as error:
            raise self._gone(error) from error
        self._pending[future] = attempt
        future.add_done_callback(self._ended.put)

    def _ended_futures(self) -> list[Any]:
        if self._client.status not in {"running", "connecting"}:
            raise self._gone("the connection is closed")
        try:
            reported = [self._ended.get(timeout=_LOOK_EVERY_S)]
        except Empty:
            return []
        while not self._ended.empty():
            reported.append(self._ended.get())
        return [future for future in reported if future in self._pending]

    def _outcome(self, future: Any, attempt: _Attempt) -> Outcome | None:
        if future.status == "finished":
            brought = msgspec.msgpack.decode(future.result(), type=Brought)
            keep_files(brought.files)
            return msgspec.structs.replace(brought.outcome, cached=[])
        if future.status != "error":
            # The future was cancelled or lost, with the scheduler or by another client.
            if attempt.number < _MOST_ATTEMPTS:
                return None
            raise self._gone(f"a task was {future.status} {attempt.number} times")
        dask: Any = import_module("distributed")
        error = future.exception()
        if not isinstance(error, dask.scheduler.KilledWorker):
            raise ToolError(
                f"a worker of the Dask cluster cannot predict: {_line(error)}",
                location=self.scheduler or "",
                hint="install hespas on all workers",
            )
        if attempt.number < _MOST_ATTEMPTS:
            return None
        reason = f"the Dask workers that had it ended, {attempt.number} times in a row"
        return exhausted(reason)

    def _gone(self, why: object) -> ToolError:
        return ToolError(
            f"the Dask scheduler is gone: {_line(why)}",
            location=self.scheduler or "",
            hint="what is done is kept; start a scheduler, and run the study again to go on",
        )


def _line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def files_of(candidate: Mapping[str, object]) -> dict[str, bytes]:
    """Return the contents of a candidate's files.

    Only files inside of the current directory are included.
    """
    contents: dict[str, bytes] = {}
    for value in candidate.values():
        path = Path(value) if isinstance(value, str) and value else None
        if path is None or not _is_inside(value) or not _exists(path):
            continue
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        contents |= {file.as_posix(): file.read_bytes() for file in files if file.is_file()}
    size = sum(map(len, contents.values()))
    if size > _MOST_CARRIED_BYTES:
        raise ConfigError(
            f"a candidate names {size / 1e6:.0f} MB of files, too much to carry to workers",
            hint="put them where all workers can read them, and give their whole path",
        )
    return contents


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a text that is too long for a name
        return False


def _is_inside(name: object) -> bool:
    path = PurePosixPath(str(name))
    return not path.is_absolute() and ".." not in path.parts and path.parts != ()


# The code below runs on a worker.


class _WorkerState(local):
    """A thread's evaluator, and the directory with its files."""

    evaluator: LocalExecutor | None = None
    home: TemporaryDirectory[str] | None = None
    digest: str = ""


_state = _WorkerState()


def evaluated(work: bytes) -> bytes:
    """Evaluate a `_Work` on a Dask worker.

    ``work`` is JSON; returns a `Brought` in MessagePack.
    """
    request = msgspec.json.decode(work, type=_Work)
    evaluator = _evaluator(request.files)
    evaluator.time_limit_s = request.time_limit_s
    ((_, outcome),) = evaluator.outcomes([request.task])
    brought = Brought(outcome=outcome, files=contents_of(outcome.cached))
    return msgspec.msgpack.encode(brought)


def _evaluator(files: Mapping[str, bytes]) -> LocalExecutor:
    digest = sha256(msgspec.json.encode(files, order="sorted")).hexdigest()
    if _state.evaluator is not None and _state.digest == digest:
        return _state.evaluator
    if _state.evaluator is not None:
        _state.evaluator.__exit__(None, None, None)
    if _state.home is not None:
        _state.home.cleanup()
    _state.home, _state.digest = TemporaryDirectory(prefix="hespas-study-"), digest
    home = Path(_state.home.name)
    for name, content in files.items():
        if not _is_inside(name):
            raise ConfigError(f"{name} is outside of the task's directory", hint="drop it")
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    _state.evaluator = LocalExecutor(workers=1, directory=home).__enter__()
    return _state.evaluator
