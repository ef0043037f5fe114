"""Read bytecode in a process of its own first: MLIR's reader can end its process.

Damaged bytecode makes jaxlib 0.10.2 abort where a message holds bytes that are no text, and read
invalid memory elsewhere. Names that are no text pass its reader, and no Python can ask for them.
Text does none of this.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hespas.errors import ProgramError
from hespas.xla.mlir.module import BYTECODE_MAGIC, parse_mlir

_MOST_S = 120.0
_ENDS_WITH = 3
NO_TEXT = (RuntimeError, UnicodeDecodeError)
"""What jaxlib's bindings raise for a name that is no text."""


def check_bytecode(source: bytes, *, name: str) -> None:
    """Raise `ProgramError` for bytecode, or a portable artifact, that ends what reads it.

    What is no bytecode is not read. Bytecode that is refused without harm passes.
    """
    if not source.startswith(BYTECODE_MAGIC):
        return
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(f"reading it takes longer than {_MOST_S:g} s", location=name) from None
    if done.returncode < 0 or done.returncode == _ENDS_WITH:
        raise ProgramError(
            "cannot be parsed: the bytecode is damaged",
            location=name,
            hint="write the file again, or give StableHLO text",
        )


def main() -> None:
    """Read what standard input holds, and the names in it."""
    try:
        parsed = parse_mlir(sys.stdin.buffer.read(), name="standard input")
    except ProgramError:
        return
    try:
        read_names(parsed.handle.operation)
    except NO_TEXT:
        sys.exit(_ENDS_WITH)


def read_names(operation: Any) -> None:
    """Ask for the names of all operations and attributes, and of what they define."""
    waiting = [operation]
    while waiting:
        op = waiting.pop()
        _ = op.name
        for name in op.attributes:
            if name == "sym_name":
                _ = op.attributes[name].value
        for region in op.regions:
            for block in region.blocks:
                waiting += [view.operation for view in block.operations]


if __name__ == "__main__":
    main()
