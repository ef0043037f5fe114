"""Turn durations of runs into estimates of regions."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import median

from hespas.base.frozen import frozen
from hespas.errors import UnsupportedError
from hespas.price.estimate import UNDIVIDED, Estimate, OpEstimate, TypeTotals
from hespas.program.program import Value
from hespas.program.types import TensorType
from hespas.program.work import ZERO, Work

PROFILED = "profiled block"
"""The name of a profiled region in the table of operations."""


@frozen
class Repeats:
    """How often a region runs, and its time limits.

    After ``warm_up_runs``, which don't count, come ``least_runs``; then runs continue, up to
    ``most_runs``, until ``enough_s`` have passed. ``limit_s`` covers compiling and running.
    """

    warm_up_runs: int = 2
    least_runs: int = 5
    most_runs: int = 50
    enough_s: float = 0.5
    limit_s: float = 600.0


SAMPLED = Repeats(warm_up_runs=1, least_runs=1, most_runs=3, enough_s=0.05)
"""The repeats of ``sample``, for a quick look instead of a measurement."""


def estimate_of(
    durations_s: Sequence[float], *, floor_s: float, where: str, work: Work = ZERO
) -> Estimate:
    """Return the fastest run less the dispatch floor.

    Other programs on the machine disturbed the fastest run least. ``work`` is the region's work,
    for the achieved rates.

    >>> estimate_of([3e-3, 2e-3, 2.4e-3], floor_s=1e-3, where="a CPU").time_s
    0.001
    """
    fastest_s = min(durations_s)
    spread = median(durations_s) / fastest_s if fastest_s > 0 else 1.0
    notes = [f"profiled on {where}: the fastest run counts, less the time to dispatch nothing"]
    if fastest_s <= floor_s:
        notes.append("some regions took no longer than dispatching nothing; they count as 0 s")
    if spread > WIDE_SPREAD:
        notes.append(
            f"some regions' runs differed widely (median over {WIDE_SPREAD:g} times the fastest): "
            "the machine was busy"
        )
    timed = OpEstimate(
        count=1.0,
        time_s=max(0.0, fastest_s - floor_s),
        bytes_moved=float(work.bytes_moved),
        per_type={name: TypeTotals(flops=float(count)) for name, count in work.flops},
    )
    return Estimate(per_op={PROFILED: timed}, notes=tuple(notes))


def without_peaks(estimate: Estimate) -> Estimate:
    """Drop an estimate's peak times and energies.

    Beside times that were measured elsewhere they would describe a part of the regions as if it
    were all.
    """
    per_op = {
        kind: replace(
            op,
            memory_time_at_peak_s=0.0,
            energy_j=None,
            bound=UNDIVIDED,
            per_type={key: TypeTotals(flops=totals.flops) for key, totals in op.per_type.items()},
        )
        for kind, op in estimate.per_op.items()
    }
    return replace(estimate, per_op=per_op)


WIDE_SPREAD = 1.5

_SPECIAL = {"i1": "bool", "index": "int64"}
_PREFIXES = {"ui": "uint", "si": "int", "i": "int"}


def numpy_name(name: str) -> str:
    """Return numpy's name, with ml_dtypes, of an MLIR element type.

    >>> [numpy_name(name) for name in ("i1", "ui8", "bf16", "f64", "complex<f32>", "f8E4M3FN")]
    ['bool', 'uint8', 'bfloat16', 'float64', 'complex64', 'float8_e4m3fn']
    """
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name.startswith("complex<"):
        return {"complex<f32>": "complex64", "complex<f64>": "complex128"}[name]
    for prefix, long in _PREFIXES.items():
        if name.startswith(prefix) and name[len(prefix) :].isdigit():
            return long + name[len(prefix) :]
    if name.startswith("bf"):
        return "bfloat" + name[2:]
    digits, letter, mantissa = name[1:].partition("E")
    return f"float{digits}" + (f"_{(letter + mantissa).lower()}" if letter else "")


def argument_arrays(
    inputs: Sequence[Value], *, location: str
) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return each input's shape and numpy type; `UnsupportedError` for non-tensors."""
    arrays: list[tuple[tuple[int, ...], str]] = []
    for value in inputs:
        if not isinstance(value.type, TensorType):
            raise UnsupportedError(
                f"a region with an input of type {value.type} cannot be run by itself",
                location=location,
            )
        arrays.append((value.type.shape, numpy_name(value.type.element.name)))
    return tuple(arrays)


@lru_cache(maxsize=1)
def machine_name() -> str:
    """Return the processor's model and core count."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model_line = next((line for line in lines if line.startswith("model name")), "")
    model = model_line.partition(":")[2].strip() or platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"
