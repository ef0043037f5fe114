"""A child process that answers questions: one JSON line in, one JSON line out."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from threading import Lock
from time import monotonic

from hespas.base.process import LOG_NAME, ending, last_words
from hespas.errors import TimeLimitError, ToolError


@dataclass(slots=True, kw_only=True)
class Worker:
    """A child process that reads questions from standard input and answers on standard output.

    It starts with the first question, and again with the next one after it died. Its standard
    error goes to ``log.txt`` in ``directory``. `close` ends the process.
    """

    command: Sequence[str]
    name: str
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    _process: subprocess.Popen[bytes] | None = None
    _lock: Lock = field(default_factory=Lock)

    @property
    def log(self) -> Path:
        """Where its standard error goes."""
        return self.directory / LOG_NAME

    def ask(self, question: Mapping[str, object], *, time_s: float) -> dict[str, object]:
        """Send a question and return the answer.

        Raises `ToolError`, naming the log, if the process dies, does not answer in JSON, or takes
        longer than ``time_s``; it has ended by then.
        """
        with self._lock:
            process = self._started()
            line = json.dumps(dict(question)).encode() + b"\n"
            try:
                answer = self._exchange(process, line, monotonic() + time_s)
            except TimeoutError:
                self._end()
                raise TimeLimitError(
                    f"{self.name} took longer than {time_s:g} s",
                    location=str(self.log),
                    hint="allow more time",
                ) from None
            except OSError:
                answer = b""
            if not answer.endswith(b"\n"):
                raise self._died(process)
            return self._parsed(answer)

    def close(self) -> None:
        """End the process, if it runs."""
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
                    cwd=self.directory,
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

    def _parsed(self, answer: bytes) -> dict[str, object]:
        try:
            return dict(json.loads(answer))
        except (ValueError, TypeError) as error:
            self._end()
            raise ToolError(f"{self.name} answered nonsense", location=str(self.log)) from error

    def _died(self, process: subprocess.Popen[bytes]) -> ToolError:
        with suppress(subprocess.TimeoutExpired):
            # A process that closed its output is about to end: its own exit code says more.
            process.wait(timeout=0.2)
        self._end()
        how = ending(process.returncode)
        return ToolError(f"{self.name} {how}: {last_words(self.log)}", location=str(self.log))

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
def lasting_worker(module: str, name: str) -> Worker:
    """Return the worker that runs a module of hespas; the process ends with this one.

    ``name`` is what messages call it.
    """
    directory = Path(tempfile.mkdtemp(prefix="hespas-worker-"))
    worker = Worker(command=(sys.executable, "-P", "-m", module), name=name, directory=directory)
    atexit.register(rmtree, directory, ignore_errors=True)
    atexit.register(worker.close)
    return worker
