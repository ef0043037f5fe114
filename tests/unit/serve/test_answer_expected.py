"""Answers about engines state how far predictions of published points were off."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from hespas.serve.answer import published_errors

POINTS = Path(__file__).resolve().parents[3] / "docs" / "data" / "serving_points.json"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_errors_are_medians_of_all_points_of_the_engine(engine: str) -> None:
    points = [row for row in json.loads(POINTS.read_text())["points"] if row["engine"] == engine]
    stated = published_errors(engine, "H100_80GB")
    assert stated is not None
    assert stated.points == len(points)
    assert stated.ttft == pytest.approx(median(abs(row["ttft_error"]) for row in points))
    assert stated.tpot == pytest.approx(median(abs(row["tpot_error"]) for row in points))


def test_parts_without_a_published_point_are_known() -> None:
    stated = published_errors("sglang", "A100_SXM_80GB")
    assert stated is not None
    assert "H100_80GB" in stated.parts
    assert "A100_SXM_80GB" not in stated.parts
