"""Open what XLA's GPU compiler opens before it fuses anything: operations without a kernel."""

from __future__ import annotations

from msgspec.structs import replace

from hespas.fuse.convolutions import with_images_written
from hespas.fuse.kinds import HOLDING
from hespas.fuse.ragged import most_groups, with_groups_opened
from hespas.program.program import Block, Program


def expanded(program: Program) -> Program:
    """Return a program whose operations GPUs have kernels for; its assumptions say what costs."""
    if program.is_scheduled:
        return program
    groups = max(most_groups(function.body) for function in program.functions.values())
    functions = {
        name: replace(function, body=_block(function.body))
        for name, function in program.functions.items()
    }
    noted = (_assumption(groups),) if groups else ()
    return replace(program, functions=functions, assumptions=(*noted, *program.assumptions))


def _assumption(groups: int) -> str:
    return (
        f"products of groups of rows (ragged_dot) multiply all rows for each group, up to {groups} "
        "times, as XLA's GPU compiler makes them by default; as exported, each row is multiplied "
        "once"
    )


def _block(block: Block) -> Block:
    operations = [
        replace(op, regions=tuple([_block(region) for region in op.regions]))
        if op.kind in HOLDING
        else op
        for op in block.operations
    ]
    opened = with_images_written(with_groups_opened(operations))
    return Block(arguments=block.arguments, operations=tuple(opened))
