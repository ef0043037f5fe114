"""The page on recorded steps has the tables of its figures."""

from __future__ import annotations

import json

import recorded_rows


def test_the_page_shows_what_was_recorded() -> None:
    rows = [recorded_rows.Figures(**each) for each in json.loads(recorded_rows.DATA.read_bytes())]
    assert recorded_rows.tables(rows) in recorded_rows.PAGE.read_text()
    assert {row.name for row in rows} == {step.name for step in recorded_rows.STEPS}


MEMORY_ERRORS = {"Llama 3.1 8B, float8": 0.05}
"""Of what is reserved; 3 % where a row is not named."""


def test_time_and_memory_are_near_what_was_published() -> None:
    for each in json.loads(recorded_rows.DATA.read_bytes()):
        row = recorded_rows.Figures(**each)
        assert abs(row.error) < 0.065
        if row.published_peak_bytes is None:
            continue
        memory_error = abs(row.reserved_bytes / row.published_peak_bytes - 1)
        assert memory_error < MEMORY_ERRORS.get(row.name, 0.03)
