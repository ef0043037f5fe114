from __future__ import annotations

from typing import Any

import pytest

from hespas.report.page.comparison import NamedReport, comparison_page
from hespas.report.page.document import Notes
from hespas.report.page.vega import Chart
from step_reports import step_json, step_report


def named(name: str, **changed: Any) -> NamedReport:
    return NamedReport(name=name, report=step_report(**changed))


def waterfalls(*runs: NamedReport) -> list[list[dict[str, Any]]]:
    parts = [part for section in comparison_page(runs).sections[1:] for part in section.parts]
    return [list(part.specification["data"]["values"]) for part in parts if isinstance(part, Chart)]


def slower() -> dict[str, Any]:
    found = step_json()
    more = found["compute_s"] / 2
    kinds = [dict(row) for row in found["kinds"]]
    kinds[0]["time_s"] += more
    return {
        "compute_s": found["compute_s"] + more,
        "step_time_s": found["step_time_s"] + more,
        "kinds": kinds,
    }


def test_a_waterfall_ends_where_the_second_one_is() -> None:
    for bars in waterfalls(named("a"), named("b", **slower())):
        first, *steps, last = bars
        assert first["kind"] == last["kind"] == "total"
        at = first["end"]
        for bar in steps:
            assert bar["start"] == pytest.approx(at, rel=1e-4)
            at = bar["end"]
        assert at == pytest.approx(last["end"], rel=1e-4)


def test_what_takes_longer_is_named() -> None:
    causes = waterfalls(named("a"), named("b", **slower()))[0]
    assert [bar["name"] for bar in causes if bar["kind"] == "longer"] == ["compute"]


def test_each_is_compared_with_the_first() -> None:
    page = comparison_page([named("a"), named("b", **slower()), named("c")])
    assert [section.title for section in page.sections] == ["Side by side", "a to b", "a to c"]


def test_steps_of_other_work_stand_out() -> None:
    half = step_json()["tokens_per_s"] / 2
    *_, section = comparison_page([named("all"), named("half", tokens_per_s=half)]).sections
    (note,) = [part for part in section.parts if isinstance(part, Notes)]
    assert note.is_warning
    assert "not of the same work" in note.texts[0]
    assert note.texts[0].endswith("a is all, and b half")
