from __future__ import annotations

import pytest

from hespas.report.page.kernels import stage_memory, stage_sections, stage_times
from hespas.report.page.step import step_page
from hespas.report.page.vega import Chart
from step_reports import pipeline_step, step_report


def test_a_step_of_one_program_has_no_stages() -> None:
    assert stage_sections(step_report()) == ()


def test_what_a_stage_does_adds_up_to_the_step() -> None:
    report = pipeline_step()
    assert report.pipeline is not None
    for row in report.pipeline.stages:
        assert sum(stage_times(row).values()) == pytest.approx(report.step_time_s)
        assert sum(stage_memory(row).values()) == row.peak_memory_bytes


def test_every_stage_is_drawn() -> None:
    report = pipeline_step()
    (section,) = stage_sections(report)
    assert section in step_page(report).sections
    charts = [part for part in section.parts if isinstance(part, Chart)]
    assert len(charts) == 2
    for chart in charts:
        values = dict(chart.specification)["data"]["values"]
        assert {row["stage"] for row in values} == {"stage 0", "stage 1"}


def test_a_device_of_unknown_memory_has_no_line() -> None:
    (section,) = stage_sections(pipeline_step(memory_capacity_bytes=None))
    memory = [part for part in section.parts if isinstance(part, Chart)][-1]
    assert "capacity" not in memory.description
    assert len(dict(memory.specification)["layer"]) == 1
