"""Write how far predictions were off published steps into src/hespas/configs/published/errors.json.

``hespas run`` states the errors of the steps that are most like its own. They are those of
docs/data/every_step.json (XLA), library_steps.json, recorded_steps.json (PyTorch) and fusion.json
(modelled beside compiled kernels).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from every_rows import RECENT
from hespas.base.files import json_bytes, write_file
from hespas.models.catalogue import model_named
from hespas.prediction.workload import StepKind, kind_of

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "src" / "hespas" / "configs" / "published" / "errors.json"
_DATA = ROOT / "docs" / "data"
_BY_XLA = {"compiled", "fused", "extended"}


def errors() -> dict[str, Any]:
    """Return the errors by who wrote the kernels, and what modelled kernels are off by."""
    every = [row for row in _read("every_step.json")["rows"] if row["held_by"] in _BY_XLA]
    gpus = [row for row in every if not row["part"].startswith("TPU")]
    library = [row for row in _read("library_steps.json") if not row["reason"]]
    recent = [row for row in library if row["framework_year"] >= RECENT]
    with_experts = [row for row in recent if _has_experts(row["workload"])]
    programs = _read("fusion.json")["programs"]
    shares: list[float] = [
        each["fused"]["step_s"] / each["compiled"]["step_s"] - 1 for each in programs
    ]
    return {
        "groups": {
            "xla_gpu": _group(row for row in gpus if row["framework_year"] >= RECENT),
            "xla_tpu": _group(row for row in every if row not in gpus),
            "library": _group(row for row in recent if row not in with_experts),
            "library_experts": _group(with_experts),
            "recorded": _group(map(_recorded, _read("recorded_steps.json"))),
        },
        "modelled": {
            "programs": len(shares),
            "mean_absolute": mean(abs(share) for share in shares),
        },
    }


def _read(name: str) -> Any:
    return json.loads((_DATA / name).read_text())


def _has_experts(workload: str) -> bool:
    return kind_of(model_named(workload).settings) is StepKind.TRAINING_WITH_EXPERTS


def _recorded(row: Mapping[str, Any]) -> dict[str, Any]:
    count, _, part = row["cluster"].partition("x")
    error = row["predicted_s"] / row["published_s"] - 1
    return {"error": error, "part": part, "devices": int(count)}


def _group(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: Sequence[Mapping[str, Any]] = list(rows)
    sizes: list[float] = [row["error"] for row in found]
    tenths = quantiles(sizes, n=10, method="inclusive")
    devices = [row["devices"] for row in found]
    return {
        "steps": len(found),
        "mean_absolute": mean(abs(size) for size in sizes),
        "median": median(sizes),
        "least": min(sizes),
        "most": max(sizes),
        "low": tenths[0],
        "high": tenths[-1],
        "devices": [min(devices), max(devices)],
        "parts": sorted({row["part"] for row in found}),
    }


def write() -> None:
    """Write the file."""
    write_file(FILE, json_bytes(errors()))


if __name__ == "__main__":
    write()
