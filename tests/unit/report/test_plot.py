"""Charts for notebooks, and tables for pandas."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import hespas
from hespas.errors import ConfigError, ToolError
from hespas.report.answers import Answer, full_report
from hespas.report.plot import STUDY_PLOTS, plot_step, plot_study
from small_studies import small_study
from step_reports import step_report


@pytest.fixture(scope="module")
def prediction() -> Answer:
    return hespas.predict("examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU")


@pytest.mark.parametrize(
    "what", ["step", "timeline", "kernels", "communication", "memory", "changes"]
)
def test_each_plot_has_its_section_alone(what: str) -> None:
    plot = plot_step(step_report(), what)
    assert 1 <= len(plot.page.sections) <= 3
    assert plot.page.sections[0].parts


def test_a_notebook_gets_a_frame_that_can_reach_nothing(prediction: Answer) -> None:
    shown: str = getattr(prediction.plot(), "_repr_html_")()  # noqa: B009 - as notebooks do
    assert shown.startswith("<iframe")
    assert 'sandbox="allow-scripts"' in shown
    assert "allow-same-origin" not in shown
    assert "default-src &#x27;none&#x27;" in shown


def test_a_plot_is_saved_as_a_page(prediction: Answer, tmp_path: Path) -> None:
    prediction.plot("memory").save(tmp_path / "memory.html")
    assert (tmp_path / "memory.html").read_text().startswith("<!DOCTYPE html>")


def test_another_plot_is_refused_with_the_nearest(prediction: Answer) -> None:
    with pytest.raises(ConfigError, match="memory"):
        prediction.plot("memry")
    with pytest.raises(ConfigError, match="nothing to draw of stages"):
        plot_step(full_report(prediction), "stages")


def test_a_study_is_drawn() -> None:
    drawn = [what for what in STUDY_PLOTS if plot_study(small_study(), what).page.sections]
    assert "trade-offs" in drawn
    assert "table" in drawn


def test_a_table_is_a_frame_where_pandas_is(
    prediction: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ToolError, match="pandas is not installed"):
        prediction.to_frame()
    stub = ModuleType("pandas")
    stub.__dict__["DataFrame"] = list
    monkeypatch.setitem(sys.modules, "pandas", stub)
    assert prediction.to_frame("kinds") == prediction.rows("kinds")
