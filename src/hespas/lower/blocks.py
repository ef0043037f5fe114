"""What passes over a program share: how blocks are walked, and what kind of value an operand is."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hespas.lower.kinds import HOLDING
from hespas.program.program import Block, Value
from hespas.program.types import TensorType


def each_block(block: Block, change: Callable[[Block], Block]) -> Block:
    """Return a block changed, those inside of it first."""
    operations = [
        replace(op, regions=tuple([each_block(region, change) for region in op.regions]))
        if op.kind in HOLDING
        else op
        for op in block.operations
    ]
    return change(Block(arguments=block.arguments, operations=tuple(operations)))


def tensor_of(value: Value) -> TensorType:
    """Return the type of what a product, a convolution, a reduction or a sort reads or makes."""
    assert isinstance(value.type, TensorType)  # noqa: S101 - they have tensors alone
    return value.type
