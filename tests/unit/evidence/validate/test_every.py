"""Rows, predicted by a process that a script plays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.base.cache import ContentCache
from hespas.evidence.validate.every import PredictedRow, RowOptions, predict_rows, row_cache
from hespas.evidence.validate.measurements import Row

Play = Callable[[str], None]
HOW = RowOptions(cpu_limit_s=60)
ROW = Row(
    family="a",
    workload="a.mlir",
    options={},
    xla_flags={},
    node="H100_80GB",
    system="8xH100_80GB",
    devices=8,
    framework_year=2025,
    published_s=2.0,
    resolution_s=0.0,
    missing="",
    source="a page",
    note="",
    location="t.csv:2",
)
ANSWER = '{"predicted_s": 3.0, "held_by": "compiled", "cpu_s": 5.0, "memory_bytes": 7}'


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Give a function that puts a shell script in the place of the process for a row."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def put(script: str) -> None:
        file = tmp_path / "row.sh"
        file.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\n{script}\n")
        file.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(file))

    return put


def calls(directory: Path) -> int:
    log = directory / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0


def predicted(rows: list[Row], cached: ContentCache, how: RowOptions = HOW) -> list[PredictedRow]:
    return list(predict_rows(rows, how, cached=cached, advance=lambda _: None))


def test_a_row_is_predicted_once(play: Play, tmp_path: Path) -> None:
    play(f"echo '{ANSWER}' > answer.json")
    cached = row_cache(tmp_path / "cache")
    first, second = predicted([ROW], cached), predicted([ROW], cached)
    assert first == second
    assert first[0].error == pytest.approx(0.5)
    assert (first[0].cpu_s, first[0].memory_bytes, first[0].reason) == (5.0, 7, "")
    assert calls(tmp_path) == 1
    predicted([ROW], cached, replace(HOW, method="roofline"))
    assert calls(tmp_path) == 2


def test_published_times_are_not_in_the_key(play: Play, tmp_path: Path) -> None:
    play(f"echo '{ANSWER}' > answer.json")
    cached = row_cache(tmp_path / "cache")
    predicted([ROW], cached)
    (again,) = predicted([replace(ROW, published_s=3.0)], cached)
    assert again.error == 0.0
    assert calls(tmp_path) == 1


def test_a_row_that_fails_does_not_stop_the_others(play: Play, tmp_path: Path) -> None:
    play(f"grep -q b.mlir request.json && exit 3\necho '{ANSWER}' > answer.json")
    rows = [replace(ROW, workload="b.mlir"), ROW, replace(ROW, missing="no recipe")]
    failed, done, missing = predicted(rows, row_cache(tmp_path / "cache"))
    assert failed.answer is None
    assert "the prediction failed with code 3" in failed.reason
    assert done.answer is not None
    assert missing.answer is None
    assert missing.reason == "no recipe"


def test_what_is_not_compiled_is_fused_and_says_why(play: Play, tmp_path: Path) -> None:
    fused = ANSWER.replace("compiled", "fused")
    play(
        f"grep -q compiled request.json || {{ echo '{fused}' > answer.json; exit; }}\n"
        """echo '{"refused": "the compiler for H100 was ended by SIGXCPU: x"}' > answer.json"""
    )
    cached = row_cache(tmp_path / "cache")
    (row,) = predicted([ROW], cached)
    assert row.answer is not None
    assert row.answer.held_by == "fused"
    assert row.reason == "compiling takes more than 60 s of CPU time"
    assert calls(tmp_path) == 2
    assert predicted([ROW], cached) == [row]
    assert calls(tmp_path) == 2
    # Under the same limits it isn't tried again; under wider ones it is.
    predicted([ROW], cached, replace(HOW, method="roofline"))
    assert calls(tmp_path) == 3
    predicted([ROW], cached, replace(HOW, cpu_limit_s=120))
    assert calls(tmp_path) == 5


def test_a_process_that_takes_too_long_is_ended(play: Play, tmp_path: Path) -> None:
    play("exec sleep 30")
    how = replace(HOW, cpu_limit_s=0.02)
    (row,) = predicted([ROW], row_cache(tmp_path / "cache"), how)
    assert row.answer is None
    assert "more than 0.02 s" in row.reason


def test_the_cheapest_is_first(play: Play, tmp_path: Path) -> None:
    play(
        f"grep -o '[ab].mlir' request.json >> {tmp_path}/order\n"
        f"grep -q b.mlir request.json && echo '{ANSWER.replace('5.0', '1.0')}' > answer.json\n"
        f"grep -q a.mlir request.json && echo '{ANSWER}' > answer.json\nexit 0"
    )
    cached = row_cache(tmp_path / "cache")
    rows = [ROW, replace(ROW, workload="b.mlir")]
    assert [each.cpu_s for each in predicted(rows, cached)] == [5.0, 1.0]
    predicted(rows, cached, replace(HOW, method="roofline"))
    assert (tmp_path / "order").read_text().split() == ["a.mlir", "b.mlir", "b.mlir", "a.mlir"]


def test_rows_with_the_same_inputs_are_predicted_once(play: Play, tmp_path: Path) -> None:
    play(f"echo '{ANSWER}' > answer.json")
    rows = [ROW, replace(ROW, published_s=3.0, source="another page"), replace(ROW, missing="no")]
    done: list[int] = []
    found = predict_rows(rows, HOW, cached=row_cache(tmp_path / "cache"), advance=done.append)
    assert [row.row for row in found] == rows
    assert [row.error for row in found] == [pytest.approx(0.5), 0.0, None]
    assert sorted(done) == [1, 2]
    assert calls(tmp_path) == 1


def test_two_rows_run_beside_each_other(play: Play, tmp_path: Path) -> None:
    # Each waits until the other has begun.
    play(
        f"name=$(grep -o '[ab].mlir' request.json)\ntouch {tmp_path}/$name.begun\n"
        f"until [ -e {tmp_path}/a.mlir.begun ] && [ -e {tmp_path}/b.mlir.begun ]; do sleep .01; "
        f"done\necho '{ANSWER}' > answer.json"
    )
    rows = [ROW, replace(ROW, workload="b.mlir")]
    how = replace(HOW, cpu_limit_s=5, at_once=2)
    assert all(row.answer for row in predicted(rows, row_cache(tmp_path / "cache"), how))


def test_a_row_without_a_compiler_that_takes_too_long_says_so(play: Play, tmp_path: Path) -> None:
    play("exec sleep 30")
    row = replace(ROW, fidelity="library")
    (found,) = predicted([row], row_cache(tmp_path / "cache"), replace(HOW, cpu_limit_s=0.02))
    assert found.reason == "predicting takes more than 0.02 s of CPU time"
