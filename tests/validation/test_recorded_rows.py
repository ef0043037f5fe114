"""The page on recorded steps has the tables of its figures."""

from __future__ import annotations

import json

import recorded_rows


def test_the_page_shows_what_was_recorded() -> None:
    rows = [recorded_rows.Figures(**each) for each in json.loads(recorded_rows.DATA.read_bytes())]
    assert recorded_rows.tables(rows) in recorded_rows.PAGE.read_text()
    assert {row.name for row in rows} == {step.name for step in recorded_rows.STEPS}


def test_time_and_memory_are_near_what_was_published() -> None:
    for each in json.loads(recorded_rows.DATA.read_bytes()):
        row = recorded_rows.Figures(**each)
        assert abs(row.error) < 0.06
        assert row.published_peak_bytes is not None
        assert abs(row.reserved_bytes / row.published_peak_bytes - 1) < 0.03
