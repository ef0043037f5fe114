"""Recognise equal computations, whatever the names of their values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import sha256
from operator import attrgetter

from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Block, Op, Value

_TYPE = attrgetter("type")


def structure_key(operations: Sequence[Op], results: Sequence[Value]) -> Hashable:
    """Return a key that two lists of operations share only if they compute the same.

    Cheap, and valid within one process: types are compared by identity, so in rare cases two
    equal lists get two keys; the `fingerprint` of their text then recognises them.
    """
    numbers = _Numbers()
    body = tuple([_op_key(op, numbers) for op in operations])
    return body, tuple(map(numbers.__getitem__, results))


class _Numbers(dict[Value, int]):
    """Numbers values in order of appearance; one that is defined again gets a new number.

    That happens where equal fusions share one body.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def __missing__(self, value: Value) -> int:
        self.define(value)
        return self[value]

    def define(self, value: Value) -> None:
        """Give a value the next number."""
        self[value] = self._next
        self._next += 1


def _op_key(op: Op, numbers: _Numbers) -> Hashable:
    operands, results = op.operands, op.results
    key = (
        op.dialect,
        op.kind,
        op.attributes,
        op.estimated_cycles,
        tuple(map(numbers.__getitem__, operands)),
        _type_key(operands),
        _type_key(results),
    )
    if op.regions:
        control = op.attrs if isinstance(op.attrs, CaseAttrs | WhileAttrs) else None
        key = (key, control, tuple([_block_key(region, numbers) for region in op.regions]))
    for result in results:
        numbers.define(result)
    return key


def _type_key(values: Sequence[Value]) -> Hashable:
    return tuple(map(id, map(_TYPE, values)))


def _block_key(block: Block, numbers: _Numbers) -> Hashable:
    for argument in block.arguments:
        numbers.define(argument)
    body = tuple([_op_key(op, numbers) for op in block.operations])
    return _type_key(block.arguments), body


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return sha256(text.encode()).hexdigest()
