"""Estimates as JSON text, for the cache: exact, and the same bytes for the same estimate."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from hespas.errors import CacheError
from hespas.estimate.estimate import Estimate, OpEstimate, TypeTotals


def encode_estimate(estimate: Estimate) -> str:
    """Return an estimate as JSON text; floats keep every bit."""
    per_op = {kind: _encode_op(op) for kind, op in estimate.per_op.items()}
    listed = {"notes": estimate.notes, "warnings": estimate.warnings}
    return json.dumps({"per_op": per_op, **listed})


def decode_estimate(text: str, *, location: str = "") -> Estimate:
    """Return the estimate that `encode_estimate` wrote; `CacheError` for anything else.

    >>> estimate = Estimate(per_op={"stablehlo.add": OpEstimate(count=1, time_s=0.1)})
    >>> decode_estimate(encode_estimate(estimate)) == estimate
    True
    """
    try:
        data = json.loads(text)
        return Estimate(
            per_op={_text(kind): _decode_op(op) for kind, op in data["per_op"].items()},
            notes=tuple(map(_text, data["notes"])),
            warnings=tuple(map(_text, data["warnings"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(
            "the estimator cache holds an entry that is no estimate",
            location=location,
            hint="delete the cache, or run with --disable-cache",
        ) from error


def _encode_op(op: OpEstimate) -> dict[str, object]:
    return {
        "count": op.count,
        "time_s": op.time_s,
        "bytes_moved": op.bytes_moved,
        "memory_time_at_peak_s": op.memory_time_at_peak_s,
        "energy_j": op.energy_j,
        "duration_ps": op.duration_ps,
        "per_type": {
            key: [totals.flops, totals.time_at_peak_s] for key, totals in op.per_type.items()
        },
    }


# Any: JSON just read; a wrong shape raises and is reported as a damaged cache.
def _decode_op(data: Any) -> OpEstimate:
    energy_j = data["energy_j"]
    return OpEstimate(
        count=_amount(data["count"]),
        time_s=_amount(data["time_s"]),
        bytes_moved=_amount(data["bytes_moved"]),
        memory_time_at_peak_s=_amount(data["memory_time_at_peak_s"]),
        energy_j=None if energy_j is None else _amount(energy_j),
        duration_ps=_whole(data["duration_ps"]),
        per_type={
            _text(key): TypeTotals(flops=_amount(flops), time_at_peak_s=_amount(time_s))
            for key, (flops, time_s) in data["per_type"].items()
        },
    )


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{value} is no amount")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    if value < 0:
        raise ValueError(f"{value} is no amount")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
