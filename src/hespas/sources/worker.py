"""Export one program, as the process ``python -m hespas.sources.worker``.

JAX takes its platform when it starts, and only once: it starts on the CPU here, and not in the
process that asks, which may want it for other things. The worker answers a question
(`hespas.base.question`).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hespas.base.question import PROGRAM_FILE, serve
from hespas.sources.exported import Answer, Request
from hespas.xla.cpu import use_cpu

if TYPE_CHECKING:
    from hespas.sources.exported import Exported


def _answer(request: Request, home: Path) -> Answer:
    use_cpu(request.devices)
    exported = _export(request, home)
    (home / PROGRAM_FILE).write_bytes(exported.content)
    return Answer(devices=exported.devices, notes=list(exported.notes))


def _export(request: Request, home: Path) -> Exported:
    functions: Any = import_module("hespas.sources.function")
    if request.model:
        return functions.export_model(request.name, request.settings, part=request.part)
    if request.artifact:
        return functions.export_serialized((home / PROGRAM_FILE).read_bytes(), name=request.name)
    sys.path[:] = [*request.path, *(entry for entry in sys.path if entry not in request.path)]
    os.chdir(request.directory)
    return functions.export_named(request.name, platform=request.platform)


ANSWERS = (Request, _answer)

if __name__ == "__main__":
    serve(*ANSWERS)
