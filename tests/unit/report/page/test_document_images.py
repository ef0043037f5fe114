from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from hespas.errors import ExtraMissingError, OutputError
from hespas.report.page.document import renderer, write_charts
from hespas.report.page.step import step_page
from hespas.report.page.vega import Chart
from step_reports import step_report

PAGE = step_page(step_report())


def charts() -> list[Chart]:
    return [part for section in PAGE.sections for part in section.parts if isinstance(part, Chart)]


def test_every_chart_is_a_file_with_its_title(tmp_path: Path) -> None:
    written = write_charts(PAGE, tmp_path / "new" / "charts", "svg")
    assert [path.name for path in written] == sorted(path.name for path in written)
    assert len(written) == len(charts()) > 0
    for path, chart in zip(written, charts(), strict=True):
        assert f">{escape(chart.title)}<" in path.read_text()


def test_a_png_is_one(tmp_path: Path) -> None:
    first = write_charts(PAGE, tmp_path, "png")[0]
    assert first.read_bytes().startswith(b"\x89PNG")


def test_the_same_charts_are_the_same_bytes(tmp_path: Path) -> None:
    once, again = (write_charts(PAGE, tmp_path / name, "svg") for name in ("a", "b"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


def test_a_file_in_the_directory_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "charts").write_text("")
    with pytest.raises(OutputError, match="the directory cannot be made"):
        write_charts(PAGE, tmp_path / "charts", "svg")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ExtraMissingError, match="drawing charts as pictures"):
        renderer()
