"""The check of pull requests that docs show, by its steps."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def _steps() -> list[list[str]]:
    text = (ROOT / "docs/how-to/where-you-work.md").read_text()
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    steps = yaml.safe_load(found[1])["jobs"]["step"]["steps"]
    return [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("hespas")]


def _run(words: list[str], directory: Path) -> int:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=directory, check=False, capture_output=True).returncode


def test_a_slower_step_fails_the_check(tmp_path: Path) -> None:
    run, compare = _steps()
    program = (ROOT / "examples/attention_block.mlir").read_bytes()
    (tmp_path / "step.mlir").write_bytes(program)
    # The example is a program of four devices.
    run = [word.replace("8xH100_80GB", "4xH100_80GB") for word in run]
    assert _run(run, tmp_path) == 0
    (tmp_path / "now.json").rename(tmp_path / "baseline.json")
    assert _run(run, tmp_path) == 0
    assert _run(compare, tmp_path) == 0
    now = json.loads((tmp_path / "now.json").read_text())
    now["step_time_s"] *= 1.05
    (tmp_path / "now.json").write_text(json.dumps(now))
    assert _run(compare, tmp_path) == 3
