"""Parse HLO text in a process of its own: XLA's parser can end its process.

jaxlib 0.10.2 reads invalid memory for a ``dot`` or a ``conditional`` without operands and for a
``tuple`` whose type is none, and aborts for parameters that are not numbered 0, 1, .. and for
negative tiles. One process reads all texts, one after another, and ends with this one.
"""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode, b64encode
from importlib import import_module

from hespas.base.process import lasting_worker
from hespas.errors import ProgramError, ToolError

_MOST_S = 600.0
_DIAGNOSTIC = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


def proto_of_text(text: str, *, name: str) -> bytes:
    """Return the ``HloModuleProto`` of a module's text; ``name`` stands in messages.

    Raises `ProgramError` with line and column for text that XLA cannot parse, and without them for
    text that ends its parser.
    """
    try:
        worker = lasting_worker(__name__, "the parser of HLO")
        answer = worker.ask({"text": text}, time_s=_MOST_S)
    except ToolError as error:
        message = "cannot be parsed: XLA's parser of HLO fails on it"
        hint = "the text is damaged: give the whole of the file"
        raise ProgramError(message, location=name, hint=hint) from error
    if "error" in answer:
        raise _text_error(str(answer["error"]), name)
    return b64decode(str(answer["proto"]))


def _text_error(message: str, name: str) -> ProgramError:
    match = _DIAGNOSTIC.search(message)
    if match is None:
        return ProgramError(f"cannot be parsed: {' '.join(message.split())}", location=name)
    return ProgramError(f"cannot be parsed: {match[3]}", location=f"{name}:{match[1]}:{match[2]}")


def main() -> None:
    """Parse a text for each line of standard input, and answer each with a line."""
    for line in sys.stdin:
        text: str = json.loads(line)["text"]
        sys.stdout.write(json.dumps(_answer(text)) + "\n")
        sys.stdout.flush()


def _answer(text: str) -> dict[str, str]:
    try:
        parsed = import_module("jaxlib._hlo").hlo_module_from_text(text)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"proto": b64encode(parsed.as_serialized_hlo_module_proto()).decode()}


if __name__ == "__main__":
    main()
