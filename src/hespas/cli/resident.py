"""Let the resident process run a command.

``hespas app --background`` starts that process (`hespas.cli.resident_server`). This module is
imported before the rest of the command line, and imports the standard library alone.

The processes talk over a Unix socket in the user's cache directory. This one sends the command, the
environment, and its standard streams and working directory as descriptors; the other one writes to
the same terminal, files or pipes. A command that might give other bytes there runs here.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hespas.base.home import cache_home

if TYPE_CHECKING:
    import socket

COMMANDS = frozenset(
    {
        *("run", "explain", "memory", "kernels", "compare", "report", "schema", "serve"),
        *("export", "partition", "analyze", "split", "estimate", "trace", "simulate"),
        *("hardware", "models", "algorithm"),
    }
)
"""Commands that answer and end; the others run long processes, or use devices."""
_OWN_PROCESS = ("--debug", "--log-level", "--log-path")
"""Options whose output is about the process that runs the command."""
SWITCH = "HESPAS_RESIDENT"
"""The environment's name of the switch.

``off`` runs commands in their own process; ``only`` is an error where the other one doesn't answer.
"""
SOCKET, TOKEN = "socket", "token"
_PREFIXES = (
    *("PYTHON", "JAX_", "XLA_", "LIBTPU_", "TF_", "LD_", "DYLD_", "CUDA_", "OMP_", "MKL_"),
    *("OPENBLAS_", "HESPAS_", "LANG", "LC_", "TZ", "MALLOC_"),
)
"""Variables that are read when a process starts, or when a library is loaded."""
TAKEN, REFUSED, GO, WRITES, INTERRUPT, CODE = b"y", b"n", b"g", b"w", b"i", b"c"
"""The messages of the two processes; a refusal's reason follows it, a code's 4 bytes too."""
_PATIENCE_S = 0.25
"""The wait for a busy process, after which the command runs here."""
LOST_CODE = 2
INTERRUPTED_CODE = 130
INTERRUPTED = "interrupted; nothing was left half-written"


def home() -> Path:
    """Return the directory of the socket and the token."""
    return cache_home() / "resident"


def settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that both processes must share."""
    import resource  # noqa: PLC0415 - only where there is a process to ask

    flags = sys.flags
    path = sys.path if flags.safe_path else sys.path[1:]
    return {
        "environment": {
            name: text
            for name, text in sorted(environment.items())
            if name.startswith(_PREFIXES) and name != SWITCH
        },
        "interpreter": [sys.executable, sys.version, sys.prefix],
        "code": str(Path(__file__).resolve().parent),
        "path": [os.path.realpath(entry) for entry in path],
        "flags": [flags.optimize, int(flags.dev_mode), flags.utf8_mode, *sys.warnoptions],
        "memory": list(resource.getrlimit(resource.RLIMIT_AS)),
    }


def answered(arguments: Sequence[str]) -> int | None:
    """Let the resident process run a command, if possible.

    Returns the exit code; None if the command has to run here, as after a process that ended before
    it wrote anything.
    """
    if not arguments or arguments[0] not in COMMANDS or os.environ.get(SWITCH) == "off":
        return None
    if None in _streams() or any(argument.startswith(_OWN_PROCESS) for argument in arguments):
        return None
    try:
        opened = greeted(arguments)
    except OSError as error:
        # There is none, it was killed, or it is busy.
        opened = error.strerror or "it is busy"
    if isinstance(opened, str):
        if os.environ.get(SWITCH) != "only":
            return None
        sys.stderr.write(f"hespas: error: the resident process does not answer: {opened}\n")
        return LOST_CODE
    with opened:
        return _exit_code(opened)


def greeted(arguments: Sequence[str]) -> socket.socket | str:
    """Send a command; return the connection or a refusal.

    Nothing runs before `GO` is sent. Raises `OSError` where no process of this user's listens.
    """
    place = home()
    for path, most in ((place, 0o700), (place / SOCKET, 0o600), (place / TOKEN, 0o600)):
        state = path.lstat()
        if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & ~most:
            raise PermissionError(1, "others can reach it", str(path))
    import socket  # noqa: PLC0415 - only where there is a process to ask

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_S)
        connection.connect(str(place / SOCKET))
        _send(connection, arguments, (place / TOKEN).read_text(encoding="ascii"))
        message = connection.recv(1)
        reason = "" if message == TAKEN else _read_all(connection).decode()
    except BaseException:
        connection.close()
        raise
    if message == TAKEN:
        connection.settimeout(None)
        return connection
    connection.close()
    return reason or "it has just ended"


def _send(connection: socket.socket, arguments: Sequence[str], token: str) -> None:
    """Send a command with this process's descriptors."""
    import json  # noqa: PLC0415 - only where there is a process to ask
    import socket  # noqa: PLC0415 - as above

    if peer(connection)[1] != os.getuid():
        raise PermissionError(1, "another user answers")
    mask = os.umask(0o077)
    os.umask(mask)
    body = json.dumps(
        {
            "token": token,
            "arguments": list(arguments),
            "environment": dict(os.environ),
            "settings": settings(os.environ),
            "umask": mask,
            "streams": [[stream.encoding, stream.errors] for stream in _streams()],
        }
    ).encode()
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        socket.send_fds(connection, [len(body).to_bytes(4, "big")], [0, 1, 2, here])
    finally:
        os.close(here)
    connection.sendall(body)


def _streams() -> tuple[Any, Any, Any]:
    return sys.stdin, sys.stdout, sys.stderr


def _read_all(connection: socket.socket) -> bytes:
    pieces: list[bytes] = []
    while piece := connection.recv(4096):
        pieces.append(piece)
    return b"".join(pieces)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the other end's process and user.

    An unknown process is 0.
    """
    import socket  # noqa: PLC0415 - only where there is a process to ask

    if not hasattr(socket, "SO_PEERCRED"):
        return 0, os.getuid()
    import struct  # noqa: PLC0415 - as above

    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    process, user, _ = struct.unpack("3i", credentials)
    return process, user


def _exit_code(connection: socket.socket) -> int | None:
    """Start the command, and return its exit code.

    None is a process that ended without any output.
    """
    try:
        connection.sendall(GO)
    except OSError:
        return None
    content, is_interrupted = _received(connection)
    message = content.lstrip(WRITES)
    code = int.from_bytes(message[1:5], "big") if message[4:] else None
    if is_interrupted and code in {None, INTERRUPTED_CODE}:
        sys.stderr.write(f"hespas: {INTERRUPTED}\n")
        return INTERRUPTED_CODE
    if code is None and content:
        sys.stderr.write("hespas: error: the resident process ended in the middle; ask again\n")
        return LOST_CODE
    return code


def _received(connection: socket.socket) -> tuple[bytes, bool]:
    """Receive until the exit code; note whether Ctrl-C was pressed.

    Ctrl-C goes on to the command; a second one ends this process.
    """
    content, is_interrupted = b"", False
    while not content.lstrip(WRITES)[4:]:
        try:
            piece = connection.recv(64)
        except KeyboardInterrupt:
            if is_interrupted:
                raise
            is_interrupted = True
            connection.sendall(INTERRUPT)
            continue
        except OSError:
            break
        if not piece:
            break
        content += piece
    return content, is_interrupted
