"""Read a program from a file."""

from __future__ import annotations

from pathlib import Path

from hespas.errors import ProgramError
from hespas.frontend.options import NO_OPTIONS, LoadOptions
from hespas.frontend.stablehlo import load_stablehlo
from hespas.program.program import Program
from hespas.xla.hlo_forms import is_hlo_proto, is_hlo_text


def load_program(path: Path, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program; the content decides what it is.

    It may be StableHLO text, MLIR bytecode or a portable artifact, HLO text, or a serialised
    HloProto or HloModuleProto. Raises `ProgramError` for a file that is missing, unreadable or
    not a program.
    """
    return load_source(read_source(path), name=str(path), options=options)


def read_source(path: Path) -> bytes:
    """Return what a file holds; `ProgramError` where it is missing or unreadable."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ProgramError("no such file", location=str(path), hint="check the path") from error
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}", location=str(path)) from error


def load_source(source: bytes, *, name: str, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program from memory; ``name`` stands in messages."""
    if is_hlo_text(source) or is_hlo_proto(source):
        from hespas.frontend.hlo.load import load_hlo  # noqa: PLC0415 - protobuf comes with it

        return load_hlo(source, name=name, options=options)
    return load_stablehlo(source, name=name, options=options)
