"""Simulators and exports end with the command that started them."""

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
FUNCTION = """
import os, signal, time
from pathlib import Path

def step():
    # Libraries in C++ abort, or read invalid memory, where an interrupt is raised inside of them.
    signal.signal(signal.SIGINT, lambda number, frame: os.abort())
    signal.signal(signal.SIGTERM, lambda number, frame: os.abort())
    Path(__file__).with_name("started").write_text(f"{os.getpid()}\\n")
    time.sleep(60)
"""


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
    ends_with_its_command(process, number, tmp_path / "started")
    if number is not signal.SIGKILL:
        assert not list(scratch.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_never_meets_the_code_of_an_export(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("hespas"), "export", "mine:step", "-o", "step.mlir"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
    )
    ends_with_its_command(process, number, tmp_path / "started")
    assert not list(scratch.iterdir())
    assert not (tmp_path / "step.mlir").exists()


def ends_with_its_command(
    process: subprocess.Popen[bytes], number: signal.Signals, started: Path
) -> None:
    """Send a signal to a command once the programs that it starts have written who they are."""
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


def alive(pid: str) -> bool:
    try:
        return "Z" not in Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
