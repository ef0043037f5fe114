"""Read the backend configuration of instructions."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, cast

from hespas.base.figures import whole_number

_COLLECTIVE, _TPU_WINDOW = "collective_backend_config", "window_config"
# Fields about scheduling and the compiler's estimates; they change no kernel.
_BOOKKEEPING = frozenset(
    {
        _COLLECTIVE,
        "device_type",
        "force_earliest_schedule",
        "operation_queue_id",
        "reification_cost",
        "wait_on_operation_queues",
    }
)
# A TPU compiler's limits and estimates.
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

_CYCLES = "estimated_cycles"
_CYCLES_BYTES = _CYCLES.encode()
# The compiler's value for no estimate, as for some transposes on TPUv7x.
_UNKNOWN_CYCLES = 2**63 - 1
# The fields of a window that give the blocks of a kernel's operands and result.
_WINDOW_FIELDS = ("kernel_window_bounds", "input_window_bounds", "output_window_bounds")

Config = dict[str, Any]
NO_CONFIG: Config = {}


@lru_cache(maxsize=16384)
def decoded(source: bytes) -> Config | None:
    """Return a configuration's JSON object; None for other text."""
    if not source:
        return NO_CONFIG
    if not source.startswith(b"{"):
        return None
    try:
        return cast("Config", json.loads(source))
    except (ValueError, RecursionError):
        return None


def _section(source: bytes, name: str) -> Config:
    """Return a part of a configuration, or an empty one."""
    section = (decoded(source) or NO_CONFIG).get(name)
    return cast("Config", section) if isinstance(section, dict) else NO_CONFIG


@lru_cache(maxsize=16384)
def kernel_config(source: bytes) -> str:
    """Return a configuration as sorted JSON without bookkeeping.

    It is empty if no field is left.

    >>> kernel_config(b'{"reification_cost":[],"gemm_backend_config":{"beta":0}}')
    '{"gemm_backend_config":{"beta":0}}'
    """
    config = decoded(source)
    if config is None:
        return source.decode(errors="backslashreplace")
    left_out = _BOOKKEEPING | _TPU_BOOKKEEPING
    relevant = {key: value for key, value in config.items() if key not in left_out}
    if _TPU_WINDOW in relevant:
        window = cast("Config", relevant[_TPU_WINDOW])
        relevant[_TPU_WINDOW] = {key: window[key] for key in _WINDOW_FIELDS if window.get(key)}
    return json.dumps(relevant, sort_keys=True, separators=(",", ":")) if relevant else ""


def trip_count(source: bytes) -> int | None:
    """Return a loop's ``known_trip_count``, None if it is missing."""
    count = (decoded(source) or NO_CONFIG).get("known_trip_count")
    if isinstance(count, dict):
        count = cast("Config", count).get("n")
    return whole_number(str(count)) if isinstance(count, int | str) else None


def is_synchronous(source: bytes) -> bool:
    """Return whether a started collective blocks."""
    return _section(source, _COLLECTIVE).get("is_sync") is True


_STRATEGIES = {
    "KERNEL_STRATEGY_TRITON_ONE_SHOT": "one_shot",
    "KERNEL_STRATEGY_TRITON_TWO_SHOT": "two_shot",
}
"""XLA's names of its own kernels for collectives: openxla/xla, ``CollectiveBackendConfig``."""


def collective_kernel(source: bytes) -> str:
    """Return the compiler's own kernel for a collective, or "".

    A library runs the collective otherwise.

    >>> collective_kernel(b'{"collective_backend_config":{"kernel_strategy":"KERNEL_STRATEGY_"}}')
    ''
    """
    return _STRATEGIES.get(str(_section(source, _COLLECTIVE).get("kernel_strategy")), "")


def estimated_cycles(source: bytes) -> int | None:
    """Return the cycles a TPU's compiler estimates, or None.

    >>> estimated_cycles(b'{"window_config":{"estimated_cycles":"1283680"}}')
    1283680
    """
    if _CYCLES_BYTES not in source:
        return None
    cycles = _section(source, _TPU_WINDOW).get(_CYCLES)
    number = whole_number(str(cycles)) if isinstance(cycles, int | str) else None
    return None if number is None or number >= _UNKNOWN_CYCLES else number


def fusion_kind(source: bytes) -> str:
    """Return the generator of a fusion's kernel (``__triton``), or ""."""
    return str(_section(source, "fusion_backend_config").get("kind", ""))
