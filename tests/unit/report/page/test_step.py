from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hespas.report.page.document import Cards, Notes, Page, Part, Table
from hespas.report.page.step import part_rows, step_page
from hespas.report.page.vega import Chart
from step_reports import step_report


def parts(page: Page) -> list[Part]:
    return [part for section in page.sections for part in section.parts]


def chart(page: Page, title: str) -> dict[str, Any]:
    (found,) = [
        each for each in parts(page) if isinstance(each, Chart) and each.title.startswith(title)
    ]
    return dict(found.specification)


def test_the_parts_add_up_to_the_step() -> None:
    report = step_report()
    rows = part_rows(report)
    assert sum(float(str(row["time_s"])) for row in rows) == pytest.approx(report.step_time_s)
    drawn = chart(step_page(report), "What bounds the step")["data"]["values"]
    assert [row["part"] for row in drawn] == [row["part"] for row in rows]


def test_parts_of_no_share_are_left_out() -> None:
    bound = structs.replace(step_report().bound, other=1e-16)
    rows = part_rows(step_report(bound=bound))
    assert "other" not in [row["part"] for row in rows]


def test_a_rate_of_images_has_a_prefix() -> None:
    page = step_page(step_report(tokens_per_s=None, samples_per_s=42590.0, samples="images"))
    shown = [figure for part in parts(page) if isinstance(part, Cards) for figure in part.figures]
    assert ("Throughput", "42.59 k images/s", "") in shown


def test_every_row_of_communication_is_drawn() -> None:
    report = step_report()
    drawn = chart(step_page(report), "Communication by kind")["data"]["values"]
    assert len(drawn) == 2 * len(report.communication) > 0


def test_the_timeline_ends_with_the_step() -> None:
    report = step_report()
    assert max(row.end_s for row in report.timeline) == pytest.approx(report.step_time_s, rel=1e-3)


def test_a_warning_stands_first() -> None:
    page = step_page(step_report(warnings=["memory is short"]))
    first = page.sections[0].parts[0]
    assert isinstance(first, Notes)
    assert first.is_warning
    assert first.texts == ("memory is short",)


def test_an_answer_without_details_has_a_page_too() -> None:
    page = step_page(step_report(kernels=[], memory=None, timeline=[], peaks=None, explain=[]))
    shown = [section.title for section in page.sections if section.parts]
    assert "Kernels" not in shown
    assert "Memory" not in shown
    assert "What was assumed" in shown


def test_options_are_as_people_write_them() -> None:
    page = step_page(step_report(options={"mesh": "fsdp=4"}))
    tables = [each for each in parts(page) if isinstance(each, Table)]
    assert ("mesh", "fsdp=4") in tables[-1].rows
