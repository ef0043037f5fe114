"""Read the bytecode of kernels in a process of its own first, as `trial` does with programs.

One process reads all kernels of a program, one after another, and ends with this one.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from importlib import import_module
from typing import Any

from hespas.base.worker import lasting_worker
from hespas.errors import ProgramError, ToolError
from hespas.xla.mlir.module import BYTECODE_MAGIC
from hespas.xla.mlir.trial import NO_TEXT, read_names

_MOST_S = 120.0
_PARSERS = {
    "mosaic": ("hespas.xla.mlir.mosaic", "parse_mosaic"),
    "triton": ("hespas.xla.mlir.triton", "parse_triton"),
}


def check_kernel(body: bytes, language: str) -> None:
    """Raise `ProgramError` for bytecode that ends what reads it.

    ``language`` is ``mosaic`` or ``triton``. What is no bytecode is not read, and bytecode that is
    refused without harm passes.
    """
    if not body.startswith(BYTECODE_MAGIC):
        return
    question = {"body": b64encode(body).decode(), "language": language}
    answer = _answer(question)
    if not answer["is_text"]:
        raise ProgramError("its kernel cannot be read: a name in it is no text")


def _answer(question: dict[str, str]) -> dict[str, object]:
    """Ask again where the process dies: an earlier kernel may have damaged its memory."""
    worker = lasting_worker(__name__, "the reader of kernels")
    with suppress(ToolError):
        return worker.ask(question, time_s=_MOST_S)
    try:
        return worker.ask(question, time_s=_MOST_S)
    except ToolError as error:
        raise ProgramError("its kernel cannot be read: the bytecode is damaged") from error


def main() -> None:
    """Read a kernel for each line of standard input, and answer each with a line."""
    for line in sys.stdin:
        question: dict[str, str] = json.loads(line)
        is_text = _is_text(b64decode(question["body"]), question["language"])
        sys.stdout.write(json.dumps({"is_text": is_text}) + "\n")
        sys.stdout.flush()


def _is_text(body: bytes, language: str) -> bool:
    """Return whether all names can be asked for, or the module is refused."""
    module, name = _PARSERS[language]
    try:
        parsed: Any = getattr(import_module(module), name)(body)
    except ProgramError:
        return True
    try:
        read_names(parsed.operation)
    except NO_TEXT:
        return False
    return True


if __name__ == "__main__":
    main()
