"""Export one program: a process of its own, ``python -m hespas.sources.worker``.

JAX takes its platform when it starts, and does so once: it starts on the CPU here, and not in the
process that asks, which may want it for other things. `hespas.sources.exported` names the files in
the working directory.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hespas.errors import HespasError
from hespas.sources.exported import ANSWER_FILE, PROGRAM_FILE, REQUEST_FILE, Answer, Request
from hespas.xla.cpu import use_cpu

if TYPE_CHECKING:
    from hespas.sources.exported import Exported


def main() -> None:
    """Read the request in the working directory, export, and write the program."""
    home = Path.cwd()
    request = msgspec.json.decode((home / REQUEST_FILE).read_bytes(), type=Request)
    use_cpu(request.devices)
    try:
        made = _exported(request, home)
        (home / PROGRAM_FILE).write_bytes(made.text)
        answer = Answer(devices=made.devices, notes=list(made.notes))
    except HespasError as error:
        answer = Answer(
            error=type(error).__name__,
            message=error.marked_message,
            location=error.location or "",
            hint=error.marked_hint or "",
            trace="".join(traceback.format_exception(error)),
        )
    (home / ANSWER_FILE).write_bytes(msgspec.json.encode(answer))


def _exported(request: Request, home: Path) -> Exported:
    functions: Any = import_module("hespas.sources.function")
    if request.model:
        return functions.export_model(request.name, request.settings, part=request.part)
    if request.artifact:
        return functions.export_serialized((home / PROGRAM_FILE).read_bytes(), name=request.name)
    sys.path[:] = [*request.path, *(entry for entry in sys.path if entry not in request.path)]
    os.chdir(request.directory)
    return functions.export_named(request.name, platform=request.platform)


if __name__ == "__main__":
    main()
