"""``hespas explain`` and ``hespas compare``, as people call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

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
