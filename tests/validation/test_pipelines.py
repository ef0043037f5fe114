"""The page of pipelines and its picture are what the scripts make."""

from __future__ import annotations

import json

import pytest

import pipeline_schedules
import pipelines


def test_the_picture_is_that_of_the_schedules() -> None:
    assert pipeline_schedules.PICTURE.read_text() == pipeline_schedules.picture()


def test_the_page_shows_what_was_recorded() -> None:
    rows = json.loads(pipelines.DATA.read_text())
    text = pipelines.PAGE.read_text()
    assert pipelines.with_table(text, rows) == text
    assert [row["name"] for row in rows] == [step.name for step in pipelines.STEPS]


def test_the_closed_form_is_what_was_recorded() -> None:
    rows = json.loads(pipelines.DATA.read_text())
    for row, step in zip(rows, pipelines.STEPS, strict=True):
        assert row["closed_form_s"] == pytest.approx(pipelines.closed_form_s(step))
