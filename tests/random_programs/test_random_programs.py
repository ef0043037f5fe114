"""A short run of programs drawn at random, the same every time, and that laws can be broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings

from hespas.xla.mlir.module import parse_mlir
from random_programs.grammar import Drawn, programs

ROOT = Path(__file__).resolve().parents[2]
SHORT_RUN_PROGRAMS = 6


@settings(max_examples=50)
@given(programs(live=False))
def test_what_is_drawn_is_a_program(drawn: Drawn) -> None:
    parse_mlir(drawn.text.encode(), name="drawn.mlir")


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
