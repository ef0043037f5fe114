"""Estimates as JSON text, for the cache: exact, and the same bytes for the same estimate."""

from __future__ import annotations

import json
from typing import Any

from hespas.errors import CacheError
from hespas.estimate.estimate import Estimate, OpEstimate, TypeTotals


def encode_estimate(estimate: Estimate) -> str:
    """Return an estimate as JSON text; floats keep every bit."""
    per_op = {kind: _encode_op(op) for kind, op in estimate.per_op.items()}
    listed = {"notes": estimate.notes, "warnings": estimate.warnings}
    return json.dumps({"per_op": per_op, **listed})


def decode_estimate(text: str) -> Estimate:
    """Return the estimate that `encode_estimate` wrote; `CacheError` for anything else.

    >>> estimate = Estimate(per_op={"stablehlo.add": OpEstimate(count=1, time_s=0.1)})
    >>> decode_estimate(encode_estimate(estimate)) == estimate
    True
    """
    try:
        data = json.loads(text)
        per_op = {str(kind): _decode_op(op) for kind, op in data["per_op"].items()}
        notes = tuple(map(str, data["notes"]))
        warnings = tuple(map(str, data["warnings"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(
            "the estimator cache holds an entry that is no estimate",
            mend="delete the cache directory, or run with --disable-cache",
        ) from error
    return Estimate(per_op=per_op, notes=notes, warnings=warnings)


def _encode_op(op: OpEstimate) -> dict[str, object]:
    return {
        "count": op.count,
        "time_s": op.time_s,
        "bytes_moved": op.bytes_moved,
        "memory_time_at_peak_s": op.memory_time_at_peak_s,
        "energy_j": op.energy_j,
        "per_type": {
            key: [totals.flops, totals.time_at_peak_s] for key, totals in op.per_type.items()
        },
    }


# Any: JSON just read; a wrong shape raises and is reported as a damaged cache.
def _decode_op(data: Any) -> OpEstimate:
    energy_j = data["energy_j"]
    return OpEstimate(
        count=float(data["count"]),
        time_s=float(data["time_s"]),
        bytes_moved=float(data["bytes_moved"]),
        memory_time_at_peak_s=float(data["memory_time_at_peak_s"]),
        energy_j=None if energy_j is None else float(energy_j),
        per_type={
            str(key): TypeTotals(flops=float(flops), time_at_peak_s=float(time_s))
            for key, (flops, time_s) in data["per_type"].items()
        },
    )
