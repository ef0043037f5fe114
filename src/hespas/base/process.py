"""Run other programs with limits on time, memory and output."""

from __future__ import annotations

import atexit
import errno
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from shutil import rmtree, which
from threading import Event, Lock
from time import monotonic

from hespas.base.frozen import frozen
from hespas.errors import TimeLimitError, ToolError

_EVENT: ContextVar[Event | None] = ContextVar("interruption", default=None)


def end_programs_on(event: Event) -> None:
    """End this thread's future programs when ``event`` is set.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> event = Event()
    >>> with ThreadPoolExecutor(1, initializer=end_programs_on, initargs=(event,)) as pool:
    ...     pool.submit(lambda: interruption() is event).result()
    True
    >>> interruption() is None
    True
    """
    _EVENT.set(event)


def interruption() -> Event | None:
    """Return the event that ends this thread's programs, or None."""
    return _EVENT.get()


_STAYS: ContextVar[bool] = ContextVar("stays", default=False)


def stay(*, stays: bool) -> None:
    """Let this thread's exports and partitions run in this process.

    Without ``stays`` they run in other processes again. With it JAX is started on the CPU only: no
    other use of it is possible in this process.

    >>> stay(stays=True)
    >>> is_staying()
    True
    >>> stay(stays=False)
    """
    _STAYS.set(stays)


def is_staying() -> bool:
    """Return whether exports and partitions run in this process."""
    return _STAYS.get()


LOG_NAME = "log.txt"
MOST_LOG_BYTES = 2**28
"""The most bytes that a program may print; a program that prints more never stops."""
_READ_BYTES = 2**18
_LAST_LINES = 3
_LOOK_EVERY_S = 0.1
_PROGRAM_OF_A_SHELL = """
exec 3<&0
( (read -r _ <&3; kill -s KILL -- "-$$") >/dev/null 2>&1 & )
exec "$@" </dev/null 3<&-
"""
"""Becomes a program, with a watcher that ends its process group when standard input closes.

The parent holds the other end, so the program ends with its parent however that ends. The watcher
is not the program's child: a program that waits for all its children doesn't wait for it.
"""
# The fatal log line of programs built with Abseil, such as XLA's compilers.
_FATAL = re.compile(r"^F\d{4} [\d:.]+ +\d+ (.+?)\s*$", re.MULTILINE)


@frozen
class Limits:
    """A program's limits of time and addressable memory (None: unlimited)."""

    time_s: float
    memory_bytes: int | None = None


@frozen
class Finished:
    """A program that succeeded: its log and its duration."""

    log: Path
    elapsed_s: float


def run_program(
    command: Sequence[str],
    *,
    name: str,
    directory: Path,
    limits: Limits,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    r"""Run ``command`` in ``directory`` and wait for it.

    ``name`` appears in messages. Standard output and error go to ``log.txt`` in the directory,
    which is created if missing. ``environment`` is added to this process's own. Raises `ToolError`,
    naming the log, if the program is missing, fails, is killed, takes too long or prints more than
    `MOST_LOG_BYTES`; it and its children have ended by then. They end with this process too, even
    if that is killed.

    >>> import sys, tempfile
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     done = run_program([sys.executable, "-c", "print('well')"], name="python",
    ...                        directory=Path(scratch), limits=Limits(time_s=60))
    ...     done.log.read_text()
    'well\n'
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / LOG_NAME
    started_s = monotonic()
    _check_executable(command[0], name=name, directory=directory)
    with log.open("wb") as output, _pipe() as read_end:
        try:
            process = subprocess.Popen(
                [*_shell(limits.memory_bytes), *command],
                cwd=directory,
                stdin=read_end,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise ToolError(
                f"{name} cannot be started: {error.strerror or error}", location=str(command[0])
            ) from error
        code = _wait_with_cleanup(process, limits.time_s, name=name, log=log)
    if code != 0:
        raise ToolError(f"{name} {ending(code)}: {last_words(log)}", location=str(log))
    return Finished(log=log, elapsed_s=monotonic() - started_s)


def _check_executable(program: str, *, name: str, directory: Path) -> None:
    """Raise `ToolError` for a missing program, before the shell does."""
    if "/" not in program:
        reason = None if which(program) else errno.ENOENT
    else:
        file = directory / program
        absent = errno.EACCES if file.exists() else errno.ENOENT
        reason = None if os.access(file, os.X_OK) else absent
    if reason is not None:
        raise ToolError(f"{name} cannot be started: {os.strerror(reason)}", location=program)


@contextmanager
def _pipe() -> Generator[int]:
    """Yield the read end of a pipe.

    The write end closes afterwards, or with the process.
    """
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def _shell(memory_bytes: int | None) -> tuple[str, ...]:
    """Return a command prefix: a shell that becomes the program.

    The shell limits the memory that the program can address. Python code between fork and exec
    would be unsafe while threads run, such as JAX's.
    """
    most_bytes = (
        None if memory_bytes is None else within_inherited(resource.RLIMIT_AS, memory_bytes)
    )
    limit = "" if most_bytes is None else f"ulimit -v {most_bytes // 1024} || exit\n"
    return ("/bin/sh", "-c", limit + _PROGRAM_OF_A_SHELL, "sh")


def within_inherited(kind: int, limit: int) -> int:
    """Return a child's limit: ``limit``, or a lower inherited one.

    ``kind`` is a constant of `resource`. No process may raise an inherited limit.

    >>> within_inherited(resource.RLIMIT_CORE, 0)
    0
    """
    inherited = resource.getrlimit(kind)[0]
    return limit if inherited == resource.RLIM_INFINITY else min(limit, inherited)


def _wait_with_cleanup(
    process: subprocess.Popen[bytes], time_s: float, *, name: str, log: Path
) -> int:
    try:
        code = _wait(process, time_s, interruption(), name=name, log=log)
        _check_log(log, name)
    except subprocess.TimeoutExpired as error:
        raise TimeLimitError(
            f"{name} took longer than {time_s:g} s: {last_words(log)}",
            location=str(log),
            hint="allow more time",
        ) from error
    finally:
        # Its children end with it, on Ctrl-C too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if log.stat().st_size > MOST_LOG_BYTES:
            os.truncate(log, _READ_BYTES)
    return code


def _wait(
    process: subprocess.Popen[bytes],
    time_s: float,
    interrupted: Event | None,
    *,
    name: str,
    log: Path,
) -> int:
    """Wait for a process; `KeyboardInterrupt` once ``interrupted`` is set."""
    end_s = monotonic() + time_s
    while monotonic() < end_s - _LOOK_EVERY_S:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=_LOOK_EVERY_S)
        if interrupted is not None and interrupted.is_set():
            raise KeyboardInterrupt
        _check_log(log, name)
    return process.wait(timeout=max(0.0, end_s - monotonic()))


def _check_log(log: Path, name: str) -> None:
    """Raise `ToolError` for a program that prints too much."""
    if log.stat().st_size > MOST_LOG_BYTES:
        raise ToolError(
            f"{name} printed more than {MOST_LOG_BYTES >> 20} MiB",
            location=str(log),
            hint="let it print less",
        )


def ending(code: int) -> str:
    """Describe how a process ended; negative codes are signals.

    >>> ending(3), ending(-6)
    ('failed with code 3', 'was ended by SIGABRT')
    """
    if code > 0:
        return f"failed with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def last_words(log: Path) -> str:
    """Return the last lines of a log as one line.

    A failed check is preferred to a stack trace.
    """
    with log.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - _READ_BYTES))
        text = file.read().decode(errors="replace")
    fatal = _FATAL.findall(text)
    if fatal:
        return fatal[-1][:600]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:])[-600:] or "it printed nothing"


@contextmanager
def scratch_directory(purpose: str) -> Generator[Path]:
    """Create a temporary directory, and remove it afterwards.

    It is kept, for its log, if the work raises an error and left files in it, but not on Ctrl-C.
    ``purpose`` is part of its name.

    >>> with scratch_directory("example") as directory:
    ...     directory.is_dir()
    True
    >>> directory.exists()
    False
    """
    directory = Path(tempfile.mkdtemp(prefix=f"hespas-{purpose}-"))
    try:
        yield directory
    except Exception:
        # An empty directory has nothing to look at.
        with suppress(OSError):
            directory.rmdir()
        raise
    except BaseException:
        rmtree(directory, ignore_errors=True)
        raise
    rmtree(directory, ignore_errors=True)


@frozen
class Ended:
    """How a process ended before it answered, and the last words of its log."""

    how: str
    words: str
    is_late: bool = False


@dataclass(slots=True, kw_only=True)
class Worker:
    """A child process that answers questions.

    It reads them from standard input, and answers on standard output. It starts with the first
    question, and restarts with the next question after it died. Its standard error goes to
    ``log.txt`` in ``directory``, where it runs unless another ``working_directory`` is given.
    `close` ends the process.
    """

    command: Sequence[str]
    name: str
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    working_directory: Path | None = None
    _process: subprocess.Popen[bytes] | None = None
    _lock: Lock = field(default_factory=Lock)

    @property
    def log(self) -> Path:
        """The log of its standard error."""
        return self.directory / LOG_NAME

    def ask(self, question: Mapping[str, object], *, time_s: float) -> dict[str, object]:
        """Send a question and return the answer.

        Raises `ToolError`, naming the log, if the process dies, does not answer in JSON, or takes
        longer than ``time_s``; it has ended by then.
        """
        answer = self.exchange(json.dumps(dict(question)).encode(), time_s=time_s)
        if isinstance(answer, bytes):
            return self._parse_answer(answer)
        if answer.is_late:
            raise TimeLimitError(
                f"{self.name} {answer.how}", location=str(self.log), hint="allow more time"
            )
        raise ToolError(f"{self.name} {answer.how}: {answer.words}", location=str(self.log))

    def exchange(self, line: bytes, *, time_s: float) -> bytes | Ended:
        """Send a line and return that of the answer.

        Where the process dies or takes longer than ``time_s``, it has ended, and this says how.
        """
        with self._lock:
            process = self._started()
            try:
                answer = self._exchange(process, line + b"\n", monotonic() + time_s)
            except TimeoutError:
                self._end()
                how = f"took longer than {time_s:g} s"
                return Ended(how=how, words=last_words(self.log), is_late=True)
            except OSError:
                answer = b""
            return answer if answer.endswith(b"\n") else self._death(process)

    def interrupt(self) -> None:
        """End the process while another thread waits for an answer.

        That thread's question raises `ToolError`.
        """
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process if it runs."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    list(self.command),
                    cwd=self.working_directory or self.directory,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise ToolError(
                f"{self.name} cannot be started: {error.strerror or error}",
                location=str(self.command[0]),
            ) from error
        return self._process

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], line: bytes, deadline_s: float) -> bytes:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101 - as above
        process.stdin.write(line)
        process.stdin.flush()
        answer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, deadline_s - monotonic())):
                    raise TimeoutError
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                answer += piece
        return answer

    def _parse_answer(self, answer: bytes) -> dict[str, object]:
        try:
            return dict(json.loads(answer))
        except (ValueError, TypeError) as error:
            self.close()
            raise ToolError(
                f"{self.name} answered with text that is not a JSON object", location=str(self.log)
            ) from error

    def _death(self, process: subprocess.Popen[bytes]) -> Ended:
        with suppress(subprocess.TimeoutExpired):
            # A process that closed its output is about to end: its exit code says more.
            process.wait(timeout=0.2)
        code = process.poll()
        self._end()
        how = "gave no answer" if code is None else ending(code)
        return Ended(how=how, words=last_words(self.log))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


@lru_cache
def lasting_worker(module: str, name: str, *arguments: str) -> Worker:
    """Return the worker of a hespas module with arguments, ended with this process.

    ``name`` is its name in messages.
    """
    directory = Path(tempfile.mkdtemp(prefix="hespas-worker-"))
    command = (sys.executable, "-P", "-m", module, *arguments)
    worker = Worker(command=command, name=name, directory=directory)
    atexit.register(rmtree, directory, ignore_errors=True)
    atexit.register(worker.close)
    return worker
