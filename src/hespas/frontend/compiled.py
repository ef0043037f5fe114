"""What a compiler made of a program, as a program."""

from __future__ import annotations

from msgspec.structs import replace

from hespas.compile.compiled import CompiledProgram
from hespas.compile.for_node import compiled_notes
from hespas.frontend.load import load_source
from hespas.program.program import Program


def program_of_compiled(compiled: CompiledProgram, *, name: str) -> Program:
    """Return the program with its kernels, and what is to be said of it; ``name`` is its source.

    Raises what `hespas.frontend.load.load_source` raises.
    """
    program = load_source(compiled.hlo_proto, name=name)
    return replace(
        program,
        assumptions=(*compiled_notes(compiled), *program.assumptions),
        kernels=compiled.kernels,
    )
