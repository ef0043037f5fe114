from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hespas.evidence.validate.every import PredictedRow, RowAnswer
from hespas.evidence.validate.measurements import read_rows
from hespas.evidence.validate.tables import every_json, every_text

FIRST, SECOND, THIRD = read_rows()[:3]
DONE = PredictedRow(
    row=replace(FIRST, published_s=2.0),
    answer=RowAnswer(
        predicted_s=2.2, exposed_s=0.25, held_by="compiled", peak_bytes=7, assumptions=("x",)
    ),
    reason="",
    cpu_s=90.0,
    memory_bytes=10**9,
)
FUSED = PredictedRow(
    row=replace(SECOND, published_s=2.0, node="TPUv5e", devices=256),
    answer=RowAnswer(predicted_s=1.4, held_by="fused"),
    reason="compiling takes more than 600 s of CPU time",
    cpu_s=600.0,
    memory_bytes=10**9,
)
FAILED = PredictedRow(row=THIRD, answer=None, reason="no recipe", cpu_s=0.0, memory_bytes=0)
ROWS = (DONE, FUSED, FAILED)


def written() -> dict[str, Any]:
    return json.loads(json.dumps(every_json(ROWS)))


def test_rows_have_what_is_documented() -> None:
    first, _, failed = written()["rows"]
    assert first["family"] == FIRST.family
    shown = ("part", "devices", "published_s", "predicted_s", "exposed_s", "held_by")
    assert [first[name] for name in shown] == ["A100_SXM_40GB", 4, 2.0, 2.2, 0.25, "compiled"]
    assert first["error"] == pytest.approx(0.1)
    assert first["framework_year"] == 2025
    assert (first["cpu_s"], first["peak_memory_bytes"]) == (90.0, 7)
    for name in ("predicted_s", "error", "exposed_s", "held_by"):
        assert failed[name] is None
    assert failed["reason"] == "no recipe"


def test_errors_are_summed_up_by_group() -> None:
    summary = written()["summary"]
    assert set(summary) == {"family", "part", "scale", "framework_year", "held_by", "source"}
    assert summary["part"]["TPUv5e"]["largest_error"] == pytest.approx(-0.3)
    assert summary["scale"]["one node"]["predicted"] == 1
    everything = written()["all"]
    assert everything["predicted"] == 2
    assert everything["mean_absolute_error"] == pytest.approx(0.2)


def test_the_text_shows_every_row_and_every_reason() -> None:
    text = every_text(ROWS)
    assert "+10.0 %" in text
    assert "-30.0 %" in text
    assert "1.5 min" in text
    assert "all: 2 steps, mean absolute error 20.0 %, largest -30.0 %" in text
    not_predicted, not_compiled = text.split("Not predicted:")[1].split("Not compiled:")
    assert "no recipe: " in not_predicted
    assert "compiling takes more than 600 s of CPU time: " in not_compiled


def test_rows_of_a_publisher_have_errors_by_source_and_of_memory() -> None:
    row = replace(DONE.row, publisher="torchtitan", framework_year=2024, published_peak_bytes=10)
    done = replace(DONE, row=row)
    text = every_text([done, FUSED])
    assert (
        "source torchtitan 2024: 1 step, mean absolute error 10.0 %, largest +10.0 %; memory 30.0 %"
        in text
    )
    first, second = json.loads(json.dumps(every_json([done, FUSED])))["rows"]
    assert first["memory_error"] == pytest.approx(-0.3)
    assert second["memory_error"] is None


def test_nothing_predicted_is_said() -> None:
    assert "all: none is predicted" in every_text([FAILED])
