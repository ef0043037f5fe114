"""Recognise equal computations whatever their values are called."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import sha256

from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Value


def structure_key(operations: Sequence[Op], results: Sequence[Value]) -> Hashable:
    """Return a key that two lists of operations share only if they compute the same.

    Cheap, and good within one process: types are compared by identity, so that two equal
    lists may rarely get two keys. `fingerprint` of their text then tells.
    """
    numbers: dict[Value, int] = {}
    body = tuple([_op_key(op, numbers) for op in operations])
    return body, tuple([numbers[value] for value in results])


def _op_key(op: Op, numbers: dict[Value, int]) -> Hashable:
    operands = tuple([numbers.setdefault(value, len(numbers)) for value in op.operands])
    types = tuple([id(value.type) for value in op.operands])
    regions = tuple([_block_key(region, numbers) for region in op.regions])
    for result in op.results:
        numbers[result] = len(numbers)
    made = tuple([id(value.type) for value in op.results])
    told = op.attrs if regions and isinstance(op.attrs, CaseAttrs | WhileAttrs) else None
    return op.dialect, op.kind, op.attributes, operands, types, regions, made, told


def _block_key(block: Block, numbers: dict[Value, int]) -> Hashable:
    for argument in block.arguments:
        numbers[argument] = len(numbers)
    types = tuple([id(argument.type) for argument in block.arguments])
    return types, tuple([_op_key(op, numbers) for op in block.operations])


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return sha256(text.encode()).hexdigest()
