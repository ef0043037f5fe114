"""A study with a few rows, as if it had been run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hespas.study.rows import Row, Status
from hespas.study.run import Studied
from hespas.study.study import study_of

STUDY: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": ["8xH100_80GB", "16xH100_80GB"],
    "mesh": {"fsdp": "auto", "tp": [1, 2]},
    "goal": {"maximise": "tokens_per_s_per_device"},
    "title": "Eight or sixteen",
}


def study_row(number: int, devices: int, tp: int, **changed: Any) -> Row:
    step_s = 1.0 + 0.1 * number
    figures: Mapping[str, float | None] = {
        "step_time_s": step_s,
        "compute_s": 0.8,
        "exposed_communication_s": step_s - 0.9,
        "tokens_per_s": 1000 * devices / step_s,
        "tokens_per_s_per_device": 1000 / step_s,
        "peak_memory_bytes": 80e9 / tp,
        "devices": devices,
    }
    given: dict[str, Any] = {
        "candidate": {
            "model": "llama3-8b",
            "cluster": f"{devices}xH100_80GB",
            "mesh": {"fsdp": devices // tp, "tp": tp},
        },
        "status": Status.DONE,
        "fidelity": "fused",
        "figures": figures,
    }
    return Row(number=number, **(given | changed))


def study_rows() -> tuple[Row, ...]:
    return (
        study_row(0, 8, 1),
        study_row(1, 8, 2),
        study_row(2, 16, 1),
        study_row(3, 16, 2),
        study_row(4, 16, 4, status=Status.PRUNED, reason="needs 91.2 GB of 80 GB", figures={}),
        study_row(5, 16, 8, status=Status.PRUNED, reason="needs 95.1 GB of 80 GB", figures={}),
        study_row(6, 8, 4, status=Status.FAILED, reason="the compiler crashed", figures={}),
    )


def small_study(rows: tuple[Row, ...] | None = None, *, count: int = 0) -> Studied:
    """Return a study with these rows, with ``count`` that are done, or with a few of all kinds."""
    many = tuple([study_row(number, 8 * (1 + number % 2), 1 + number) for number in range(count)])
    shown = many or (study_rows() if rows is None else rows)
    return Studied(study=study_of(STUDY), rows=shown)
