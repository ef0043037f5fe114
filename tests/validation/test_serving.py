"""The page of serving is what was recorded."""

from __future__ import annotations

import json

import serving


def test_the_page_shows_what_was_recorded() -> None:
    rows = json.loads(serving.DATA.read_text())
    text = serving.PAGE.read_text()
    assert serving.with_tables(text, rows) == text
    assert len(rows) == 24


def test_a_rate_twice_as_high_is_half_the_time() -> None:
    fixed = {"made": 128, "predicted": 200.0, "value": 100.0}
    assert serving.error(fixed) == -0.5
    assert serving.error({**fixed, "made": 1}) == 1.0
