"""Divide programs of elementwise operations and sums, as an optimiser's step is one.

Each operation is divided as its operands are, so that nothing is left to choose: a device computes
the same of its parts, and adds up its sums along the mesh axes that divide what is summed, for one
dimension after another, the last first, as XLA's partitioner does. XLA takes ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.frontend.mesh import AxisPart, Mesh, axis_groups
from hespas.frontend.stablehlo.sharding import argument_shardings, divided_dimensions
from hespas.program.attrs import CollectiveAttrs, DimensionsAttrs
from hespas.program.groups import GroupMode, ListedGroups
from hespas.program.program import (
    Block,
    Function,
    Op,
    Program,
    Value,
    all_ops,
    applied_ops,
    shape_of,
)
from hespas.program.rewrite import Builder, Renaming, with_calls_opened
from hespas.program.types import TensorType
from hespas.xla.mlir.text import split_list

Axes = tuple[tuple[str, ...], ...]
"""The mesh axes that divide each dimension, major first."""

_AXIS = re.compile(r'"([^"]+)"')
_KINDS = frozenset({"broadcast_in_dim", "call", "constant", "reduce", "return"})
"""What may stand beside elementwise operations."""


def divided_alike(
    program: Program, meshes: Mapping[str, Mesh], main_attributes: Mapping[str, str]
) -> Program | None:
    """Return one device's program of elementwise operations and sums.

    None for other programs, and where arrays would have to be moved between devices. ``meshes`` are
    the module's by name, and the attributes of the main function MLIR text.
    """
    if len(meshes) != 1 or not all(map(is_divisible, all_ops(program))):
        return None
    (mesh,) = meshes.values()
    if mesh.device_ids is not None or mesh.device_count != program.declared_devices:
        return None
    main, dividing = with_calls_opened(program), Dividing(mesh=mesh)
    arguments, results = (
        argument_shardings(main_attributes, name) for name in ("arg_attrs", "res_attrs")
    )
    values = main.body.arguments
    axes = [axes_of(text, value) for text, value in zip(arguments, values, strict=False)]
    if len(axes) != len(values) or not dividing.function(main, axes, results):
        return None
    assumption = (
        "the program came sharded, not partitioned: its operations are elementwise or sums, and "
        f"are divided over {mesh.device_count} devices as its arguments are"
    )
    return replace(
        program,
        functions={main.name: Function(name=main.name, body=dividing.body(main))},
        assumptions=(assumption, *program.assumptions),
    )


def is_divisible(op: Op) -> bool:
    """Return whether an operation is elementwise, or may stand beside those that are."""
    is_known = op.dialect in {"stablehlo", "func"}
    return is_known and (op.kind in _KINDS or (op.traits.is_elementwise and not op.regions))


def axes_of(text: str, value: Value) -> Axes | None:
    """Return the axes of a sharding, None where it leaves some open or divides them."""
    if not text:
        return None if shape_of(value) else ()
    listed = divided_dimensions(text)
    dimensions = split_list(listed[1:-1])
    if ":(" in listed or "unreduced" in text or len(dimensions) != len(shape_of(value)):
        return None
    return tuple(tuple(_AXIS.findall(dimension)) for dimension in dimensions)


@dataclass(slots=True, kw_only=True)
class Dividing:
    """The main function while it is rebuilt per device.

    ``local`` maps global values to a device's, ``axes`` to what divides them. Broadcast numbers
    wait for what reads them.
    """

    mesh: Mesh
    axes: dict[Value, Axes] = field(default_factory=dict[Value, Axes])
    local: Renaming = field(default_factory=dict[Value, Value])
    operations: list[Op] = field(default_factory=list[Op])
    _groups: dict[Sequence[str], ListedGroups] = field(
        default_factory=dict[Sequence[str], ListedGroups]
    )
    _waiting: dict[Value, Op] = field(default_factory=dict[Value, Op])
    _equal: dict[object, tuple[Value, ...]] = field(default_factory=dict[object, tuple[Value, ...]])

    def function(
        self, main: Function, arguments: Sequence[Axes | None], results: Sequence[str]
    ) -> bool:
        """Add a device's part of a function, if its operations have one.

        ``arguments`` are the axes that divide its arguments, ``results`` the shardings that its
        results must have.
        """
        is_placed = all(
            found is not None and self.place(value, found)
            for value, found in zip(main.body.arguments, arguments, strict=True)
        )
        if not is_placed or not all(map(self.add, main.body.operations)):
            return False
        return all(
            not text or self.axes[value] == axes_of(text, value)
            for value, text in zip(main.results, results, strict=False)
        )

    def body(self, main: Function) -> Block:
        """Return a device's part of the function that was added."""
        arguments = tuple([self.local[value] for value in main.body.arguments])
        return Block(arguments=arguments, operations=tuple(self.operations))

    def place(self, value: Value, axes: Axes) -> bool:
        """Divide a value, if its sizes can be."""
        if not isinstance(value.type, TensorType):
            return False
        sizes, shape = dict(self.mesh.axes), list[int]()
        for size, names in zip(shape_of(value), axes, strict=True):
            for name in names:
                if size % sizes[name]:
                    return False
                size //= sizes[name]  # noqa: PLW2901 - the size that is left
            shape.append(size)
        self.axes[value] = axes
        self.local[value] = Value(type=replace(value.type, shape=tuple(shape)))
        return True

    def add(self, op: Op) -> bool:
        """Add a device's part of an operation, if it has one."""
        arrays = [value for value in op.operands if shape_of(value)]
        if op.kind == "return":
            is_known = all(value in self.local for value in op.operands)
            self.operations += [replace(op, operands=self._local(op.operands))] if is_known else []
            return is_known
        if op.kind == "reduce":
            return self._sum(op)
        if op.kind == "broadcast_in_dim" and not arrays:
            self._waiting[op.results[0]] = op
            return True
        if arrays and len(arrays) < len(op.operands):
            op = self._with_numbers_broadcast(op, shape_of(arrays[0]))
            arrays = list(op.operands)
        axes = {self.axes[value] for value in arrays if value in self.axes}
        if not arrays and not any(map(shape_of, op.results)):
            axes = {()}
        shapes = {shape_of(value) for value in (*arrays, *op.results)}
        if len(axes) != 1 or len(shapes) != 1 or op.kind == "broadcast_in_dim":
            return False
        (found,) = axes
        waiting = [self._waiting[value] for value in arrays if value not in self.axes]
        return all(self._copy(each, found) for each in (*waiting, op))

    def _with_numbers_broadcast(self, op: Op, shape: tuple[int, ...]) -> Op:
        """Have an operation read arrays alone, as XLA does: predicates may be numbers."""
        builder = Builder(op)
        operands = [
            value if shape_of(value) else builder.broadcast(value, shape, ())
            for value in op.operands
        ]
        self._waiting.update((each.results[0], each) for each in builder.operations)
        return replace(op, operands=tuple(operands))

    def _copy(self, op: Op, axes: Axes) -> bool:
        if not all(self.place(value, axes) for value in op.results if value not in self.axes):
            return False
        operands, results = self._local(op.operands), self._local(op.results)
        applied = tuple([each.kind for each in applied_ops(op)])
        types = tuple([value.type for value in results])
        key = (op.kind, operands, op.attributes or op.attrs, applied, types)
        equal = self._equal.setdefault(key, results)
        if equal is results:
            self.operations.append(replace(op, operands=operands, results=results))
        else:
            self.local.update(zip(op.results, equal, strict=True))
        return True

    def _local(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple([self.local[value] for value in values])

    def _sum(self, op: Op) -> bool:
        """Add the sum of a whole array, and those over devices."""
        value, attrs = op.operands[0], op.attrs
        is_whole = isinstance(attrs, DimensionsAttrs) and len(attrs.dimensions) == len(
            shape_of(value)
        )
        applied = [each.kind for each in applied_ops(op)]
        if not is_whole or len(op.results) != 1 or applied != ["add"] or value not in self.axes:
            return False
        if not self._copy(op, ()):
            return False
        for names in reversed(self.axes[value]):
            self._sum_along(names, op)
        return True

    def _sum_along(self, names: Sequence[str], op: Op) -> None:
        sizes = dict(self.mesh.axes)
        used = tuple([name for name in names if sizes[name] > 1])
        if not used:
            return
        groups = self._groups.get(used)
        if groups is None:
            parts = [AxisPart(name=name, before=1, size=sizes[name]) for name in used]
            # As XLA has them: sums over the same devices are put together.
            groups = self._groups[used] = ListedGroups(
                groups=axis_groups(self.mesh, parts).listed()
            )
        channel = len(self.operations)
        handle = f"#stablehlo.channel_handle<handle = {channel}, type = 0>"
        total, part = Value(type=op.results[0].type), self.local[op.results[0]]
        summed = replace(
            op,
            kind="all_reduce",
            operands=(part,),
            results=(total,),
            attrs=CollectiveAttrs(
                groups=groups,
                mode=GroupMode.FLATTENED_IDS,
                channel=channel,
            ),
            attributes=(("channel_handle", handle), ("use_global_device_ids", "unit")),
        )
        self.operations.append(summed)
        self.local[op.results[0]] = total
