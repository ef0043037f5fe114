"""``hespas study``, ``sweep`` and ``search``: tables, mistakes, kills and what comes after them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from time import sleep
from typing import Any

import pytest

Call = Callable[..., CompletedProcess[str]]


@pytest.fixture
def study(tmp_path: Path, block: Path) -> Path:
    """Return a study of few small candidates, some of which can't be predicted."""
    file = tmp_path / "study.yaml"
    file.write_text(
        f"title: which part\nmodel: {block}\n"
        "cluster: [4xA100_SXM_40GB, 4xH100_80GB, 4xH200_141GB, 4xB200_180GB]\n"
        "algorithm: [ring, direct, auto]\nlaunch_overhead: [1us]\nfidelity: exported\n"
    )
    return file


@pytest.fixture
def small(tmp_path: Path, block: Path) -> Path:
    """Return a study of small candidates that can be predicted."""
    file = tmp_path / "small.yaml"
    file.write_text(
        f"model: {block}\n"
        "cluster: [4xA100_SXM_40GB, 4xH100_80GB, 4xH200_141GB, 4xB200_180GB]\n"
        "algorithm: [ring, direct, auto]\nfidelity: exported\n"
        "where: cluster.devices <= 4 and memory.fits\n"
    )
    return file


def table(call: Call, directory: str) -> list[dict[str, Any]]:
    answer = call("hespas", "study", "table", directory, "--json", "-")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["rows"]


def test_a_study_is_run_and_shown(call: Call, small: Path) -> None:
    ran = call("hespas", "study", "run", small, "-o", "out", "--workers", "2")
    assert ran.returncode == 0, ran.stderr
    assert "Candidates: 12: 12 done" in ran.stdout
    rows = table(call, "out")
    assert len(rows) == 12
    times_s = [row["step_time_s"] for row in rows]
    assert times_s == sorted(times_s)
    assert {row["status"] for row in rows} == {"done"}
    assert rows[0]["candidate"]["cluster"] == "4xB200_180GB"
    best = call("hespas", "study", "best", "out", "--json", "-")
    assert json.loads(best.stdout) == rows[0]
    status = call("hespas", "study", "status", "out")
    assert status.stdout.startswith("finished: 12 candidates, 12 done\n12 predictions in ")
    compared = call("hespas", "study", "compare", "out", "1", "12")
    assert "cluster" in compared.stdout
    assert call("hespas", "study", "compare", "out", "1", "13").returncode == 2
    again = call("hespas", "study", "resume", "out")
    assert again.stdout == ran.stdout


def test_what_is_predicted_is_what_run_predicts(call: Call, small: Path, block: Path) -> None:
    call("hespas", "study", "run", small, "-o", "out", "--workers", "2")
    row = table(call, "out")[3]
    chosen = row["candidate"]
    alone = call(
        *("hespas", "run", block, "--cluster", chosen["cluster"], "--as-exported"),
        *("--algorithm", chosen["algorithm"], "--json", "-"),
    )
    assert json.loads(alone.stdout)["step_time_s"] == row["step_time_s"]


def test_what_cannot_be_predicted_is_in_the_table_with_the_reason(call: Call, study: Path) -> None:
    ran = call("hespas", "study", "run", study, "-o", "out", "--workers", "2")
    assert ran.returncode == 0, ran.stderr
    rows = table(call, "out")
    assert {row["status"] for row in rows} == {"failed"}
    assert "launch_overhead has no effect" in rows[0]["reason"]
    assert call("hespas", "study", "best", "out").returncode == 2


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_the_table_is_exported(call: Call, small: Path, ending: str) -> None:
    call("hespas", "study", "run", small, "-o", "out", "--workers", "2")
    assert call("hespas", "study", "table", "out", "--export", f"t.{ending}").returncode == 0
    lines = Path(f"t.{ending}").read_text().splitlines()
    assert len(lines) == (13 if ending == "csv" else 12)
    if ending == "csv":
        assert lines[0].startswith("candidate.model,candidate.cluster,candidate.algorithm,status")
    else:
        assert [json.loads(line) for line in lines] == table(call, "out")
    wrong = call("hespas", "study", "table", "out", "--export", "t.xlsx")
    assert "no table of the kind '.xlsx'" in wrong.stderr


def test_parquet_names_the_extra_that_it_needs(call: Call, small: Path) -> None:
    call("hespas", "study", "run", small, "-o", "out", "--workers", "2")
    ran = call("hespas", "study", "table", "out", "--export", "t.parquet")
    if ran.returncode:
        assert "hespas[parquet]" in ran.stderr
        assert not Path("t.parquet").exists()
    else:
        assert Path("t.parquet").stat().st_size > 0


def test_mistakes_are_one_line(call: Call, small: Path) -> None:
    Path("wrong.yaml").write_text("model: gemm\nclustre: 4xH100_80GB\n")
    wrong = call("hespas", "study", "run", "wrong.yaml", "-o", "out")
    assert wrong.returncode == 2
    assert "there is no key 'clustre'; did you mean 'cluster'?" in wrong.stderr
    assert not Path("out").exists()
    assert "holds no study" in call("hespas", "study", "table", "nowhere").stderr
    assert "cannot be read" in call("hespas", "study", "run", "no.yaml", "-o", "out").stderr
    call("hespas", "study", "run", small, "-o", "out", "--workers", "2")
    Path("other.yaml").write_text("model: gemm\ncluster: 4xH100_80GB\n")
    other = call("hespas", "study", "run", "other.yaml", "-o", "out")
    assert "out: holds the results of another study" in other.stderr
    dask = call("hespas", "study", "run", small, "-o", "out", "--scheduler", "tcp://a:1")
    assert "--scheduler has no effect without --executor dask" in dask.stderr


def test_a_sweep_and_a_search_need_no_file(call: Call, block: Path) -> None:
    ran = call(
        *("hespas", "sweep", block, "--cluster", "4xA100_SXM_40GB,4xH100_80GB", "-o", "out"),
        *("--fidelity", "exported", "--workers", "2"),
    )
    assert ran.returncode == 0, ran.stderr
    assert len(table(call, "out")) == 2
    wrong = call("hespas", "search", block, "--cluster", "4xH100_80GB", "-o", "other")
    assert "has no mesh to search" in wrong.stderr


def test_a_sweep_without_a_directory_says_where_it_is_kept(
    call: Call, block: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    words = ("hespas", "sweep", block, "--cluster", "4xH100_80GB", "--fidelity", "exported")
    ran = call(*words)
    assert ran.returncode == 0, ran.stderr
    kept = tmp_path / "data" / "hespas" / "searches" / f"{block.stem.replace('_', '-')}-mlir"
    assert f"kept in {kept}-4xh100-80gb-1" in ran.stderr
    again = call(*words)
    assert "-4xh100-80gb-1\n" in again.stderr, "the same sweep goes on"


def start(small: Path, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hespas", "study", "run", str(small), "-o", str(directory)]
    return subprocess.Popen(
        [*command, "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in children.read_text().split()] if children.exists() else []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_kills_at_random_moments_lose_nothing(call: Call, small: Path, tmp_path: Path) -> None:
    call("hespas", "study", "run", small, "-o", "whole", "--workers", "2")
    expected = table(call, "whole")
    drawn, kills = random.Random(1), 0  # noqa: S311 - no secret
    for attempt in range(40):
        running = start(small, tmp_path / "killed")
        # On a machine that has much else to do a run needs longer to come to anything.
        sleep(drawn.uniform(0.4, 1.6) * 1.1**attempt)
        workers = workers_of(running.pid)
        if running.poll() is None and workers and drawn.random() < 0.4:
            os.kill(drawn.choice(workers), signal.SIGKILL)
            kills += 1
        elif running.poll() is None:
            running.kill()
            kills += 1
        if running.wait(timeout=120) == 0:
            break
    assert kills
    assert table(call, "killed") == expected


def test_ctrl_c_says_how_to_go_on(small: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hespas", "study", "run", str(small), "-o"]
    running = subprocess.Popen(
        [*command, str(tmp_path / "cut")], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "cut" / "study.sqlite").exists():
        sleep(0.02)
    # One that comes while a module is imported can get lost in Python: a person tries again.
    for _ in range(60):
        running.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(timeout=1)
            break
    _, said = running.communicate(timeout=60)
    # Python ends by the signal itself where it comes while a class is being made by exec.
    assert running.returncode in {130, -signal.SIGINT}
    assert f"Go on with: hespas study resume {tmp_path / 'cut'}" in said
