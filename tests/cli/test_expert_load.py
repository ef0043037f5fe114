"""How many tokens each expert gets decides what waits for whom, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from expert_programs import experts_on_four, product_alone
from programs import vector_main

Call = Callable[..., CompletedProcess[str]]


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "experts.mlir"
    path.write_text(experts_on_four(), encoding="utf-8")
    return path


def _run(call: Call, program: Path, *options: str) -> Any:
    base = ("hespas", "run", program, "--cluster", "4xH100_80GB", "--fidelity", "exported")
    completed = call(*base, *options, "--json", "-")
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def _load(directory: Path, numbers: list[float]) -> str:
    path = directory / "load.json"
    path.write_text(json.dumps(numbers), encoding="utf-8")
    return str(path)


def test_a_skewed_router_takes_longer(call: Call, layer: Path, tmp_path: Path) -> None:
    said = _run(call, layer)
    even = _run(call, layer, "--expert-load", "uniform")
    skewed = _run(call, layer, "--expert-load", _load(tmp_path, [100, *[1] * 15]))
    assert even["step_time_s"] == said["step_time_s"] < skewed["step_time_s"]
    assert any("the busiest gets 3.5" in note for note in skewed["assumptions"])


@pytest.mark.parametrize(
    ("program", "load", "message"),
    [
        (experts_on_four(), "[1, 1, 1]", "--expert-load lists 3 experts, and the program has 16"),
        (product_alone(), "[1, -1, 1, 1]", "expert 1 has -1"),
        (vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"), "[1, 1]", "has no effect"),
    ],
)
def test_a_load_that_does_not_fit_is_one_line(
    call: Call, tmp_path: Path, program: str, load: str, message: str
) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(program, encoding="utf-8")
    file = _load(tmp_path, json.loads(load))
    base = ("--cluster", "4xH100_80GB", "--fidelity", "exported", "--expert-load", file)
    # A program of one device says so itself, where a cluster has several.
    alone = ("--node", "H100_80GB", *base[2:])
    completed = call("hespas", "run", path, *(base if "ragged_all" in program else alone))
    assert completed.returncode == 2
    assert message in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
