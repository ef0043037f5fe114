"""HLO modules as StableHLO."""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from importlib import import_module

from hespas.errors import UnsupportedError
from hespas.xla.hlo_module import HloModule, read_hlo_module
from hespas.xla.mlir import parse_mlir
from hespas.xla.module_text import device_text


def stablehlo_of_hlo(source: bytes, *, name: str) -> bytes:
    """Return HLO text, an HloProto or an HloModuleProto as StableHLO text.

    Raises `ProgramError` for what is no HLO, and what `stablehlo_of_module` raises.
    """
    return stablehlo_of_module(read_hlo_module(source, name=name), name=name)


def stablehlo_of_module(module: HloModule, *, name: str) -> bytes:
    """Return an HLO module as StableHLO text.

    Raises `UnsupportedError` for what StableHLO lacks: fusions, asynchronous collectives of
    several arrays and tiled layouts, which compilers write.
    """
    convert = import_module("jaxlib._jax").mlir.hlo_to_stablehlo
    try:
        bytecode: bytes = convert(module.message.SerializeToString())
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"it has no form in StableHLO: {first}", location=name) from error
    handle = parse_mlir(bytecode, name=name).handle
    return device_text(handle, replicas=module.replicas, partitions=module.partitions)
