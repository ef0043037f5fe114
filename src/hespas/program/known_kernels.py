"""Compiled programs together with the kernels that were kept in a file of their own."""

from __future__ import annotations

from hashlib import sha256

from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program


def instructions_digest(program: Program) -> str:
    """Return what tells a compiled program from others: its instructions, in order."""
    names = (f"{op.name} {op.instruction}\n" for op in program.main.body.operations)
    return sha256("".join(names).encode()).hexdigest()


def with_kernels(program: Program, kernels: CompiledKernels, *, place: str) -> Program:
    """Return the program with its kernels, which ``place`` names.

    Raises `ProgramError` for kernels of another program: by the digest of its instructions, and
    where they don't tell that, by launches of instructions that this one has not.
    """
    known = {op.instruction for op in program.main.body.operations}
    foreign = [each.instruction for each in kernels.launches if each.instruction not in known]
    told = kernels.program
    if foreign or (told and told != instructions_digest(program)):
        why = f", which launch {foreign[0]}" if foreign else ""
        raise ProgramError(
            f"holds the kernels of another program than {program.source}{why}",
            place=place,
            mend="give those that hespas compile --kernels wrote with it",
        )
    return replace(program, kernels=kernels)
