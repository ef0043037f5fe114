"""Recognise a program that is sharded, but not yet partitioned.

Such a program describes the work of all devices together: pricing it as one device's would be
silently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from hespas.errors import UnpartitionedError
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Function, Op, Program, all_ops, is_communication_op, nested_ops
from hespas.program.rewrite import without_identities
from hespas.xla.mlir_text import split_list

_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_CONSTRAINTS = frozenset({"propagation_barrier", "reshard", "sharding_constraint"})
_PARTITIONED_BY_XLA = "mhlo.spmd_"
_SHARDY, _GSPMD = "sdy.sharding", "mhlo.sharding"
_REPLICATED = ('"{replicated', '"{maximal')


def is_constraint(op: Op) -> bool:
    """Tell whether an operation only says how its operand is to be divided."""
    return op.dialect == "sdy" and op.kind in _CONSTRAINTS


def without_idle_constraints(program: Program) -> Program:
    """Return the program without the constraints that can divide nothing.

    That is every constraint where there is one device, and those that name no mesh axis.
    """
    alone = program.declared_devices == 1

    def idle(op: Op) -> bool:
        return is_constraint(op) and (alone or '"' not in dict(op.attributes).get("sharding", '"'))

    functions = program.functions
    if not any(idle(op) for found in functions.values() for op in nested_ops(found.body)):
        return program
    rebuilt = {
        name: Function(name=name, body=without_identities(function.body, idle))
        for name, function in functions.items()
    }
    return replace(program, functions=rebuilt)


def argument_shardings(attributes: Mapping[str, str], name: str) -> list[str]:
    """Return what ``sdy.sharding<...>`` holds for each entry of ``arg_attrs`` or ``res_attrs``.

    Empty where an entry has none, or leaves a dimension open to the partitioner.
    """
    entries = split_list(attributes.get(name, "[]")[1:-1])
    texts = [_entry(entry, _SHARDY) for entry in entries]
    return [
        "" if "?" in text or not text else text[text.index("<") + 1 : text.rindex(">")]
        for text in texts
    ]


def _entry(dictionary: str, name: str) -> str:
    """Return the value of a name in ``{a = 1, b = 2}``, empty where it is not there."""
    pairs = [part.partition(" = ") for part in split_list(dictionary[1:-1])]
    return next((value for key, _, value in pairs if key == name), "")


def refuse_unpartitioned(
    program: Program, main_attributes: Mapping[str, str], module_attributes: Mapping[str, str]
) -> None:
    """Raise `UnpartitionedError` where the program's shardings were not applied yet.

    XLA's partitioner leaves ``mhlo.spmd_*`` attributes or collectives behind; Shardy's
    annotations and ``Sharding`` custom calls are gone after it ran.
    """
    devices = program.declared_devices
    if devices == 1:
        return
    reason = _unpartitioned(program, main_attributes, module_attributes)
    if reason:
        over = f" over {devices} devices" if devices else ""
        raise UnpartitionedError(
            f"the program is sharded{over} but not yet partitioned ({reason})",
            location=program.source,
            hint="export it after XLA's SPMD partitioner, where it holds its collectives",
        )


def _unpartitioned(
    program: Program, main_attributes: Mapping[str, str], module_attributes: Mapping[str, str]
) -> str:
    ops = list(all_ops(program))
    marked = next((op for op in ops if _is_marker(op)), None)
    if marked is not None:
        return f"{marked.source_location or 'somewhere'} holds {_marker_name(marked)}"
    if any(name.startswith(_PARTITIONED_BY_XLA) for name in module_attributes):
        return ""
    if any(is_communication_op(op) for op in ops):
        return ""
    named = ("arg_attrs", "res_attrs")
    entries = [part for at in named for part in split_list(main_attributes.get(at, "[]")[1:-1])]
    for name in (_SHARDY, _GSPMD):
        if any(_divides(_entry(entry, name)) for entry in entries):
            return f"arguments carry {name} and there is no collective"
    return ""


def _is_marker(op: Op) -> bool:
    if op.dialect == "sdy":
        return op.kind != "return"
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target in _MARKERS


def _marker_name(op: Op) -> str:
    return op.attrs.target if isinstance(op.attrs, CustomCallAttrs) else op.name


def _divides(sharding: str) -> bool:
    """Tell whether ``#sdy.sharding<@mesh, [{"x"}]>`` or GSPMD's text divides anything."""
    if sharding.startswith("#sdy"):
        return '"' in "".join(split_list(sharding[sharding.index("<") + 1 : -1])[1:2])
    return bool(sharding) and not sharding.startswith(_REPLICATED)
