"""What goes between hespas and the process that exports: files in its directory."""

from __future__ import annotations

import msgspec

from hespas.models.part import Part

REQUEST_FILE = "request.json"
ANSWER_FILE = "answer.json"
PROGRAM_FILE = "program.mlir"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to export: a model with settings, or where a function or an artifact stands.

    Of a model with a ``part``, that alone.
    Functions are imported from ``path``, in ``directory``, on so many virtual ``devices``, and
    lowered for ``platform``.
    """

    name: str
    model: bool = False
    artifact: bool = False
    settings: dict[str, str] = {}
    part: Part | None = None
    devices: int | None = None
    directory: str = "."
    path: list[str] = []
    platform: str = "cpu"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to the program on the way; or, where an ``error`` is named, why not.

    ``trace`` shows where in the user's function, or in hespas, that was.
    """

    devices: int = 1
    notes: list[str] = []
    error: str = ""
    message: str = ""
    location: str = ""
    hint: str = ""
    trace: str = ""
