"""The table of a recorded pipeline's stages."""

from __future__ import annotations

import pytest

from hespas import predict
from hespas.frontend.load import load_per_device
from hespas.prediction.figures.schema import RunReport
from hespas.program.recorded import encode_recorded
from hespas.report.answers import full_report
from hespas.report.page.kernels import stage_sections
from hespas.report.run import run_text
from recorded_stages import recorded_pipeline


def report_of(schedule: str, stages: int, micro_batches: int) -> RunReport:
    """Return the report of a recorded pipeline."""
    step = recorded_pipeline(schedule, stages=stages, micro_batches=micro_batches)
    program = load_per_device(encode_recorded(step), name="step.json").program
    return full_report(predict(program, cluster=f"{stages}xH100_80GB", model="hespas"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8)])
def test_the_bubble_is_the_closed_form(schedule: str, stages: int, micro_batches: int) -> None:
    pipeline = report_of(schedule, stages, micro_batches).pipeline
    assert pipeline is not None
    ideal = (stages - 1) / (micro_batches + stages - 1)
    assert pipeline.ideal_bubble == pytest.approx(ideal)
    assert pipeline.bubble == pytest.approx(ideal, abs=0.03)


def test_times_of_each_stage_add_up_to_the_step() -> None:
    report = report_of("1f1b", 4, 8)
    assert report.pipeline is not None
    for row in report.pipeline.stages:
        times_s = (
            *(row.compute_s, row.exposed_communication_s, row.exposed_host_transfer_s),
            *(row.launch_wait_s, row.waiting_s, row.sums_s, row.end_s),
        )
        assert sum(times_s) == pytest.approx(report.step_time_s, rel=1e-6)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_waiting_for_messages_of_stages_is_no_exposed_communication(schedule: str) -> None:
    """Nothing but messages is communicated: all that the last stage waits is for others."""
    report = report_of(schedule, 2, 4)
    assert report.exposed_communication_s == pytest.approx(0, abs=1e-12)
    parts_s = (report.compute_s, report.stage_wait_s, report.launch_wait_s)
    assert sum(parts_s) == pytest.approx(report.step_time_s, rel=1e-9)
    assert report.stage_wait_s > 0.1 * report.step_time_s
    assert report.bound.exposed_communication == pytest.approx(0, abs=1e-12)
    assert report.bound.stage_wait == pytest.approx(report.stage_wait_s / report.step_time_s)
    for row in report.communication:
        assert (row.exposed_s > 0) == (row.kind == "idle")
    assert sum(row.exposed_s for row in report.phases) == 0


def test_a_backward_pass_takes_twice_a_forward_pass() -> None:
    report = report_of("1f1b", 2, 4)
    assert report.pipeline is not None
    for row in report.pipeline.stages:
        assert row.backward_s == pytest.approx(2 * row.forward_s)
        assert row.compute_s == pytest.approx(4 * (row.forward_s + row.backward_s))


def test_text_and_page_have_the_stages() -> None:
    report = report_of("1f1b", 2, 4)
    assert "Pipeline: 2 stages, 1f1b, 4 micro-batches; bubble" in run_text(report)
    [section] = stage_sections(report)
    assert section.title == "Stages"
    assert max(row.gain for row in report.explain) > 0
    assert report.expected_error is not None
    assert report.expected_error.mean_absolute is None
