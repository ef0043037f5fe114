"""Open what XLA's GPU compiler opens before it fuses anything: operations without a kernel."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from hespas.lower.blocks import each_block
from hespas.lower.convolutions import with_images_written
from hespas.lower.ragged import most_groups, with_groups_opened
from hespas.lower.random_bits import with_parts_joined
from hespas.program.program import Block, Program


def expanded(program: Program, *, has_grouped_products: bool) -> Program:
    """Return a program whose operations GPUs have kernels for; its assumptions say what costs.

    With ``has_grouped_products`` libraries run it: one multiplies each row by the matrix of its
    group, and another writes random numbers in one pass.
    """
    if program.is_scheduled:
        return program
    groups = 0
    if not has_grouped_products:
        groups = max(most_groups(function.body) for function in program.functions.values())
    opened = partial(_opened, opens_groups=groups > 0, joins_parts=not has_grouped_products)
    functions = {
        name: replace(function, body=each_block(function.body, opened))
        for name, function in program.functions.items()
    }
    noted = (_assumption(groups),) if groups else ()
    return replace(program, functions=functions, assumptions=(*noted, *program.assumptions))


def _assumption(groups: int) -> str:
    return (
        f"products of groups of rows (ragged_dot) multiply all rows for each group, up to {groups} "
        "times, as XLA's GPU compiler makes them by default; libraries multiply each row once"
    )


def _opened(block: Block, *, opens_groups: bool, joins_parts: bool) -> Block:
    operations = with_groups_opened(block.operations) if opens_groups else block.operations
    operations = with_parts_joined(operations) if joins_parts else operations
    return Block(arguments=block.arguments, operations=tuple(with_images_written(operations)))
