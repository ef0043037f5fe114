"""Recognise equal computations whatever their values are called."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import sha256
from operator import attrgetter

from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Value

_TYPE = attrgetter("type")


def structure_key(operations: Sequence[Op], results: Sequence[Value]) -> Hashable:
    """Return a key that two lists of operations share only if they compute the same.

    Cheap, and good within one process: types are compared by identity, so that two equal
    lists may rarely get two keys. `fingerprint` of their text then tells.
    """
    numbers: dict[Value, int] = {}
    body = tuple([_op_key(op, numbers) for op in operations])
    return body, tuple(map(numbers.__getitem__, results))


def _op_key(op: Op, numbers: dict[Value, int]) -> Hashable:
    operands, results = op.operands, op.results
    for value in operands:
        numbers.setdefault(value, len(numbers))
    key = (
        op.dialect,
        op.kind,
        op.attributes,
        tuple(map(numbers.__getitem__, operands)),
        _type_key(operands),
        _type_key(results),
    )
    if op.regions:
        told = op.attrs if isinstance(op.attrs, CaseAttrs | WhileAttrs) else None
        key = (key, told, tuple([_block_key(region, numbers) for region in op.regions]))
    for result in results:
        numbers[result] = len(numbers)
    return key


def _type_key(values: Sequence[Value]) -> Hashable:
    return tuple(map(id, map(_TYPE, values)))


def _block_key(block: Block, numbers: dict[Value, int]) -> Hashable:
    for argument in block.arguments:
        numbers[argument] = len(numbers)
    body = tuple([_op_key(op, numbers) for op in block.operations])
    return _type_key(block.arguments), body


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return sha256(text.encode()).hexdigest()
