"""ONNXim's own description of its cores, beside the array that hespas was told of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import cast

from hespas.config.files import read_json
from hespas.errors import ConfigError
from hespas.estimate.systolic.array import Dataflow, SystolicArray

_FLOWS = {Dataflow.WEIGHT_STATIONARY: "systolic_ws", Dataflow.OUTPUT_STATIONARY: "systolic_os"}
_MHZ = 1e6


def checked_cores(path: Path, array: SystolicArray) -> tuple[str, ...]:
    """Return the names of what the file doesn't say, so that it could not be compared.

    Raises `ConfigError`, with both figures, where file and array disagree, and for a file that is
    no JSON object. ``core_height`` is held against the rows, ``core_width`` against the columns,
    ``core_freq``, in MHz, against the clock, at the top of the file or for each core.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise ConfigError(
            "is no JSON object", location=str(path), hint="give ONNXim's configuration"
        )
    top = cast("Mapping[str, object]", value)
    silent: list[str] = []
    for key, (name, own) in _figures(array).items():
        told = list(_told(top, key))
        for each in told:
            if not _same(each, own):
                raise ConfigError(
                    f"{key} is {_shown(each)}, {name} of the array {_shown(own)}",
                    location=str(path),
                    hint="make the two agree",
                )
        if not told:
            silent.append(key)
    return tuple(silent)


def _figures(array: SystolicArray) -> dict[str, tuple[str, float | str]]:
    """Return what the array has of each of ONNXim's keys."""
    return {
        "core_height": ("array_rows", array.rows),
        "core_width": ("array_columns", array.columns),
        "core_freq": ("clock_hz, in MHz,", array.clock_hz / _MHZ),
        "num_cores": ("array_count", array.count),
        "core_type": ("dataflow", _FLOWS[array.dataflow]),
    }


def _told(top: Mapping[str, object], key: str) -> Iterator[object]:
    if key in top:
        yield top[key]
    cores = top.get("core_config")
    if isinstance(cores, dict):
        for core in cast("Mapping[str, object]", cores).values():
            if isinstance(core, dict) and key in core:
                yield cast("Mapping[str, object]", core)[key]


def _same(told: object, own: float | str) -> bool:
    if isinstance(own, str):
        return told == own
    if isinstance(told, bool) or not isinstance(told, int | float):
        return False
    return isclose(told, own, rel_tol=1e-9)


def _shown(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
