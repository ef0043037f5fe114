"""Simulators end with the command that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulators import program_file

SIMULATOR = """
import os, time
open(os.path.join(os.path.dirname(__file__), "started"), "a").write(f"{os.getpid()}\\n")
time.sleep(60)
"""
PROGRAM = Path("examples/attention_block.mlir").absolute()


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_simulator_ends_with_its_command(
    tmp_path: Path, number: signal.Signals, threads: str
) -> None:
    hardware = {
        "array_rows": 128,
        "array_columns": 128,
        "clock_hz": 940e6,
        "memory_bandwidth": 900e9,
        "vector_flops": 4e12,
        "binary": program_file(tmp_path / "simulator", SIMULATOR),
        "arguments": ["{workload}", "{rows}", "{dataflow}"],
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"perf_estimator": {"method": "cocossim", "hardware": hardware}}))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = ["estimate", str(config), "--mlir_file", str(PROGRAM), "--disable-cache"]
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("hespas")), *command, "--threads", threads],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
    )
    started = tmp_path / "started"
    end_s = time.monotonic() + 30
    while not started.exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode in (130, 143, -signal.SIGKILL)
    pids = started.read_text().split()
    end_s = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert pids
    assert not [pid for pid in pids if alive(pid)]
    if number is not signal.SIGKILL:
        assert not list(scratch.iterdir())


def alive(pid: str) -> bool:
    try:
        return "Z" not in Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
