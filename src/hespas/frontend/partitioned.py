"""Read programs as one device runs them: those that come sharded are partitioned first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hespas.errors import UnpartitionedError
from hespas.frontend.load import load_source, read_source
from hespas.frontend.options import NO_OPTIONS, LoadOptions
from hespas.program.program import Program
from hespas.xla.hlo_forms import is_hlo_proto, is_hlo_text

if TYPE_CHECKING:
    from hespas.xla.partition import Partitioned


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
        made = _partitioned(source, name)
    program = load_source(made.text, name=f"{name} (partitioned)", options=options)
    return replace(program, assumptions=(made.assumption, *program.assumptions))


def _partitioned(source: bytes, name: str) -> Partitioned:
    # Most programs come partitioned, and need not wait for what this imports.
    from hespas.xla.lowering import stablehlo_of_hlo  # noqa: PLC0415
    from hespas.xla.partition import partition  # noqa: PLC0415

    if is_hlo_text(source) or is_hlo_proto(source):
        return partition(stablehlo_of_hlo(source, name=name), name=name)
    return partition(source, name=name)
