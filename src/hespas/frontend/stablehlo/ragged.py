"""All-to-alls of rows in unequal parts, which JAX writes as calls of ``ragged_all_to_all``."""

from __future__ import annotations

from msgspec.structs import replace

from hespas.program.attrs import CollectiveAttrs
from hespas.program.program import Block, Function, Op, nested_ops


def with_ragged_exchanges(function: Function) -> Function:
    """Return the function with such calls as ``mhlo.ragged_all_to_all``, as XLA has them."""
    if not any(_is_exchange(op) for op in nested_ops(function.body)):
        return function
    return replace(function, body=_block(function.body))


def _is_exchange(op: Op) -> bool:
    """Return whether it is a call that was read as a collective."""
    return op.kind == "custom_call" and isinstance(op.attrs, CollectiveAttrs)


def _block(block: Block) -> Block:
    return replace(block, operations=tuple([_op(op) for op in block.operations]))


def _op(op: Op) -> Op:
    if _is_exchange(op):
        return replace(op, dialect="mhlo", kind="ragged_all_to_all")
    if not op.regions:
        return op
    return replace(op, regions=tuple([_block(region) for region in op.regions]))
