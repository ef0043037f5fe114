"""A short run of programs drawn at random, the same every time, and that laws can be broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from hespas.xla.mlir.module import parse_mlir
from random_programs import __main__ as runner
from random_programs.__main__ import Tally
from random_programs.grammar import Drawn, programs

ROOT = Path(__file__).resolve().parents[2]
SHORT_RUN_PROGRAMS = 6


@settings(max_examples=50)
@given(programs(live=False))
def test_what_is_drawn_is_a_program(drawn: Drawn) -> None:
    parse_mlir(drawn.text.encode(), name="drawn.mlir")


def test_a_smaller_program_is_looked_for_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[Drawn] = []

    def broken(drawn: Drawn) -> str:
        spent.append(drawn)
        return f"{len(drawn.text)} characters"

    # A clock that goes on by a second with each program.
    monkeypatch.setattr(runner.time, "process_time", lambda: float(len(spent)))
    monkeypatch.setattr(runner, "_SHRINK_S", 5.0)
    failure = runner.hold_laws({"none": broken}, Tally(), seed_of=(0, 0), count=9, end_s=100.0)
    assert failure is not None
    assert failure[1] == f"none: {len(failure[0].text)} characters"
    assert len(spent) <= 1 + 5 + 1


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    words = ("--programs", str(SHORT_RUN_PROGRAMS), "--minutes", "20", "--seed", "0")
    done = subprocess.run(
        [sys.executable, "-m", "random_programs", *words, "--failures", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SHORT_RUN_PROGRAMS:8}       0" in done.stdout
