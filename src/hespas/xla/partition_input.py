"""What the partitioner must know of a sharded program: its devices, and whose annotations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from hespas.errors import ProgramError
from hespas.xla.mlir import MlirModule, module_attributes, module_symbols

_PARTITIONED_BY_XLA = "mhlo.spmd_"
_ANNOTATIONS = ("sdy.sharding", "mhlo.sharding", "sdy.manual_computation", "@Sharding")
_NUMBER = re.compile(r"\d+")
_SDY_AXIS = re.compile(r'"[^"]+"\s*=\s*(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """How many replicas of how many partitions; ``shardy``: annotated by Shardy, else GSPMD."""

    replicas: int
    partitions: int
    shardy: bool

    @property
    def devices(self) -> int:
        """All devices of the program."""
        return self.replicas * self.partitions


def sharded_program(module: MlirModule) -> Sharded:
    """Read how a program is sharded; `ProgramError` where it isn't, or without a number."""
    attributes = module_attributes(module)
    if any(name.startswith(_PARTITIONED_BY_XLA) for name in attributes) or not _annotated(module):
        raise ProgramError(
            "there is nothing to partition: no sharding is left to apply", location=module.source
        )
    replicas = _count(attributes.get("mhlo.num_replicas"))
    partitions = _count(attributes.get("mhlo.num_partitions"))
    meshes = [
        _mesh_size(symbol.attributes["mesh"])
        for symbol in module_symbols(module).values()
        if symbol.op_name == "sdy.mesh"
    ]
    over = partitions or max(meshes, default=0)
    if not over:
        raise ProgramError(
            "the program doesn't say over how many devices it is sharded",
            location=module.source,
            hint="export it with a mesh, or with mhlo.num_partitions",
        )
    return Sharded(replicas=replicas or 1, partitions=over, shardy=bool(meshes))


def device_count(module: MlirModule) -> int:
    """Return how many devices a module says that it runs on; 1 where it says nothing."""
    attributes = module_attributes(module)
    counts = (_count(attributes.get(f"mhlo.num_{name}")) for name in ("replicas", "partitions"))
    return prod(count or 1 for count in counts)


def _annotated(module: MlirModule) -> bool:
    text = str(module.handle)
    return any(mark in text for mark in _ANNOTATIONS)


def _count(text: str | None) -> int:
    found = _NUMBER.match(text or "")
    return int(found[0]) if found else 0


def _mesh_size(text: str) -> int:
    """Return the devices of ``#sdy.mesh<["a"=4, "b"=2]>``; one without axes has 1."""
    return prod(int(size) for size in _SDY_AXIS.findall(text))
