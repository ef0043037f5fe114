"""The page on recorded steps has the tables of its figures."""

from __future__ import annotations

import json

import torch_steps


def test_the_page_shows_what_was_recorded() -> None:
    rows = [torch_steps.Figures(**each) for each in json.loads(torch_steps.DATA.read_bytes())]
    assert torch_steps.tables(rows) in torch_steps.PAGE.read_text()
    assert {row.name for row in rows} == {step.name for step in torch_steps.STEPS}


def test_time_and_memory_are_near_what_was_published() -> None:
    for each in json.loads(torch_steps.DATA.read_bytes()):
        row = torch_steps.Figures(**each)
        assert abs(row.error) < 0.06
        assert row.published_peak_bytes is not None
        assert abs(row.reserved_bytes / row.published_peak_bytes - 1) < 0.03
