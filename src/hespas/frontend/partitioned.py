"""Read programs as one device runs them: those that come sharded are partitioned first."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from hespas.errors import UnpartitionedError
from hespas.frontend.load import load_source, read_source
from hespas.frontend.options import NO_OPTIONS, LoadOptions
from hespas.program.program import Program
from hespas.xla.hlo_module import is_hlo_proto, is_hlo_text
from hespas.xla.lowering import stablehlo_of_hlo
from hespas.xla.partition import partition


def load_program_per_device(path: Path, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program from a file, and partition it where it is sharded but not yet partitioned.

    Raises as `load_source_per_device` does, and `ProgramError` for an unreadable file.
    """
    return load_source_per_device(read_source(path), name=str(path), options=options)


def load_source_per_device(
    source: bytes, *, name: str, options: LoadOptions = NO_OPTIONS
) -> Program:
    """Read a program from memory, and partition it where it is sharded but not yet partitioned.

    The program's assumptions then say so, and lines are those of the partitioned text. Raises as
    `hespas.frontend.load.load_source` and `hespas.xla.partition.partition` do.
    """
    try:
        return load_source(source, name=name, options=options)
    except UnpartitionedError:
        stablehlo = _stablehlo(source, name)
    made = partition(stablehlo, name=name)
    program = load_source(made.text, name=f"{name} (partitioned)", options=options)
    return replace(program, assumptions=(made.assumption, *program.assumptions))


def _stablehlo(source: bytes, name: str) -> bytes:
    if is_hlo_text(source) or is_hlo_proto(source):
        return stablehlo_of_hlo(source, name=name)
    return source
