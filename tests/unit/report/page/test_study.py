from __future__ import annotations

from typing import Any

import pytest

from hespas.report.page.document import Cell, Page, Table
from hespas.report.page.scaling import candidates_of, scaling_charts
from hespas.report.page.study import study_page
from hespas.report.page.vega import Chart
from hespas.study.rows import Row
from small_studies import small_study, study_rows


def page(found: tuple[Row, ...] | None = None) -> Page:
    return study_page(small_study(found))


def chart(title: str) -> list[dict[str, Any]]:
    (found,) = [
        part
        for section in page().sections
        for part in section.parts
        if isinstance(part, Chart) and part.title.startswith(title)
    ]
    return list(found.specification["data"]["values"])


def test_the_front_is_what_nothing_is_better_than_in_both() -> None:
    front = {each["name"]: each["front"] for each in chart("tokens/s/device against peak memory")}
    assert front == {
        "8xH100_80GB, fsdp=8": "on the front",
        "8xH100_80GB, fsdp=4, tp=2": "on the front",
        "16xH100_80GB, fsdp=16": "behind it",
        "16xH100_80GB, fsdp=8, tp=2": "behind it",
    }


def test_every_candidate_is_in_the_table_with_a_place_to_link_to() -> None:
    (table,) = [
        part
        for section in page().sections
        for part in section.parts
        if isinstance(part, Table) and part.caption == "Candidates, best first"
    ]
    assert len(table.rows) == len(study_rows())
    ranks = [row[0] for row in table.rows if isinstance(row[0], Cell)]
    assert [rank.anchor for rank in ranks] == [f"candidate-{n}" for n in range(7)]
    assert table.columns[:4] == ("Rank", "cluster", "mesh.fsdp", "mesh.tp")


def test_reasons_that_are_alike_count_as_one() -> None:
    found = {each["reason"]: each["count"] for each in chart("Pruned and failed")}
    assert found == {"needs .. GB of .. GB": 2, "the compiler crashed": 1}


def test_the_bars_add_up_to_the_steps() -> None:
    bars = chart("Computation and exposed communication")
    whole: dict[str, float] = {}
    for each in bars:
        whole[each["name"]] = whole.get(each["name"], 0.0) + each["time"]
    assert list(whole.values()) == pytest.approx([1.0, 1.1, 1.2, 1.3], rel=1e-4)


def test_scaling_takes_the_fastest_of_each_number_of_devices() -> None:
    throughput, efficiency = scaling_charts(candidates_of(study_rows()))
    values = throughput.specification["data"]["values"]
    assert [each["devices"] for each in values] == [8, 16]
    assert values[1]["efficiency"] == pytest.approx(100 / 1.2, rel=1e-3)
    assert efficiency.specification["data"]["values"] == values


def test_one_number_of_devices_has_no_curve() -> None:
    assert not list(scaling_charts(candidates_of(study_rows()[:2])))


def test_a_study_without_answers_has_a_page() -> None:
    shown = [section.title for section in page(study_rows()[4:]).sections if section.parts]
    assert shown == ["The answer", "All candidates", "What was left out"]
