"""Pipelines of several programs: experts, and passes beside passes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hespas.base.units import PS_PER_S
from hespas.errors import ConfigError
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.schema import CommunicationRow, RunReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    Fidelity,
)
from hespas.prediction.staged import predict_pipeline
from hespas.sources.options import ModelOptions
from hespas.tasks.pipelining.schedule import Pass
from small_pipelines import check_sums, options

EXPERTS = {"layers": "8", "vocabulary": "4096", "embedding": "512", "heads": "8", "mlp": "1024"}


def _of_experts(
    mesh: str = "pipe=2,expert=4",
    *,
    schedule: str | None = "1f1b",
    fidelity: Fidelity = Fidelity.AUTO,
    **hidden: bool,
) -> PipelinePrediction:
    model = ModelOptions(sequence=1024, settings={**EXPERTS, "experts": "16"})
    asked = options(mesh, model=model, batch=32, overlap=hidden, schedule=schedule)
    file = replace(asked.program, file=Path("deepseek-v3"))
    compiled = replace(asked.compile, fidelity=fidelity)
    return predict_pipeline(replace(asked, program=file, compile=compiled))


def test_shared_experts_run_beside_all_to_alls_in_stages_too() -> None:
    off, on = (run_report(_of_experts(experts=each)) for each in (False, True))
    exchanged = [_exchanged(report) for report in (off, on)]
    assert exchanged[1].exposed_s < exchanged[0].exposed_s
    assert exchanged[1].time_s == pytest.approx(exchanged[0].time_s)
    assert on.compute_s == off.compute_s
    assert on.step_time_s < off.step_time_s


def _exchanged(report: RunReport) -> CommunicationRow:
    return next(row for row in report.communication if row.kind == "all_to_all")


def test_all_to_alls_run_beside_a_pass_of_another_micro_batch() -> None:
    """What is hidden of them is what the step becomes shorter by; parts add up with it, too."""
    off, on = (_of_experts(schedule="interleaved:2", exchanges=each) for each in (False, True))
    alone, beside = run_report(off), run_report(on)
    assert alone.pipeline is not None
    assert beside.pipeline is not None
    assert on.finish_ps < off.finish_ps
    assert _exchanged(beside).exposed_s < _exchanged(alone).exposed_s / 2
    assert _exchanged(beside).time_s == pytest.approx(_exchanged(alone).time_s)
    assert beside.compute_s == alone.compute_s
    for one, other in zip(alone.pipeline.stages, beside.pipeline.stages, strict=True):
        hidden_s = sum(on.times.hidden_ps[one.stage].values()) / PS_PER_S
        assert other.exposed_communication_s == pytest.approx(
            one.exposed_communication_s - hidden_s
        )
    check_sums(beside)
    assert any("of the passes run beside one of another" in text for text in on.notes)


def test_what_all_devices_of_experts_hold_is_summed_once_a_step() -> None:
    """A pass sums nothing over them; the step's sum is there, and divides the states."""
    alone, wide = _of_experts("pipe=2,expert=4"), _of_experts("pipe=2,fsdp=4")
    report = run_report(alone)
    large = {row.kind for row in report.communication if row.axis == "expert" and row.bytes > 1e5}
    assert large == {"all_to_all", "gradients", "weights"}
    for one, other in zip(alone.memories, wide.memories, strict=True):
        # Experts are divided over these devices already, and over fsdp their states alone.
        assert one.weight_bytes < other.weight_bytes
        assert one.state_bytes == pytest.approx(other.state_bytes, rel=0.01)
    footprint = next(iter(alone.costs.values())).footprint
    assert 0 < footprint.expert_bytes < footprint.weight_bytes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_no_forward_pass_is_ready_beside_a_backward_pass_with_one_chunk(schedule: str) -> None:
    with pytest.raises(ConfigError, match="no forward pass is ready when a backward pass starts"):
        _of_experts(schedule=schedule, exchanges=True)


def test_one_stage_has_a_forward_pass_beside_each_backward_pass_but_the_last() -> None:
    """As Megatron-Core does without pipelining: all-to-alls run beside the other pass."""
    stage = partial(_of_experts, "pipe=1,expert=8", schedule=None, fidelity=Fidelity.LIBRARY)
    alone, beside = stage(), stage(exchanges=True)
    hidden = beside.times.hidden_ps[0]
    forwards = [action for action in hidden if action.kind is Pass.FORWARD]
    assert len(hidden) == 2 * len(forwards) > 0
    assert beside.times.finish_ps == alone.times.finish_ps - sum(hidden.values())


def test_all_to_alls_of_a_mesh_without_experts_are_not_hidden() -> None:
    with pytest.raises(ConfigError, match="no all-to-alls without an axis expert"):
        _of_experts("pipe=2,fsdp=4", schedule="interleaved:2", exchanges=True)


def test_shared_experts_of_a_model_without_any_are_refused() -> None:
    with pytest.raises(ConfigError, match="llama3-8b has no shared experts"):
        predict_pipeline(options(overlap={"experts": True}))
