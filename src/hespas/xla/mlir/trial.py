"""Read bytecode in a process of its own first: MLIR's reader can end its process.

Damaged bytecode makes jaxlib 0.10.2 abort where a message holds bytes that are no text, and read
invalid memory elsewhere. Names that are no text pass its reader, and no Python can ask for them.
Text does none of this. One process reads all kernels of a program, one after another, and ends
with this one.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from contextlib import suppress
from importlib import import_module
from typing import Any

from hespas.base.process import lasting_worker
from hespas.errors import ProgramError, ToolError
from hespas.xla.mlir.module import BYTECODE_MAGIC, parse_mlir

_MOST_S = 120.0
_STABLEHLO = "stablehlo"


def check_bytecode(source: bytes, *, name: str) -> None:
    """Raise `ProgramError` for bytecode, or a portable artifact, that ends what reads it.

    What is no bytecode is not read. Bytecode that is refused without harm passes.
    """
    if not _is_readable(source, _STABLEHLO):
        raise ProgramError(
            "cannot be parsed: the bytecode is damaged",
            location=name,
            hint="write the file again, or give StableHLO text",
        )


def check_kernel(body: bytes, language: str) -> None:
    """Raise `ProgramError` for a kernel's bytecode that ends what reads it.

    ``language`` is ``mosaic`` or ``triton``. What is no bytecode is not read, and bytecode that is
    refused without harm passes.
    """
    if not _is_readable(body, language):
        raise ProgramError("its kernel cannot be read: the bytecode is damaged")


def _is_readable(source: bytes, language: str) -> bool:
    """Ask twice where the process dies: an earlier kernel may have damaged its memory."""
    if not source.startswith(BYTECODE_MAGIC):
        return True
    question = {"body": b64encode(source).decode(), "language": language}
    worker = lasting_worker(__name__, "the reader of bytecode")
    for _ in range(2):
        with suppress(ToolError):
            return bool(worker.ask(question, time_s=_MOST_S)["is_readable"])
    return False


def main() -> None:
    """Read the bytecode in each line of standard input, and answer each with a line."""
    for line in sys.stdin:
        question: dict[str, str] = json.loads(line)
        is_readable = _has_names(b64decode(question["body"]), question["language"])
        sys.stdout.write(json.dumps({"is_readable": is_readable}) + "\n")
        sys.stdout.flush()


def _has_names(source: bytes, language: str) -> bool:
    try:
        if language == _STABLEHLO:
            parsed: Any = parse_mlir(source, name="standard input").handle
        else:
            parsed = import_module("hespas.xla.mlir.kernels").parse_kernel(source, language)
    except ProgramError:
        return True
    waiting = [parsed.operation]
    try:
        while waiting:
            op = waiting.pop()
            _ = op.name
            for name in op.attributes:
                if name == "sym_name":
                    _ = op.attributes[name].value
            for region in op.regions:
                for block in region.blocks:
                    waiting += [view.operation for view in block.operations]
    except (RuntimeError, UnicodeDecodeError):
        # What jaxlib's bindings raise for a name that is no text.
        return False
    return True


if __name__ == "__main__":
    main()
