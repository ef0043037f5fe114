"""XLA's own count of a program's work: the judge of ours.

Nothing is compiled: StableHLO is converted to HLO, and XLA's `HloCostAnalysis` walks it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from hespas.errors import ProgramError


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCost:
    """What XLA counts, in the single-precision floats in which it adds up."""

    flops: float
    transcendentals: float
    bytes_accessed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bindings:
    jax: Any
    hlo: Any
    client: Any


@lru_cache(maxsize=1)
def _bindings() -> _Bindings:
    # Without this the client greets on standard error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    jax = import_module("jaxlib._jax")
    hlo = import_module("jaxlib._hlo")
    return _Bindings(jax=jax, hlo=hlo, client=jax.get_tfrt_cpu_client())


def hlo_cost_analysis(stablehlo: str | bytes, *, name: str = "the program") -> HloCost:
    """Return XLA's count for a StableHLO module, as text or MLIR bytecode.

    The conversion to HLO folds what it can (``x + 0``). Operations that no result depends on
    aren't counted, a ``while`` counts its condition and body once, a branch its most expensive
    alternative for each figure apart, and a custom call -1 of each.
    Raises `ProgramError` where XLA cannot convert the module.
    """
    return hlo_proto_cost(hlo_proto(stablehlo, name=name), name=name)


def hlo_proto_cost(proto: bytes, *, name: str = "the program") -> HloCost:
    """Return XLA's count for a serialised ``HloModuleProto``; `ProgramError` as above."""
    bindings = _bindings()
    with _conversion_errors(name):
        module = bindings.hlo.HloModule.from_serialized_hlo_module_proto(proto)
        properties = bindings.jax.hlo_module_cost_analysis(bindings.client, module)
    return HloCost(
        flops=properties.get("flops", 0.0),
        transcendentals=properties.get("transcendentals", 0.0),
        bytes_accessed=properties.get("bytes accessed", 0.0),
    )


def hlo_proto(stablehlo: str | bytes, *, name: str = "the program") -> bytes:
    """Convert StableHLO to a serialised ``HloModuleProto``; `ProgramError` where XLA cannot."""
    with _conversion_errors(name):
        computation = _bindings().jax.mlir.mlir_module_to_xla_computation(
            stablehlo, use_tuple_args=False, return_tuple=False
        )
        return computation.as_serialized_hlo_module_proto()


def stablehlo_of_hlo(proto: bytes, *, name: str = "the program") -> bytes:
    """Convert a serialised ``HloModuleProto`` to StableHLO; `ProgramError` where XLA cannot."""
    with _conversion_errors(name):
        return _bindings().jax.mlir.hlo_to_stablehlo(proto)


@contextmanager
def _conversion_errors(name: str) -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        raise ProgramError(f"XLA cannot convert it: {first_line}", location=name) from error
