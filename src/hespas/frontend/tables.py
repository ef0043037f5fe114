"""Give kernels of TPUs the tables of scalars that the program holds as constants.

A kernel's index maps and conditions read such tables: which blocks of a mask are empty, which
expert a tile belongs to. They reach the call through loops, functions and copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hespas.program.attrs import CallAttrs, CustomCallAttrs, Table, WhileAttrs
from hespas.program.program import Block, Op, Program, Value, all_ops
from hespas.program.types import NumberKind, TensorType
from hespas.xla.mlir.text import read_dense_numbers

_TARGET = "tpu_custom_call"
_TABLE = "table_of_operand_"
_MOST_BYTES = 1 << 16
_UNCHANGED = frozenset({"bitcast", "convert", "copy", "optimization_barrier", "reshape"})
_SHARDING = frozenset({"LayoutConstraint", "Sharding", "SPMDFullToShardShape"})


def is_table(kind: object) -> bool:
    """Return whether a constant of this type may be a table of scalars."""
    return (
        isinstance(kind, TensorType)
        and kind.element.kind is NumberKind.INTEGER
        and kind.rank > 0
        and kind.size_bytes <= _MOST_BYTES
    )


def with_tables(program: Program) -> Program:
    """Return the program with the tables that are known at each call of a kernel."""
    if not any(_is_kernel(op) for op in all_ops(program)):
        return program
    finder = _Finder(program)
    finder.block(program.main.body)
    functions = {
        name: msgspec.structs.replace(function, body=finder.filled(function.body))
        for name, function in program.functions.items()
    }
    return msgspec.structs.replace(program, functions=functions)


def _is_kernel(op: Op) -> bool:
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == _TARGET


class _Finder:
    """Follows constants from where they stand to where they are used.

    A value is known by its constant's text; one that can be several is None.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[Value, str | None] = {}

    def block(self, block: Block) -> None:
        """Follow the constants in a block."""
        for op in block.operations:
            self._op(op)

    def filled(self, block: Block) -> Block:
        """Return a block whose calls of kernels have their tables."""
        return Block(
            arguments=block.arguments,
            operations=tuple([self._filled(op) for op in block.operations]),
        )

    def _filled(self, op: Op) -> Op:
        if op.regions:
            return msgspec.structs.replace(
                op, regions=tuple([self.filled(region) for region in op.regions])
            )
        if not _is_kernel(op) or not isinstance(op.attrs, CustomCallAttrs):
            return op
        # The text of a region may begin behind its constants: there the attributes have them.
        texts = dict(op.attributes)
        for at, value in enumerate(op.operands):
            text = self._known.get(value)
            if text:
                texts[f"{_TABLE}{at}"] = text
        tables = tuple(
            [
                Table(operand=int(name[len(_TABLE) :]), numbers=read_dense_numbers(text))
                for name, text in sorted(texts.items())
                if name.startswith(_TABLE)
            ]
        )
        attrs = msgspec.structs.replace(op.attrs, tables=tables)
        return msgspec.structs.replace(op, attrs=attrs, attributes=tuple(sorted(texts.items())))

    def _op(self, op: Op) -> None:
        match op.attrs:
            case CallAttrs(callee=callee):
                self._call(op, callee)
            case WhileAttrs():
                self._loop(op)
            case CustomCallAttrs(target=target) if target in _SHARDING:
                self._same(op.operands, op.results)
            case _ if op.kind == "constant":
                self._constant(op)
            case _ if op.kind in _UNCHANGED:
                self._same(op.operands, op.results)
            case _ if op.kind in ("async_start", "async_done"):
                self._asynchronous(op)
            case _:
                for region in op.regions:
                    self.block(region)

    def _constant(self, op: Op) -> None:
        text = dict(op.attributes).get("value", "")
        if is_table(op.results[0].type) and text.startswith("dense<") and "sha256" not in text:
            self._known[op.results[0]] = text

    def _asynchronous(self, op: Op) -> None:
        """Follow a copy that runs beside other work to its end."""
        for region in op.regions:
            self._same(op.operands, region.arguments)
            self.block(region)
            self._same(region.operations[-1].operands, op.results)
        if not op.regions:
            self._same(op.operands, op.results)

    def _same(self, given: Sequence[Value], made: Sequence[Value]) -> bool:
        """Hand on what is known of values; whether that is new."""
        is_new = False
        for value, result in zip(given, made, strict=False):
            text = self._known.get(value)
            if result not in self._known:
                is_new = is_new or text is not None
                self._known[result] = text
            elif self._known[result] != text and self._known[result] is not None:
                is_new = True
                self._known[result] = None
        return is_new

    def _call(self, op: Op, callee: str) -> None:
        body = self._program.function(callee, location=op.location).body
        first = any(argument not in self._known for argument in body.arguments)
        if self._same(op.operands, body.arguments) or first or not body.arguments:
            self.block(body)
        self._same(body.operations[-1].operands, op.results)

    def _loop(self, op: Op) -> None:
        """Follow what a body hands on unchanged through all rounds."""
        for region in op.regions:
            self._same(op.operands, region.arguments)
        body = op.regions[-1]
        self.block(body)
        while self._same(body.operations[-1].operands, body.arguments):
            self.block(body)
        self._same(body.arguments, op.results)
