"""Open ``sdy.manual_computation``, what JAX's shard_map exports, into the per-device program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.errors import UnpartitionedError
from hespas.frontend.meshes import Mesh
from hespas.frontend.sharding import argument_shardings, is_constraint
from hespas.program.program import Block, Function, Op, Program, Value, nested_ops
from hespas.program.rewrite import Renaming, copied_op, with_calls_opened, without_identities
from hespas.xla.mlir_text import read_symbols, split_list

_PLACELESS = frozenset({"constant", "return"})
_HINT = "partition the program first (compile it with XLA's SPMD partitioner)"

Placement = tuple[Mesh | None, str]
"""A mesh, and which of its axes cut which dimension, as Shardy spells it."""


def _is_manual(op: Op) -> bool:
    return op.dialect == "sdy" and op.kind == "manual_computation"


def has_manual_computations(program: Program) -> bool:
    """Tell whether a program holds what shard_map exports."""
    blocks = [function.body for function in program.functions.values()]
    return any(_is_manual(op) for block in blocks for op in nested_ops(block))


def open_manual_computations(
    program: Program, meshes: Mapping[str, Mesh], main_attributes: Mapping[str, str]
) -> Program:
    """Return the per-device program of one that does all its work inside shard_map.

    ``main_attributes`` are those of the main function. Raises `UnpartitionedError` where
    something would still have to be divided among the devices, or moved between them: work
    outside of shard_map, a mesh axis that is left to the partitioner, a value that one
    shard_map makes and another takes with different shardings.
    """
    main = with_calls_opened(program)
    opening = _Opening(source=program.source, meshes=meshes)
    opening.location(main.body.arguments, argument_shardings(main_attributes, "arg_attrs"))
    opened = opening.main(main)
    opening.check(main.results, argument_shardings(main_attributes, "res_attrs"))
    others = {name: body for name, body in program.functions.items() if name != "main"}
    kept = {name: body for name, body in others.items() if not _holds_manual(body)}
    partitions = program.partitions
    if program.declared_devices is None:
        partitions = max((mesh.device_count for mesh in meshes.values()), default=None)
    return replace(program, functions={"main": opened} | kept, partitions=partitions)


def _holds_manual(function: Function) -> bool:
    return any(_is_manual(op) for op in nested_ops(function.body))


@dataclass(slots=True, kw_only=True)
class _Opening:
    """The main function as it is rebuilt.

    ``local`` maps global values to per-device ones, ``placements`` to how they are divided.
    """

    source: str
    meshes: Mapping[str, Mesh]
    local: Renaming = field(default_factory=dict[Value, Value])
    placements: dict[Value, Placement] = field(default_factory=dict[Value, Placement])
    operations: list[Op] = field(default_factory=list[Op])

    def location(self, values: Iterable[Value], shardings: Sequence[str]) -> None:
        """Note how values are divided; an empty text leaves it open."""
        for value, text in zip(values, shardings, strict=False):
            if text:
                self.placements[value] = self._placement(text)

    def check(
        self, values: Iterable[Value], shardings: Sequence[str], *, location: str = ""
    ) -> None:
        """Raise `UnpartitionedError` where values are divided in another way than they must be."""
        for value, text in zip(values, shardings, strict=False):
            if text and self.placements.get(value, wanted := self._placement(text)) != wanted:
                raise UnpartitionedError(
                    f"a value is sharded as {_dimensions(self.placements[value][1])} but used as "
                    f"{_dimensions(wanted[1])}, which takes communication that is not there yet",
                    location=location or self.source,
                    hint=_HINT,
                )

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
                    location=op.source_location or self.source,
                    hint=_HINT,
                )
        made = tuple(self.local.get(argument, argument) for argument in main.body.arguments)
        return Function(
            name=main.name, body=Block(arguments=made, operations=tuple(self.operations))
        )

    def _open(self, op: Op, arguments: set[Value]) -> None:
        texts = dict(op.attributes)
        self._check_axes(op, texts)
        taken = _per_value(texts.get("in_shardings", ""))
        self.check(op.operands, taken, location=op.source_location)
        self.location(op.operands, taken)
        self.location(op.results, _per_value(texts.get("out_shardings", "")))
        # All axes are manual in here, so that there is nothing to constrain.
        body = without_identities(op.regions[0], is_constraint)
        renaming = self._given(op, body, arguments)
        for inside in body.operations[:-1]:
            self.operations.append(copied_op(inside, renaming))
        for result, value in zip(op.results, body.operations[-1].operands, strict=True):
            self.local[result] = renaming.get(value, value)

    def _given(self, op: Op, body: Block, arguments: set[Value]) -> Renaming:
        """Return the per-device value that each argument of the body stands for."""
        renaming: Renaming = {}
        for inner, outer in zip(body.arguments, op.operands, strict=True):
            if outer in arguments and outer not in self.local:
                self.local[outer] = Value(type=inner.type)
            given = self.local.get(outer, outer)
            if given.type != inner.type:
                raise UnpartitionedError(
                    f"an operand is {given.type} per device, but is used as {inner.type}",
                    location=op.location,
                    hint=_HINT,
                )
            renaming[inner] = given
        return renaming

    def _check_axes(self, op: Op, texts: Mapping[str, str]) -> None:
        manual = set(re.findall(r'"([^"]+)"', texts.get("manual_axes", "")))
        names = read_symbols(texts.get("in_shardings", "") + texts.get("out_shardings", ""))
        for name in names:
            mesh = self.meshes.get(name)
            left = [axis for axis, size in (mesh.axes if mesh else ()) if size > 1]
            free = [axis for axis in left if axis not in manual]
            if free:
                raise UnpartitionedError(
                    f"mesh axes {', '.join(free)} are not manual in shard_map",
                    location=op.location,
                    hint=_HINT,
                )

    def _placement(self, text: str) -> Placement:
        """Read ``@mesh, [{"x"}, {}], replicated={"y"}``: explicit replication says nothing new."""
        mesh, *dimensions = split_list(text)
        name = read_symbols(mesh)
        cut = next((part for part in dimensions if part.startswith("[")), "[]")
        return self.meshes.get(name[0]) if name else None, cut


def _per_value(text: str) -> list[str]:
    """Split ``#sdy.sharding_per_value<[<@mesh, [{"x"}]>, ...]>`` into what each ``<>`` holds."""
    start, end = text.find("["), text.rfind("]")
    return [part[1:-1] for part in split_list(text[start + 1 : end])] if start >= 0 else []


def _dimensions(text: str) -> str:
    return text.replace('"', "")
