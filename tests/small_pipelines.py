"""Small pipelines of several programs, and their predictions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hespas.models.model import parse_mesh
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.options import (
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.staged import predict_pipeline
from hespas.report.text import bound_parts
from hespas.sources.options import ModelOptions
from hespas.tasks.pipelining.options import PipelineOptions

SMALL = {"layers": "8", "vocabulary": "4096", "mlp": "2048", "embedding": "1024", "heads": "8"}


def options(  # Any: each of the fields has a type of its own
    mesh: str = "pipe=4,fsdp=2",
    *,
    batch: int = 16,
    cluster: str = "8xH100_80GB",
    model: ModelOptions | None = None,
    **pipeline: Any,
) -> PredictOptions:
    asked = replace(
        model or ModelOptions(sequence=1024, settings=SMALL),
        mesh=parse_mesh(mesh),
        global_batch=batch,
    )
    return PredictOptions(
        program=ProgramOptions(file=Path("llama3-8b"), model=asked),
        pipeline=PipelineOptions(**pipeline),
        network=NetworkOptions(cluster=cluster),
    )


@cache
def predicted(schedule: str, mesh: str = "pipe=4,fsdp=2", **changed: str) -> PipelinePrediction:
    overlap = {name: value == "on" for name, value in changed.items()}
    return predict_pipeline(options(mesh, schedule=schedule, overlap=overlap))


def check_sums(report: RunReport) -> None:
    """Check that the parts of each stage, and those of the step, add up to the step."""
    assert report.pipeline is not None
    for row in report.pipeline.stages:
        parts = (
            row.compute_s,
            row.exposed_communication_s,
            row.exposed_host_transfer_s,
            row.waiting_s,
            row.sums_s,
            row.end_s,
        )
        assert sum(parts) == pytest.approx(report.step_time_s, abs=1e-9)
    parts_s = (report.compute_s, report.exposed_communication_s, report.stage_wait_s)
    assert sum(parts_s) == pytest.approx(report.step_time_s, rel=1e-12)
    exposed_s = dict.fromkeys(("idle", "communication"), 0.0)
    for row in report.communication:
        exposed_s["idle" if row.kind == "idle" else "communication"] += row.exposed_s
    assert exposed_s["idle"] == pytest.approx(report.stage_wait_s, rel=1e-6)
    assert exposed_s["communication"] == pytest.approx(report.exposed_communication_s, rel=1e-6)
    assert report.stage_wait_s > 0
    for rows in (report.kinds, report.phases, report.layers):
        assert sum(row.time_s for row in rows) == pytest.approx(report.compute_s, rel=1e-6)
    assert sum(bound_parts(report).values()) == pytest.approx(1)
