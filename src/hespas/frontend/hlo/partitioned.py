"""Whether a module is the program of one device, or still that of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hespas.frontend.loaded import Unpartitioned
from hespas.xla.hlo.module import HloModule
from hespas.xla.hlo.schema import enum_names

_MARKERS = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
_COLLECTIVE = ("all-", "collective-", "reduce-scatter", "ragged-all-to-all")
_PARTITIONED_SUFFIX = "_spmd"


def unpartitioned(module: HloModule, name: str) -> Unpartitioned | None:
    """Return why a module is still the program of all devices, None if it is of one.

    The partitioner takes its markers and the shardings of all instructions away, but leaves
    those of parameters, and calls the computations that it wrote ``..._spmd``.
    """
    reason = _sharded_reason(module)
    if not reason:
        return None
    return Unpartitioned(
        message=f"the program is sharded but not yet partitioned ({reason})",
        location=name,
        hint="give what XLA's SPMD partitioner made of it, which holds its collectives",
    )


def _sharded_reason(module: HloModule) -> str:
    message = module.message
    if message.schedule.sequences:
        return ""
    divided: list[str] = []
    communicates = False
    for instruction in _instructions(message):
        opcode: str = instruction.opcode
        communicates = communicates or opcode.startswith(_COLLECTIVE)
        if opcode == "custom-call" and instruction.custom_call_target in _MARKERS:
            return f"%{instruction.name} is {instruction.custom_call_target}"
        if instruction.HasField("sharding") and _divides(instruction.sharding):
            if opcode != "parameter":
                return f"%{instruction.name} has a sharding"
            divided.append(instruction.name)
    written = str(message.entry_computation_name).endswith(_PARTITIONED_SUFFIX)
    if not divided or communicates or written or module.partitions == 1:
        return ""
    return f"%{divided[0]} has a sharding, and there is no collective"


def _instructions(message: Any) -> Iterator[Any]:
    for computation in message.computations:
        yield from computation.instructions


def _divides(sharding: Any) -> bool:
    return enum_names("xla.OpSharding.Type")[sharding.type] == "OTHER"
