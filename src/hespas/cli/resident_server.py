"""The resident process, which answers commands.

``python -m hespas.cli.resident_server`` listens, imports the modules of commands, and forks
workers, which answer one command at a time and keep traced models and prices. A worker that dies is
replaced by another one. `hespas.cli.resident` has the protocol.

Only the user may ask: the directory and the socket are theirs, each question has the token of the
directory, and the system names the user at the other end.
"""

from __future__ import annotations

import fcntl
import gc
import hmac
import importlib
import io
import logging
import mmap
import os
import resource
import secrets
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from threading import Lock, Thread
from time import monotonic, sleep
from types import FrameType
from typing import Any, NoReturn

import msgspec

from hespas.base.cache import installed_state
from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.process import last_words, stay
from hespas.base.question import collect_rarely
from hespas.cli.resident import (
    CODE,
    GO,
    INTERRUPT,
    REFUSED,
    SOCKET,
    TAKEN,
    TOKEN,
    WRITES,
    greeted,
    home,
    peer,
    settings,
)
from hespas.errors import ConfigError, HespasError, ToolError

_LOG = "log.txt"
_MOST_BYTES = 1 << 22
"""The largest question; most of one is its environment."""
_MOST_PATH_BYTES = 100
"""The longest path of a socket; systems allow 104 or 108 bytes."""
_MOST_MEMORY_BYTES = 8 << 30
"""A worker that used more is replaced after its answer."""
_START_S = 60.0
_ENDING_S = 5.0
_LOOK_EVERY_S = 2.0
_READ_S = 1.0
_AGAIN_S = 0.5
_MODULES = (
    *("hespas.cli.commands", "hespas.cli.predicted", "hespas.prediction.staged"),
    *("hespas.report.run", "hespas.report.answers", "hespas.sources.function"),
    *("hespas.xla.partition.worker", "hespas.cli.run_command", "hespas.cli.predict_commands"),
    *("hespas.cli.result_commands", "hespas.cli.stage_commands", "hespas.cli.serve_command"),
)


def start(*, workers: int, idle_s: float, say: Callable[[str], None]) -> None:
    """Start the resident process, unless one answers already.

    Raises `ConfigError` for a directory that others can reach, or whose path is too long, and
    `ToolError` for a process that doesn't start.
    """
    place = home()
    if len(os.fsencode(place / SOCKET)) > _MOST_PATH_BYTES:
        raise ConfigError(
            f"the path of the socket is longer than {_MOST_PATH_BYTES} bytes",
            location=str(place / SOCKET),
            hint="set XDG_CACHE_HOME to a shorter one",
        )
    if (process := running()) is not None:
        say(f"hespas: process {process} answers commands already{_why_not_here()}")
        return
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    read_end, write_end = os.pipe()
    with (place / _LOG).open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(workers), str(idle_s), str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        # Its end is closed once it listens, or when it ends.
        is_there = pipe.read(1) == b"y"
    if not is_there:
        raise ToolError(
            f"the resident process did not start: {last_words(place / _LOG)}",
            location=str(place / _LOG),
        )
    say(
        f"hespas: process {started.pid} answers commands from now on, and ends after"
        f" {idle_s:g} s without one.\nhespas app --stop ends it."
    )


def _why_not_here() -> str:
    """Return why this process refuses commands, or ""."""
    try:
        opened = greeted(["run"])
    except OSError:
        return ""
    if isinstance(opened, str):
        return f", but not here: {opened}.\nhespas app --stop, then --background, starts another"
    opened.close()
    return ""


def running() -> int | None:
    """Return the number of the listening process, if any."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.settimeout(_READ_S)
            connection.connect(str(home() / SOCKET))
            process, user = peer(connection)
        except OSError:
            return None
        return process if user == os.getuid() else None


def stop(say: Callable[[str], None]) -> None:
    """End the resident process, after interrupting its commands."""
    process = running()
    if process is None:
        say("hespas: no resident process runs")
        return
    if not process:
        raise ToolError("this system does not say which process listens", hint="end it by hand")
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    end_s = monotonic() + 2 * _ENDING_S
    while running() == process and monotonic() < end_s:
        sleep(0.02)
    say(f"hespas: process {process} has ended")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A command of another process."""

    token: str
    arguments: list[str]
    environment: dict[str, str]
    settings: dict[str, Any]
    umask: int
    streams: list[tuple[str, str]]


@frozen
class ServerState:
    """The state at a worker's start, to match questions."""

    token: str
    user: int
    settings: Mapping[str, Any]
    installed: str

    def refusal(self, question: Question, user: int) -> str:
        """Return why a question is refused, or "".

        >>> state = ServerState(token="abc", user=7, settings={}, installed="1")
        >>> state.refusal(Question(token="abd", arguments=[], environment={}, settings={},
        ...                        umask=0, streams=[]), 7)
        'the token is wrong'
        """
        if user != self.user:
            return "another user asks"
        if not hmac.compare_digest(question.token.encode(), self.token.encode()):
            return "the token is wrong"
        for name, value in self.settings.items():
            if question.settings.get(name) != value:
                return f"its {name} is another one than when the process started"
        return ""


def main(arguments: Sequence[str]) -> None:
    """Listen and keep workers until idleness or a signal."""
    workers, idle_s, ready = int(arguments[0]), float(arguments[1]), int(arguments[2])
    place = home()
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("another one starts")
    token = secrets.token_urlsafe(32)
    write_file(place / TOKEN, token.encode())
    (place / TOKEN).chmod(0o600)
    state = ServerState(
        token=token,
        user=os.getuid(),
        # Through JSON, as those of questions come.
        settings=msgspec.json.decode(msgspec.json.encode(settings(os.environ))),
        installed=installed_state(),
    )
    os.environ |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    # Forked workers share these pages as long as no collection writes to them.
    gc.freeze()
    collect_rarely()
    os.umask(0o077)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (place / SOCKET).unlink(missing_ok=True)
    listener.bind(str(place / SOCKET))
    (place / SOCKET).chmod(0o600)
    listener.listen(16)
    with closing(listener):
        supervisor = _Supervisor(listener=listener, state=state, idle_s=idle_s)
        supervisor.run(workers, ready)


@dataclass(slots=True, kw_only=True)
class _Supervisor:
    """Keeps workers; they write the time of the ``last_question``."""

    listener: socket.socket
    state: ServerState
    idle_s: float
    last_question: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 8))
    _alive: tuple[int, int] = field(default_factory=os.pipe)
    _workers: set[int] = field(default_factory=set[int])

    def run(self, workers: int, ready: int) -> None:
        """Start and replace workers until the process shall end."""
        signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self.last_question[:] = struct.pack("d", monotonic())
        for _ in range(workers):
            self._fork(signals)
        os.write(ready, b"y")
        os.close(ready)
        inode = (home() / SOCKET).lstat().st_ino
        while self._goes_on(inode):
            caught = signal.sigtimedwait(signals, _LOOK_EVERY_S)
            if caught is not None and caught.si_signo != signal.SIGCHLD:
                break
            for _ in range(self._ended()):
                self._fork(signals)
        self._end()
        with suppress(OSError):
            if (home() / SOCKET).lstat().st_ino == inode:
                (home() / SOCKET).unlink()

    def _goes_on(self, inode: int) -> bool:
        """Return whether the process is reachable, used and current."""
        try:
            is_there = (home() / SOCKET).lstat().st_ino == inode
        except OSError:
            return False
        last_s = float(struct.unpack("d", self.last_question[:])[0])
        is_idle = monotonic() - last_s > self.idle_s
        return is_there and not is_idle and _installed_now() == self.state.installed

    def _fork(self, signals: set[signal.Signals]) -> None:
        process = os.fork()
        if process:
            self._workers.add(process)
            return
        try:
            os.close(self._alive[1])
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, _terminate)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            Thread(target=_end_with, args=(self._alive[0],), daemon=True).start()
            work(self.listener, self.state, self.last_question)
        finally:
            os._exit(0)

    def _ended(self) -> int:
        """Return how many workers have ended, and forget them."""
        count = 0
        while self._workers:
            process, _ = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            self._workers.discard(process)
            count += 1
        return count

    def _end(self) -> None:
        for process in self._workers:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        end_s = monotonic() + _ENDING_S
        while self._workers and monotonic() < end_s:
            self._ended()
            sleep(0.02)
        for process in self._workers:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _installed_now() -> str:
    return installed_state.__wrapped__()


def _end_with(read_end: int) -> None:
    """End this process when its supervisor has ended."""
    os.read(read_end, 1)
    os._exit(1)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature
    sys.exit(128 + number)


def work(listener: socket.socket, state: ServerState, last_question: mmap.mmap) -> None:
    """Answer commands until another process shall go on."""
    try:
        is_clean = True
        while is_clean:
            connection, _ = listener.accept()
            with connection:
                is_clean = _answer(connection, state, last_question)
            peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            is_clean = is_clean and peak_bytes < _MOST_MEMORY_BYTES
    except SystemExit:
        return


def _answer(connection: socket.socket, state: ServerState, last_question: mmap.mmap) -> bool:
    """Answer a connection; return whether this process goes on."""
    descriptors: list[int] = []
    try:
        connection.settimeout(_READ_S)
        question = _received(connection, descriptors)
        refusal = state.refusal(question, peer(connection)[1])
        if not refusal and _installed_now() != state.installed:
            refusal = "hespas or a package was changed"
        if refusal or len(descriptors) != 4:
            connection.sendall(REFUSED + refusal.encode())
            return True
        connection.sendall(TAKEN)
        # One that waited too long runs the command itself by now.
        if connection.recv(1) != GO:
            return True
    except (OSError, ValueError, msgspec.MsgspecError):
        return True
    else:
        last_question[:] = struct.pack("d", monotonic())
        connection.settimeout(None)
        return _run(connection, question, descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _received(connection: socket.socket, descriptors: list[int]) -> Question:
    """Return a question, and add its descriptors to a list.

    Raises `ValueError` for anything else.
    """
    head, received, _, _ = socket.recv_fds(connection, 4, 4)
    descriptors += received
    size = int.from_bytes(head, "big")
    if len(head) != 4 or size > _MOST_BYTES:
        raise ValueError("it is no question")
    body = bytearray()
    while len(body) < size:
        piece = connection.recv(min(1 << 16, size - len(body)))
        if not piece:
            raise ValueError("it ended too soon")
        body += piece
    return msgspec.json.decode(bytes(body), type=Question)


def _run(connection: socket.socket, question: Question, descriptors: list[int]) -> bool:
    """Run a command with its streams; send its exit code."""
    own = [os.dup(number) for number in range(3)]
    watch = _Watch(connection=connection)
    try:
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        os.fchdir(descriptors[3])
        # An interruption that waits already silences the streams that are there now.
        Thread(target=watch.listen, daemon=True).start()
        with _streams(question, watch):
            code = Context().run(_command, question)
        is_clean = code < 128
    except (KeyboardInterrupt, SystemExit):
        code, is_clean = 130, False
    with suppress(KeyboardInterrupt, SystemExit), watch.lock:
        watch.is_done = True
    # Readers of the other ends wait until this process has closed its own.
    for number, descriptor in enumerate(own):
        os.dup2(descriptor, number)
        os.close(descriptor)
    while descriptors:
        os.close(descriptors.pop())
    os.chdir("/")
    with suppress(OSError):
        connection.sendall(CODE + code.to_bytes(4, "big"))
    return is_clean


def _command(question: Question) -> int:
    """Run a command as its own process would."""
    from hespas.cli.commands import commands, run  # noqa: PLC0415 - imported before the fork

    os.umask(question.umask)
    os.environ.clear()
    os.environ.update(question.environment)
    sys.argv[:] = ["hespas", *question.arguments]
    stay(stays=True)
    try:
        return run(commands, "hespas", question.arguments)
    finally:
        log = logging.getLogger("hespas")
        for handler in list(log.handlers):
            log.removeHandler(handler)


class _GatedStream(io.FileIO):
    """A stream that asks before writes; refused ones are dropped."""

    def __init__(self, number: int, may_write: Callable[[], bool]) -> None:
        super().__init__(number, "w", closefd=False)
        self._may_write = may_write

    def write(self, content: Any, /) -> int | None:
        return super().write(content) if self._may_write() else len(content)


@contextmanager
def _streams(question: Question, watch: _Watch) -> Generator[None]:
    """Open standard streams of descriptors 0 to 2."""
    (in_code, in_errors), (out_code, out_errors), (error_code, error_errors) = question.streams
    own_streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = open(0, encoding=in_code, errors=in_errors, closefd=False)  # noqa: SIM115 - closed below
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_GatedStream(1, watch.writes)),
        out_code,
        out_errors,
        line_buffering=os.isatty(1),
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_GatedStream(2, watch.complains)),
        error_code,
        error_errors,
        line_buffering=True,
    )
    try:
        yield
    finally:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            # What can't be written any more was seen to by the command.
            with suppress(OSError, ValueError):
                stream.close()
        sys.stdin, sys.stdout, sys.stderr = own_streams


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Receives messages of the asking process during its command."""

    connection: socket.socket
    is_done: bool = False
    is_interrupted: bool = False
    lock: Lock = field(default_factory=Lock)
    _has_written: bool = False

    def listen(self) -> None:
        """Interrupt the command on Ctrl-C, or without an asker.

        A library may swallow an interruption, and print that: it is repeated, silently, until the
        command has ended.
        """
        number, left_s = signal.SIGINT, _ENDING_S
        while left_s > 0:
            try:
                if self.connection.recv(1) != INTERRUPT:
                    number = signal.SIGTERM
            except TimeoutError:
                pass
            except OSError:
                number = signal.SIGTERM
            with self.lock:
                if self.is_done:
                    return
                self.is_interrupted = True
                # Libraries may write about it; those that put descriptors back use Python's.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 2)
                os.close(null)
                os.kill(os.getpid(), number)
                self.connection.settimeout(_AGAIN_S)
            if number is signal.SIGTERM:
                sleep(_AGAIN_S)
                left_s -= _AGAIN_S
        os._exit(1)

    def writes(self) -> bool:
        """Announce output to the asking process; return True.

        From then on the asking process does not run the command itself.
        """
        if not self._has_written:
            self._has_written = True
            with suppress(OSError):
                self.connection.sendall(WRITES)
        return True

    def complains(self) -> bool:
        """Return whether errors are written; not those of Ctrl-C."""
        return not self.is_interrupted and self.writes()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HespasError as error:
        sys.exit(error.text(str))
