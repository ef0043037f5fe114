"""Read bytecode in a process of its own first: MLIR's reader can end its process.

Damaged bytecode makes jaxlib 0.10.2 abort where a message holds bytes that are no text, and read
invalid memory elsewhere. Text does neither.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from hespas.errors import ProgramError
from hespas.xla.mlir.module import BYTECODE_MAGIC, parse_mlir

_MOST_S = 120.0


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
    if done.returncode < 0:
        raise ProgramError(
            "cannot be parsed: the bytecode is damaged",
            location=name,
            hint="write the file again, or give StableHLO text",
        )


def main() -> None:
    """Read what standard input holds."""
    with suppress(ProgramError):
        parse_mlir(sys.stdin.buffer.read(), name="standard input")


if __name__ == "__main__":
    main()
