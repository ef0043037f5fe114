"""Ask a module of hespas in another process.

Compilers and JAX use gigabytes, can abort and take their settings at startup, so they run outside
the asking process. The question is ``request.json`` in the process's directory, the answer
``answer.json``, or ``refused.json`` for an error of `hespas.errors`; modules document which other
files they read and write there.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NoReturn, TypeVar

import msgspec

from hespas import errors
from hespas.base.process import LOG_NAME, Limits, Worker, interruption, last_words, run_program
from hespas.errors import ExtraMissingError, HespasError, ToolError

Request = TypeVar("Request", bound=msgspec.Struct)
Answer = TypeVar("Answer", bound=msgspec.Struct)

PROGRAM_FILE = "program.mlir"
"""The program of a question, and in some answers the resulting one."""

_REQUEST_FILE = "request.json"
_ANSWER_FILE = "answer.json"
_REFUSED_FILE = "refused.json"


_ANSWERING = "from hespas.base.question import answer_modules; answer_modules()"
"""What a process runs that answers one question after another."""
_REUSED: ContextVar[dict[tuple[str, ...], Worker] | None] = ContextVar("kept", default=None)
"""The processes that wait for this thread's next question, by environment."""


@contextmanager
def reused_processes() -> Generator[None]:
    """Keep this thread's processes that can be asked again.

    Questions of one environment go to one process, whatever modules answer them. Processes start
    once for all questions, and end with the outermost block.
    """
    if _REUSED.get() is not None:
        yield
        return
    workers: dict[tuple[str, ...], Worker] = {}
    before = _REUSED.set(workers)
    try:
        yield
    finally:
        _REUSED.reset(before)
        for worker in workers.values():
            worker.close()


class _Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error; ``error`` names its class in `hespas.errors`.

    ``trace`` is its stack trace.
    """

    error: str
    message: str
    location: str
    hint: str
    trace: str


def ask(
    module: str,
    request: msgspec.Struct,
    answer: type[Answer],
    *,
    name: str,
    directory: Path,
    limits: Limits,
    environment: Mapping[str, str] | None = None,
    again: bool = False,
) -> Answer:
    """Run a module that answers (`serve`) and return its answer.

    The module runs in ``directory``; ``name`` appears in messages. One that can be asked ``again``
    has its type of requests and its answering function as ``ANSWERS``, and stays among
    `reused_processes`. Raises the module's error, and `ToolError`, naming the log, for a process
    that fails or leaves no answer. ``directory`` is removed after an error that needs no log.
    """
    (directory / _REQUEST_FILE).write_bytes(msgspec.json.encode(request))
    python, workers = (sys.executable, "-P"), _REUSED.get()
    # A question that can be interrupted ends its process.
    if again and workers is not None and limits.memory_bytes is None and interruption() is None:
        variables = environment or {}
        command = (*python, "-c", _ANSWERING)
        worker = workers.setdefault(
            tuple(f"{key}={value}" for key, value in sorted(variables.items())),
            Worker(command=command, name=name, directory=directory, environment=variables),
        )
        worker.directory, worker.name = directory, name
        worker.ask({"module": module, "directory": str(directory)}, time_s=limits.time_s)
    else:
        command = (*python, "-m", module)
        run_program(command, name=name, directory=directory, limits=limits, environment=environment)
    log = directory / LOG_NAME
    refused = directory / _REFUSED_FILE
    try:
        if not refused.exists():
            return msgspec.json.decode((directory / _ANSWER_FILE).read_bytes(), type=answer)
        refusal = msgspec.json.decode(refused.read_bytes(), type=_Refusal)
    except (OSError, msgspec.DecodeError) as error:
        raise ToolError(f"{name} left no answer: {last_words(log)}", location=str(log)) from error
    raise _error(refusal, log)


def _error(refusal: _Refusal, log: Path) -> HespasError:
    kind: type[HespasError] = getattr(errors, refusal.error)
    location = refusal.location
    if kind is ToolError:
        location = f"{location}: {log}" if location else str(log)
    else:
        shutil.rmtree(log.parent, ignore_errors=True)
    if kind is ExtraMissingError:
        kind = ToolError
    error = kind(refusal.message, location=location, hint=refusal.hint)
    # For --debug.
    error.add_note(refusal.trace)
    return error


def collect_rarely() -> None:
    """Collect garbage rarely.

    Collections among all objects of JAX and a program take a tenth of the time.
    """
    gc.set_threshold(200_000, 50, 1000)


def answer_lines(answered: Callable[[bytes], bytes]) -> NoReturn:
    """Answer lines of standard input until the asker is gone.

    Answers go to standard output. The process ends with the one that asks, in the middle of an
    answer too. What libraries print goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines: SimpleQueue[bytes] = SimpleQueue()
    # Collections leave out the modules that stay.
    gc.freeze()
    collect_rarely()
    Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        answers.write(answered(lines.get()) + b"\n")


def _read(lines: SimpleQueue[bytes]) -> None:
    """Pass lines on; end the process after the asker."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def serve(request: type[Request], answered: Callable[[Request, Path], msgspec.Struct]) -> NoReturn:
    """Answer the working directory's question, and end the process."""
    answer_question(request, answered)
    end_process()


def answer_modules() -> NoReturn:
    """Answer the questions in directories read line by line.

    The ``ANSWERS`` of a module are its type of requests and its answering function.
    """

    def answer_in_directory(line: bytes) -> bytes:
        question = json.loads(line)
        os.chdir(question["directory"])
        log = os.open(LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        answer_question(*import_module(question["module"]).ANSWERS)
        return b"{}"

    answer_lines(answer_in_directory)


def end_process() -> NoReturn:
    """End the process without waiting for its threads.

    Python would wait for XLA's.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _known_kind(error: HespasError) -> str:
    """Return the nearest class of an error that `hespas.errors` has."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next(name for name in names if hasattr(errors, name))


def answer_question(
    request: type[Request], answered: Callable[[Request, Path], msgspec.Struct]
) -> None:
    """Answer the question in the working directory, passed to ``answered``."""
    home = Path.cwd()
    collect_rarely()
    question = msgspec.json.decode((home / _REQUEST_FILE).read_bytes(), type=request)
    try:
        answer = answered(question, home)
    except HespasError as error:
        refusal = _Refusal(
            error=_known_kind(error),
            message=error.marked_message,
            location=error.location,
            hint=error.marked_hint,
            trace="".join(traceback.format_exception(error)),
        )
        (home / _REFUSED_FILE).write_bytes(msgspec.json.encode(refusal))
    else:
        (home / _ANSWER_FILE).write_bytes(msgspec.json.encode(answer))
