"""Read possibly damaged programs in a process.

jaxlib's readers can crash:

* Bytecode: jaxlib 0.10.2 aborts where a message holds bytes that are no text, and reads invalid
  memory elsewhere. Names that are no text pass its reader, and no Python can ask for them. Text of
  MLIR does none of this.
* HLO text: it reads invalid memory for a ``dot`` or a ``conditional`` without operands and for a
  ``tuple`` whose type is no tuple, and aborts for parameters that are not numbered 0, 1, .. and for
  negative tiles.

One process reads all of them, one after another, and ends with this one.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from hespas.base.process import lasting_worker
from hespas.base.question import answer_lines
from hespas.errors import ProgramError, ToolError
from hespas.xla.mlir.module import BYTECODE_MAGIC, operations_in, parse_mlir

_MOST_S = 600.0
_HLO, _STABLEHLO = "hlo", "stablehlo"
_DIAGNOSTIC = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


def check_bytecode(source: bytes, *, name: str) -> None:
    """Raise `ProgramError` for bytecode that crashes its reader.

    A portable artifact is bytecode too. Other input is not read, and bytecode that is refused
    without a crash passes.
    """
    if not _is_readable(source, _STABLEHLO):
        raise ProgramError(
            "cannot be parsed: the bytecode is damaged",
            location=name,
            hint="write the file again, or give StableHLO text",
        )


def check_kernel(body: bytes, language: str) -> None:
    """Raise `ProgramError` for a kernel's bytecode that crashes its reader.

    ``language`` is ``mosaic`` or ``triton``. Other input is not read, and bytecode that is refused
    without a crash passes.
    """
    if not _is_readable(body, language):
        raise ProgramError("its kernel cannot be read: the bytecode is damaged")


def _is_readable(source: bytes, language: str) -> bool:
    """Ask again if the process dies, perhaps of earlier damage."""
    if not source.startswith(BYTECODE_MAGIC):
        return True
    for _ in range(2):
        with suppress(ToolError):
            return not _answer_of(source, language)
    return False


def proto_of_text(text: str, *, name: str) -> bytes:
    """Return the ``HloModuleProto`` of a module's text.

    ``name`` stands in messages. Raises `ProgramError` with line and column for text that XLA cannot
    parse, and without them for text that crashes its parser.
    """
    try:
        answer = _answer_of(text.encode(), _HLO)
    except ToolError as error:
        message = "cannot be parsed: XLA's parser of HLO fails on it"
        hint = "the text is damaged: give the whole of the file"
        raise ProgramError(message, location=name, hint=hint) from error
    if "error" not in answer:
        return b64decode(str(answer["proto"]))
    diagnostic = str(answer["error"])
    match = _DIAGNOSTIC.search(diagnostic)
    if match is None:
        raise ProgramError(f"cannot be parsed: {' '.join(diagnostic.split())}", location=name)
    raise ProgramError(f"cannot be parsed: {match[3]}", location=f"{name}:{match[1]}:{match[2]}")


def _answer_of(source: bytes, language: str) -> Mapping[str, object]:
    worker = lasting_worker(__name__, "the reader of programs")
    question = {"body": b64encode(source).decode(), "language": language}
    return worker.ask(question, time_s=_MOST_S)


def _answered(line: bytes) -> bytes:
    question: dict[str, str] = json.loads(line)
    body, language = b64decode(question["body"]), question["language"]
    answer = _parse_hlo(body.decode()) if language == _HLO else _walk_module(body, language)
    return json.dumps(answer).encode()


def _parse_hlo(text: str) -> dict[str, str]:
    try:
        parsed = import_module("jaxlib._hlo").hlo_module_from_text(text)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"proto": b64encode(parsed.as_serialized_hlo_module_proto()).decode()}


def _walk_module(source: bytes, language: str) -> dict[str, str]:
    """Return the error for names that are no text."""
    try:
        if language == _STABLEHLO:
            parsed: Any = parse_mlir(source, name="standard input").handle
        else:
            parsed = import_module("hespas.xla.mlir.kernels").parse_kernel(source, language)
    except ProgramError:
        return {}
    try:
        for op in operations_in(parsed.operation):
            for name in (op.name, *op.attributes):
                if name == "sym_name":
                    _ = op.attributes[name].value
    except (RuntimeError, UnicodeDecodeError) as error:
        # jaxlib's bindings raise these for a name that is no text.
        return {"error": str(error)}
    return {}


if __name__ == "__main__":
    answer_lines(_answered)
