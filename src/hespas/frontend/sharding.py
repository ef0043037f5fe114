"""Recognise a program that is sharded, but not yet partitioned.

Such a program describes the work of all devices together: pricing it as one device's would be
silently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from hespas.errors import UnpartitionedError
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Op, Program, is_communication_op, nested_ops

_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_PARTITIONED_BY_XLA = "mhlo.spmd_"
_REPLICATED = ('"{replicated}"', '"{maximal')


def refuse_unpartitioned(
    program: Program, main_attributes: Mapping[str, str], module_attributes: Mapping[str, str]
) -> None:
    """Raise `UnpartitionedError` where the program's shardings were not applied yet.

    XLA's partitioner leaves ``mhlo.spmd_*`` attributes or collectives behind; Shardy's
    annotations and ``Sharding`` custom calls are gone after it ran.
    """
    devices = program.declared_devices
    if devices is None or devices <= 1:
        return
    reason = _unpartitioned(program, main_attributes, module_attributes)
    if reason:
        raise UnpartitionedError(
            f"the program is sharded over {devices} devices but not yet partitioned ({reason})",
            place=program.source,
            mend="export it after XLA's SPMD partitioner, where it holds its collectives",
        )


def _unpartitioned(
    program: Program, main_attributes: Mapping[str, str], module_attributes: Mapping[str, str]
) -> str:
    ops = [op for function in program.functions.values() for op in nested_ops(function.body)]
    marked = next((op for op in ops if _is_marker(op)), None)
    if marked is not None:
        return f"{marked.location or 'somewhere'} holds {_marker_name(marked)}"
    if any(name.startswith(_PARTITIONED_BY_XLA) for name in module_attributes):
        return ""
    if any(is_communication_op(op) for op in ops):
        return ""
    arguments = main_attributes.get("arg_attrs", "") + main_attributes.get("res_attrs", "")
    for name in ("sdy.sharding", "mhlo.sharding"):
        if name in arguments and not _all_replicated(arguments, name):
            return f"arguments carry {name} and there is no collective"
    return ""


def _is_marker(op: Op) -> bool:
    if op.dialect == "sdy":
        return True
    return isinstance(op.attrs, CustomCallAttrs) and op.attrs.target in _MARKERS


def _marker_name(op: Op) -> str:
    return op.attrs.target if isinstance(op.attrs, CustomCallAttrs) else op.name


def _all_replicated(arguments: str, name: str) -> bool:
    parts = arguments.split(f"{name} = ")[1:]
    if name == "mhlo.sharding":
        return all(part.startswith(_REPLICATED) for part in parts)
    return all('"' not in part.partition(">")[0] for part in parts)
