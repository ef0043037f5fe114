"""Compiled programs together with the kernels that were kept in a file of their own."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Block, Op, Program, all_ops


def instructions_digest(program: Program) -> str:
    """Return what tells a compiled program from others: its instructions, in order.

    Those of loops and branches count too, as kernels may be theirs; what is inside a fusion, or
    starts asynchronously, does not: text and protos name it differently.
    """
    names = (f"{op.name} {op.instruction}\n" for op in _started(program.main.body))
    return sha256("".join(names).encode()).hexdigest()


def _started(block: Block) -> Iterator[Op]:
    for op in block.operations:
        yield op
        if isinstance(op.attrs, WhileAttrs | CaseAttrs):
            for region in op.regions:
                yield from _started(region)


def with_kernels(program: Program, kernels: CompiledKernels, *, location: str) -> Program:
    """Return the program with its kernels, which ``place`` names.

    Raises `ProgramError` for kernels of another program: by the digest of its instructions, and
    where they don't tell that, by launches of instructions that this one has not.
    """
    known = {op.instruction for op in all_ops(program)}
    foreign = [each.instruction for each in kernels.launches if each.instruction not in known]
    told = kernels.program
    if foreign or (told and told != instructions_digest(program)):
        why = f", which launch {foreign[0]}" if foreign else ""
        raise ProgramError(
            f"holds the kernels of another program than {program.source}{why}",
            location=location,
            hint="give those that hespas compile --kernels wrote with it",
        )
    return replace(program, kernels=kernels)
