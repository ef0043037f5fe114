"""Open ``sdy.manual_computation``, what JAX's shard_map exports, into the per-device program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hespas.errors import UnpartitionedError
from hespas.frontend.meshes import Mesh
from hespas.program.program import Block, Function, Op, Program, Value, nested_ops
from hespas.program.rewrite import Renaming, copied_op, with_calls_opened
from hespas.xla.mlir_text import read_symbols

_PLACELESS = frozenset({"constant", "return"})
_MEND = "partition the program first (compile it with XLA's SPMD partitioner)"


def _is_manual(op: Op) -> bool:
    return op.dialect == "sdy" and op.kind == "manual_computation"


def open_manual_computations(program: Program, meshes: Mapping[str, Mesh]) -> Program:
    """Return the per-device program where all work is done inside shard_map, else ``program``.

    Raises `UnpartitionedError` where work outside of shard_map, or an axis that is left to the
    partitioner, would still have to be divided among the devices.
    """
    blocks = [function.body for function in program.functions.values()]
    if not any(_is_manual(op) for block in blocks for op in nested_ops(block)):
        return program
    main = with_calls_opened(program)
    opening = _Opening(source=program.source, meshes=meshes)
    opened = opening.main(main)
    return replace(program, functions=dict(program.functions) | {"main": opened})


@dataclass(slots=True, kw_only=True)
class _Opening:
    """The main function as it is rebuilt: ``local`` maps global values to per-device ones."""

    source: str
    meshes: Mapping[str, Mesh]
    local: Renaming = field(default_factory=dict[Value, Value])
    operations: list[Op] = field(default_factory=list[Op])

    def main(self, main: Function) -> Function:
        arguments = set(main.body.arguments)
        for op in main.body.operations:
            if _is_manual(op):
                self._open(op, arguments)
            elif op.kind in _PLACELESS:
                self.operations.append(copied_op(op, self.local))
            else:
                raise UnpartitionedError(
                    f"{op.name} outside of shard_map works on arrays of the whole mesh",
                    place=op.location or self.source,
                    mend=_MEND,
                )
        made = tuple(self.local.get(argument, argument) for argument in main.body.arguments)
        return Function(
            name=main.name, body=Block(arguments=made, operations=tuple(self.operations))
        )

    def _open(self, op: Op, arguments: set[Value]) -> None:
        self._check_axes(op)
        body = op.regions[0]
        renaming: Renaming = {}
        for inner, outer in zip(body.arguments, op.operands, strict=True):
            if outer in arguments and outer not in self.local:
                self.local[outer] = Value(type=inner.type)
            given = self.local.get(outer, outer)
            if given.type != inner.type:
                raise UnpartitionedError(
                    f"an operand is {given.type} per device, but is used as {inner.type}",
                    place=op.place,
                    mend=_MEND,
                )
            renaming[inner] = given
        for inside in body.operations[:-1]:
            self.operations.append(copied_op(inside, renaming))
        for result, value in zip(op.results, body.operations[-1].operands, strict=True):
            self.local[result] = renaming.get(value, value)

    def _check_axes(self, op: Op) -> None:
        texts = dict(op.attributes)
        manual = set(re.findall(r'"([^"]+)"', texts.get("manual_axes", "")))
        names = read_symbols(texts.get("in_shardings", "") + texts.get("out_shardings", ""))
        for name in names:
            mesh = self.meshes.get(name)
            left = [axis for axis, size in (mesh.axes if mesh else ()) if size > 1]
            free = [axis for axis in left if axis not in manual]
            if free:
                raise UnpartitionedError(
                    f"mesh axes {', '.join(free)} are not manual in shard_map",
                    place=op.place,
                    mend=_MEND,
                )
