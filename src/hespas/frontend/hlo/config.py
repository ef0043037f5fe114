"""What compilers write beside an instruction, less what says nothing about the kernel."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, cast

# When and where it runs, what the compiler thought of it: not what is computed or how.
_BOOKKEEPING = frozenset(
    {
        "collective_backend_config",
        "device_type",
        "force_earliest_schedule",
        "operation_queue_id",
        "reification_cost",
        "wait_on_operation_queues",
    }
)
# What a TPU's compiler notes: limits it was given and what it came to expect.
_TPU_BOOKKEEPING = frozenset(
    {
        "aliasing_operands",
        "async_collective_fusion_config",
        "barrier_config",
        "continuation_config",
        "flag_configs",
        "float_type_correction_info",
        "indices_config",
        "output_chunk_bound_config",
        "retry_config",
        "scoped_memory_configs",
        "used_scoped_memory_configs",
    }
)

_TPU_WINDOW = "window_config"
_CYCLES = "estimated_cycles"
_CYCLES_BYTES = _CYCLES.encode()
# What stands where the compiler has no estimate, as for some transposes on TPUv7x.
_UNKNOWN_CYCLES = 2**63 - 1
# Of a window: how a kernel cuts its operands and result into blocks.
_WINDOW_KEPT = ("kernel_window_bounds", "input_window_bounds", "output_window_bounds")

Config = dict[str, Any]
NO_CONFIG: Config = {}


@lru_cache(maxsize=16384)
def decoded(source: bytes) -> Config | None:
    """Return a configuration that is a JSON object, None for any other text."""
    if not source:
        return NO_CONFIG
    if not source.startswith(b"{"):
        return None
    try:
        return cast("Config", json.loads(source))
    except ValueError:
        return None


@lru_cache(maxsize=16384)
def kernel_config(source: bytes) -> str:
    """Return a configuration as JSON with sorted keys, bookkeeping left out; empty if none is left.

    >>> kernel_config(b'{"reification_cost":[],"gemm_backend_config":{"beta":0}}')
    '{"gemm_backend_config":{"beta":0}}'
    """
    config = decoded(source)
    if config is None:
        return source.decode(errors="backslashreplace")
    left_out = _BOOKKEEPING | _TPU_BOOKKEEPING
    kept = {key: value for key, value in config.items() if key not in left_out}
    if _TPU_WINDOW in kept:
        window = cast("Config", kept[_TPU_WINDOW])
        kept[_TPU_WINDOW] = {key: window[key] for key in _WINDOW_KEPT if window.get(key)}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else ""


def trip_count(source: bytes) -> int | None:
    """Return a loop's ``known_trip_count``, None where the compiler doesn't tell it."""
    known = (decoded(source) or NO_CONFIG).get("known_trip_count")
    if isinstance(known, dict):
        known = cast("Config", known).get("n")
    return int(known) if isinstance(known, int | str) else None


def is_synchronous(source: bytes) -> bool:
    """Tell whether a start and its done are one collective that the compute stream waits for."""
    collective = (decoded(source) or NO_CONFIG).get("collective_backend_config")
    return isinstance(collective, dict) and cast("Config", collective).get("is_sync") is True


def estimated_cycles(source: bytes) -> int | None:
    """Return how many cycles a TPU's compiler expects an instruction to take, None if it can't say.

    >>> estimated_cycles(b'{"window_config":{"estimated_cycles":"1283680"}}')
    1283680
    """
    if _CYCLES_BYTES not in source:
        return None
    window = cast("Config", (decoded(source) or NO_CONFIG).get(_TPU_WINDOW, NO_CONFIG))
    cycles = window.get(_CYCLES)
    if not isinstance(cycles, int | str) or int(cycles) >= _UNKNOWN_CYCLES:
        return None
    return int(cycles)


def fusion_kind(source: bytes) -> str:
    """Return what writes a fusion's kernel (``__triton``), empty where the config is silent."""
    fusion = (decoded(source) or NO_CONFIG).get("fusion_backend_config")
    return str(cast("Config", fusion).get("kind", "")) if isinstance(fusion, dict) else ""
