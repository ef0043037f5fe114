"""``hespas explain`` and ``hespas compare``, as people call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hespas.prediction.figures.schema import SCHEMA_VERSION
from step_reports import EMPTY_RESULT

Call = Callable[..., CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "examples" / "attention_block.mlir")
ON = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU", "--fidelity", "exported")


@pytest.fixture
def results(call: Call, tmp_path: Path) -> tuple[Path, Path]:
    files = (tmp_path / "a.json", tmp_path / "b.json")
    for file, more in zip(files, ((), ("--memory-bandwidth", "3110GB/s")), strict=True):
        assert call("hespas", "run", PROGRAM, *ON, *more, "--json", str(file)).returncode == 0
    return files


def test_a_comparison_says_what_twice_the_bandwidth_changes(
    call: Call, results: tuple[Path, Path]
) -> None:
    done = call("hespas", "compare", *map(str, results))
    assert done.returncode == 0
    assert "option memory_bandwidth" in done.stdout
    found = json.loads(call("hespas", "compare", *map(str, results), "--json").stdout)
    explained = json.loads(call("hespas", "explain", PROGRAM, *ON, "--json").stdout)
    doubled = next(
        row for row in explained["explain"] if row["change"] == "memory bandwidth doubled"
    )
    assert found["step"]["b_s"] == doubled["step_time_s"]
    assert -found["step"]["share"] == pytest.approx(doubled["gain"])
    assert sum(row["difference_s"] for row in found["parts"]) == pytest.approx(
        found["step"]["difference_s"]
    )


@pytest.mark.parametrize(
    ("second", "limit", "code"),
    [(1.031, "3%", 3), (1.029, "3%", 0), (1.029, "2.5 %", 3), (0.5, "0%", 0), (1.0, "0%", 0)],
)
def test_a_step_that_is_longer_by_more_than_the_limit_has_its_own_code(
    call: Call, tmp_path: Path, second: float, limit: str, code: int
) -> None:
    files: list[str] = []
    for name, step_s in (("a", 1.0), ("b", second)):
        file = tmp_path / f"{name}.json"
        times = {"step_time_s": step_s, "compute_s": step_s, "exposed_communication_s": 0.0}
        file.write_text(json.dumps({**EMPTY_RESULT, "schema_version": SCHEMA_VERSION, **times}))
        files.append(str(file))
    done = call("hespas", "compare", *files, "--fail-above", limit)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1].startswith("fails: " if code else "passes: ")
    found = json.loads(call("hespas", "compare", *files, "--fail-above", limit, "--json").stdout)
    assert found["fails"] is (code == 3)
    assert found["fail_above"] == pytest.approx(float(limit.rstrip("% ")) / 100)
    assert call("hespas", "compare", *files).returncode == 0


@pytest.mark.parametrize("limit", ["3", "0.03", "-3%", "%", "nan%"])
def test_a_limit_that_is_no_share_is_refused(call: Call, limit: str) -> None:
    done = call("hespas", "compare", "a.json", "b.json", f"--fail-above={limit}")
    assert done.returncode == 2
    assert "give per cent, as in 3%" in done.stderr


def test_a_file_that_is_no_result_is_refused_in_one_line(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    file.write_text("{}")
    done = call("hespas", "compare", str(file), str(file))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "this is no result of a run" in done.stderr


def test_a_file_that_is_not_there_is_refused(call: Call) -> None:
    done = call("hespas", "compare", "absent.json", "absent.json")
    assert done.returncode == 2
    assert "absent.json" in done.stderr


def test_explaining_needs_what_a_run_needs(call: Call) -> None:
    done = call("hespas", "explain", PROGRAM, "--node", "A100_SXM_40GB")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
