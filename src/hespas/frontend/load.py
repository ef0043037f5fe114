"""Read a program from a file."""

from __future__ import annotations

from pathlib import Path

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.stablehlo import NO_OPTIONS, LoadOptions, load_stablehlo
from hespas.program.program import Program

_HLO_MODULE = b"HloModule"


def load_program(path: Path, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read StableHLO text, MLIR bytecode or a portable artifact; the content decides which.

    Raises `ProgramError` for a file that is missing, unreadable or not a program.
    """
    try:
        source = path.read_bytes()
    except FileNotFoundError as error:
        raise ProgramError("no such file", place=str(path), mend="check the path") from error
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", place=str(path)) from error
    if source.lstrip().startswith(_HLO_MODULE):
        raise UnsupportedError(
            "this is HLO text, which this version cannot read",
            place=str(path),
            mend="convert it to StableHLO",
        )
    return load_stablehlo(source, name=str(path), options=options)
