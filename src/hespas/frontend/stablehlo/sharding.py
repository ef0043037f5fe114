"""Return one device's program from a sharded source.

A sharded program describes the work of all devices together: pricing it as one device's would be
silently wrong. This module recognises it, and opens JAX's ``shard_map``
(``sdy.manual_computation``), whose body is the program of one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.frontend.mesh import Mesh
from hespas.frontend.overrides import Unpartitioned
from hespas.program.attrs import PARTITIONER_MARKERS, CustomCallAttrs
from hespas.program.program import (
    Block,
    Function,
    Op,
    Program,
    Value,
    all_ops,
    is_communication_op,
    nested_ops,
)
from hespas.program.rewrite import (
    Renaming,
    copied_op,
    with_bodies,
    with_calls_opened,
    without_identities,
)
from hespas.xla.mlir.text import read_pairs, read_symbols, split_list

_CONSTRAINTS = frozenset({"propagation_barrier", "reshard", "sharding_constraint"})
_PARTITIONED_BY_XLA = "mhlo.spmd_"
_SHARDY, _GSPMD = "sdy.sharding", "mhlo.sharding"
_REPLICATED = ('"{replicated', '"{maximal')
# Operations that are equal in the per-device and the global program.
_DEVICE_INDEPENDENT = frozenset({"constant", "return"})
_PARTITION_FIRST = "partition the program first (compile it with XLA's SPMD partitioner)"


def per_device(
    program: Program,
    meshes: Mapping[str, Mesh],
    main_attributes: Mapping[str, str],
    module_attributes: Mapping[str, str],
) -> Program | Unpartitioned:
    """Return one device's program, or why there is none.

    ``meshes`` are the module's device meshes by name; the attributes of the main function and the
    module are MLIR text.
    """
    constrained = _without_idle_constraints(program) if meshes else program
    if not meshes or not any(map(_is_manual, all_ops(constrained))):
        reason = _sharded_reason(constrained, main_attributes, module_attributes)
        return constrained if reason is None else reason
    opened = _open_manual_computations(constrained, meshes, main_attributes)
    if isinstance(opened, Unpartitioned):
        return opened
    reason = _sharded_reason(opened, {}, {})
    return opened if reason is None else reason


def _is_constraint(op: Op) -> bool:
    return op.dialect == "sdy" and op.kind in _CONSTRAINTS


def _is_manual(op: Op) -> bool:
    return op.dialect == "sdy" and op.kind == "manual_computation"


def _without_idle_constraints(program: Program) -> Program:
    """Drop the constraints that divide nothing.

    These are all constraints if there is one device, else those that name no mesh axis.
    """
    one_device = program.declared_devices == 1

    def idle(op: Op) -> bool:
        if not _is_constraint(op):
            return False
        return one_device or '"' not in dict(op.attributes).get("sharding", '"')

    if not any(map(idle, all_ops(program))):
        return program
    return with_bodies(program, lambda body: without_identities(body, idle))


def _sharded_reason(
    program: Program, main_attributes: Mapping[str, str], module_attributes: Mapping[str, str]
) -> Unpartitioned | None:
    """Return why a program is not partitioned yet, or None.

    XLA's partitioner leaves ``mhlo.spmd_*`` attributes or collectives behind, and removes Shardy's
    annotations and ``Sharding`` custom calls.
    """
    devices = program.declared_devices
    if devices == 1:
        return None
    ops = list(all_ops(program))
    marker = next((op for op in ops if _is_marker(op)), None)
    if marker is not None:
        attrs = marker.attrs
        name = attrs.target if isinstance(attrs, CustomCallAttrs) else marker.name
        reason = f"{marker.place or 'somewhere'} holds {name}"
    elif any(name.startswith(_PARTITIONED_BY_XLA) for name in module_attributes) or any(
        is_communication_op(op) for op in ops
    ):
        return None
    else:
        entries = [
            entry
            for name in ("arg_attrs", "res_attrs")
            for entry in split_list(main_attributes.get(name, "[]")[1:-1])
        ]
        dividing = (
            name
            for name in (_SHARDY, _GSPMD)
            if any(_divides(read_pairs(entry[1:-1]).get(name, "")) for entry in entries)
        )
        name = next(dividing, None)
        if name is None:
            return None
        reason = f"arguments carry {name} and there is no collective"
    over = f" over {devices} devices" if devices else ""
    return Unpartitioned(
        message=f"the program is sharded{over} but not yet partitioned ({reason})",
        location=program.source,
        hint="export it after XLA's SPMD partitioner, where it holds its collectives",
    )


def _is_marker(op: Op) -> bool:
    if op.dialect == "sdy":
        return op.kind != "return"
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target in PARTITIONER_MARKERS


def _divides(sharding: str) -> bool:
    if sharding.startswith("#sdy"):
        return '"' in "".join(split_list(sharding[sharding.index("<") + 1 : -1])[1:2])
    return bool(sharding) and not sharding.startswith(_REPLICATED)


Placement = tuple[Mesh | None, str]
"""A mesh, and Shardy's text of the axes that divide each dimension."""


def _open_manual_computations(
    program: Program, meshes: Mapping[str, Mesh], main_attributes: Mapping[str, str]
) -> Program | Unpartitioned:
    """Return the per-device program of work inside shard_map.

    It is `Unpartitioned` if work or data would still have to be divided or moved among devices:
    work outside shard_map, a mesh axis left to the partitioner, or a value with different shardings
    in two shard_maps.
    """
    main = with_calls_opened(program)
    opening = _ManualOpening(source=program.source, meshes=meshes)
    opening.place(main.body.arguments, argument_shardings(main_attributes, "arg_attrs"))
    opened = opening.main(main) or opening.mismatch(
        main.results, argument_shardings(main_attributes, "res_attrs"), location=program.source
    )
    if opened is not None:
        return opened
    other_functions = {
        name: function
        for name, function in program.functions.items()
        if name != "main" and not any(map(_is_manual, nested_ops(function.body)))
    }
    partitions = program.partitions
    if program.declared_devices is None:
        partitions = max((mesh.device_count for mesh in meshes.values()), default=None)
    functions = {"main": opening.function(main)} | other_functions
    return replace(program, functions=functions, partitions=partitions)


def argument_shardings(attributes: Mapping[str, str], name: str) -> list[str]:
    """Return each entry's ``sdy.sharding<...>`` content.

    The entries are those of ``arg_attrs`` or ``res_attrs``. The text is empty for an entry without
    a sharding or with a dimension left open to the partitioner.
    """
    entries = split_list(attributes.get(name, "[]")[1:-1])
    texts = [read_pairs(entry[1:-1]).get(_SHARDY, "") for entry in entries]
    return [
        "" if "?" in text or not text else text[text.index("<") + 1 : text.rindex(">")]
        for text in texts
    ]


@dataclass(slots=True, kw_only=True)
class _ManualOpening:
    """The main function while it is rebuilt per device.

    ``local`` maps global values to per-device ones, ``placements`` to their shardings.
    """

    source: str
    meshes: Mapping[str, Mesh]
    local: Renaming = field(default_factory=dict[Value, Value])
    placements: dict[Value, Placement] = field(default_factory=dict[Value, Placement])
    operations: list[Op] = field(default_factory=list[Op])

    def place(self, values: Iterable[Value], shardings: Sequence[str]) -> None:
        """Record the shardings of values; empty texts set none."""
        for value, text in zip(values, shardings, strict=False):
            if text:
                self.placements[value] = self._placement(text)

    def mismatch(
        self, values: Iterable[Value], shardings: Sequence[str], *, location: str
    ) -> Unpartitioned | None:
        """Return the first value whose sharding differs from ``shardings``."""
        for value, text in zip(values, shardings, strict=False):
            if not text or value not in self.placements:
                continue
            actual, needed = self.placements[value], self._placement(text)
            if actual != needed:
                return Unpartitioned(
                    message=f"a value is sharded as {_unquoted(actual[1])} but used as "
                    f"{_unquoted(needed[1])}, which takes communication that is not there yet",
                    location=location or self.source,
                    hint=_PARTITION_FIRST,
                )
        return None

    def main(self, main: Function) -> Unpartitioned | None:
        """Rebuild the operations; return the obstacle, if any."""
        arguments = set(main.body.arguments)
        for op in main.body.operations:
            if _is_manual(op):
                problem = self._open(op, arguments)
                if problem is not None:
                    return problem
            elif op.kind in _DEVICE_INDEPENDENT:
                self.operations.append(copied_op(op, self.local))
            else:
                return Unpartitioned(
                    message=f"{op.name} outside of shard_map works on arrays of the whole mesh",
                    location=op.place or self.source,
                    hint=_PARTITION_FIRST,
                )
        return None

    def function(self, main: Function) -> Function:
        """Return the main function of one device."""
        arguments = tuple(self.local.get(argument, argument) for argument in main.body.arguments)
        return Function(
            name=main.name, body=Block(arguments=arguments, operations=tuple(self.operations))
        )

    def _open(self, op: Op, arguments: set[Value]) -> Unpartitioned | None:
        texts = dict(op.attributes)
        shardings = _per_value(texts.get("in_shardings", ""))
        problem = self._partitioned_axis(op, texts) or self.mismatch(
            op.operands, shardings, location=op.place
        )
        if problem is not None:
            return problem
        self.place(op.operands, shardings)
        self.place(op.results, _per_value(texts.get("out_shardings", "")))
        # All axes are manual inside, so no constraint has an effect.
        body = without_identities(op.regions[0], _is_constraint)
        renaming: Renaming = {}
        for inner, outer in zip(body.arguments, op.operands, strict=True):
            if outer in arguments and outer not in self.local:
                self.local[outer] = Value(type=inner.type)
            local = renaming[inner] = self.local.get(outer, outer)
            if local.type != inner.type:
                return Unpartitioned(
                    message=f"an operand is {local.type} per device, but is used as {inner.type}",
                    location=op.location,
                    hint=_PARTITION_FIRST,
                )
        self.operations.extend(copied_op(inner_op, renaming) for inner_op in body.operations[:-1])
        for result, value in zip(op.results, body.operations[-1].operands, strict=True):
            self.local[result] = renaming.get(value, value)
        return None

    def _partitioned_axis(self, op: Op, texts: Mapping[str, str]) -> Unpartitioned | None:
        manual = set(re.findall(r'"([^"]+)"', texts.get("manual_axes", "")))
        names = read_symbols(texts.get("in_shardings", "") + texts.get("out_shardings", ""))
        for name in names:
            mesh = self.meshes.get(name)
            dividing = [axis for axis, size in (mesh.axes if mesh else ()) if size > 1]
            automatic = [axis for axis in dividing if axis not in manual]
            if automatic:
                return Unpartitioned(
                    message=f"mesh axes {', '.join(automatic)} are not manual in shard_map",
                    location=op.location,
                    hint=_PARTITION_FIRST,
                )
        return None

    def _placement(self, text: str) -> Placement:
        """Read ``@mesh, [{"x"}, {}], replicated={"y"}``, ignoring explicit replication."""
        mesh, *_ = split_list(text)
        name = read_symbols(mesh)
        return self.meshes.get(name[0]) if name else None, divided_dimensions(text)


def divided_dimensions(text: str) -> str:
    """Return the list of the axes that divide each dimension, of a sharding's text."""
    return next((part for part in split_list(text) if part.startswith("[")), "[]")


def _per_value(text: str) -> list[str]:
    """Split ``#sdy.sharding_per_value<[<...>, ...]>`` into the contents of ``<>``."""
    start, end = text.find("["), text.rfind("]")
    return [part[1:-1] for part in split_list(text[start + 1 : end])] if start >= 0 else []


def _unquoted(text: str) -> str:
    return text.replace('"', "")
