"""A module as text that tells its number of devices."""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from importlib import import_module
from typing import Any


def device_text(handle: Any, *, replicas: int | None, partitions: int | None) -> bytes:
    """Print a parsed module; a number that is None is left as the module has it."""
    ir = import_module("jaxlib.mlir.ir")
    told = {"mhlo.num_partitions": partitions, "mhlo.num_replicas": replicas}
    with handle.context:
        number = ir.IntegerType.get_signless(32)
        for name, count in told.items():
            if count is not None:
                handle.operation.attributes[name] = ir.IntegerAttr.get(number, count)
        return str(handle).encode()
