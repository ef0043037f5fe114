"""``hespas measure``: steps on virtual devices of the CPU, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from time import monotonic, sleep
from typing import Any

import pytest

Call = Callable[..., CompletedProcess[str]]

FUNCTION = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def step():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, P("x"))
    weights = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=rows)
    tokens = jax.ShapeDtypeStruct((64,), jnp.int32, sharding=rows)
    def train(weights, unused, tokens):
        return (weights * weights).sum(), weights - 0.1 * jnp.tanh(weights @ weights)[tokens]
    return jax.jit(train, donate_argnums=(0, 1)), (weights, weights, tokens)
"""
LIBRARY = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
LARGE = """
func.func @main(%a: tensor<100000x1000000xf32>) -> tensor<100000x1000000xf32> {
  %0 = stablehlo.add %a, %a : tensor<100000x1000000xf32>
  return %0 : tensor<100000x1000000xf32>
}
"""
SMALL = {
    "layers": 2,
    "vocabulary": 128,
    "embedding": 32,
    "heads": 2,
    "kv_heads": 2,
    "mlp": 64,
    "head_size": 16,
    "sequence": 32,
    "dtype": "f32",
}
SMALL_LLAMA = [f"--set={name}={value}" for name, value in SMALL.items()]
ON_CPU = ("--platform", "cpu", "--steps", "3", "--warm-up", "1")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the directories of processes are made."""
    made = tmp_path / "scratch"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert all(part in line for part in parts), line


def test_a_function_of_ones_own_runs_on_four_devices(call: Call, scratch: Path) -> None:
    Path("mine.py").write_text(FUNCTION)
    shown = answer(call("hespas", "measure", "mine:step", "--devices", "4", *ON_CPU, "--json", "-"))
    assert (shown["devices"], shown["platform"], shown["processes"]) == (4, "cpu", 1)
    assert len(shown["durations_s"]) == shown["steps"] == 3
    assert shown["least_s"] <= shown["p10_s"] <= shown["median_s"] <= shown["p90_s"]
    assert 0 < shown["least_s"] <= shown["most_s"] < 60
    assert 0 < shown["memory_bytes"] < shown["free_memory_bytes"]
    assert shown["predicted"] is None
    assert {"jax", "jaxlib"} <= shown["versions"].keys()
    assert any("virtual" in note for note in shown["notes"])
    assert not list(scratch.iterdir())


def test_a_model_of_the_zoo_is_trained_a_few_steps(call: Call) -> None:
    quick = ("--xla-flag", "xla_backend_optimization_level=0", "--json", "a")
    done = call("hespas", "measure", "llama3-100m", *SMALL_LLAMA, "--devices", "4", *ON_CPU, *quick)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("llama3-100m: one step on 4 x cpu, measured\n  Step time")
    shown = json.loads(Path("a").read_text())
    assert shown["devices"] == 4
    assert any("fsdp=4" in note for note in shown["notes"])


def test_a_partitioned_program_runs_as_it_is(call: Call, block: Path) -> None:
    shown = answer(call("hespas", "measure", block, *ON_CPU, "--json", "-"))
    assert shown["devices"] == 4
    assert "its partitions were compiled as replicas" in shown["notes"]


def test_regions_timed_here_are_held_against_the_whole(call: Call) -> None:
    sizes = [f"--set={name}=64" for name in "mkn"]
    command = ("hespas", "measure", "gemm", *sizes, *ON_CPU, "--method", "xla")
    done = call(*command)
    assert done.returncode == 0, done.stderr
    assert "\nPredicted for this machine's cpu (method xla)" in done.stdout
    shown = answer(call(*command, "--json", "-"))
    predicted = shown["predicted"]
    expected = predicted["step_time_s"] / shown["median_s"] - 1
    assert predicted["error"] == pytest.approx(expected)


def test_two_processes_run_one_program(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    port = free_port()
    command = [sys.executable, "-m", "hespas", "measure", "mine:step", "--devices", "4", *ON_CPU]
    command += ["--coordinator", f"localhost:{port}", "--num-processes", "2", "--time-limit", "90s"]
    processes = [
        subprocess.Popen(
            [*command, "--process-id", str(own), "--json", f"{own}.json"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
        )
        for own in range(2)
    ]
    assert [each.wait() for each in processes] == [0, 0]
    for own in range(2):
        shown = json.loads((tmp_path / f"{own}.json").read_text())
        assert (shown["devices"], shown["processes"]) == (4, 2)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        return bound.getsockname()[1]


def test_a_library_that_the_cpu_lacks_is_named(call: Call, scratch: Path) -> None:
    Path("step.mlir").write_text(LIBRARY)
    done = call("hespas", "measure", "step.mlir", *ON_CPU)
    refused(done, "step.mlir: ", "__cudnn$fmhaSoftmax", "a library that cpu lacks")
    assert not list(scratch.iterdir())


def test_a_step_that_does_not_fit_is_refused_before_it_runs(call: Call) -> None:
    Path("step.mlir").write_text(LARGE)
    done = call("hespas", "measure", "step.mlir", *ON_CPU)
    refused(
        done, "step.mlir: the step needs 745.1 GiB", "are free on each cpu", "give more devices"
    )


def test_a_step_that_hangs_is_ended_and_its_log_is_kept(call: Call, scratch: Path) -> None:
    Path("step.mlir").write_text(LIBRARY)
    done = call("hespas", "measure", "step.mlir", *ON_CPU, "--time-limit", "50ms")
    (kept,) = scratch.iterdir()
    refused(done, str(kept / "log.txt"), "took longer than 0.05 s")


def test_there_is_no_gpu_in_the_cpu(call: Call, block: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = call("hespas", "measure", block, "--cluster", "4xA100_SXM_40GB", "--csv", "steps.csv")
    refused(done, "there is no GPU here", "--platform cpu for virtual devices")
    assert not Path("steps.csv").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--cluster", "4xA100_SXM_40GB", "--platform", "cpu"], "--platform cpu would run"),
        (["--fidelity", "fused"], "--fidelity has no effect on a measurement"),
        (["--csv", "steps.csv"], "--csv names the system and its node, and --cluster is not given"),
        (["--cluster", "4xA101"], "A101"),
        (["--steps", "0"], "--steps is 0"),
        (["--process-id", "1"], "--process-id has no effect without --coordinator"),
        (["--json", "none/here.json"], "none"),
        (["--time-limit", "0s"], "--time-limit is '0s'; give more than 0"),
    ],
)
def test_options_are_checked_before_anything_runs(
    call: Call, block: Path, words: list[str], complaint: str
) -> None:
    refused(call("hespas", "measure", block, *words), complaint)
    assert not Path("steps.csv").exists()


def test_a_table_that_is_none_is_refused_before_anything_runs(call: Call, block: Path) -> None:
    Path("steps.csv").write_text("not,a,table\n")
    done = call("hespas", "measure", block, "--cluster", "4xA100_SXM_40GB", "--csv", "steps.csv")
    refused(done, "steps.csv:1", "has no column")


def test_an_interrupted_measurement_leaves_nothing(tmp_path: Path, block: Path) -> None:
    command = [sys.executable, "-m", "hespas", "measure", block, "--platform", "cpu"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*command, "--steps", "100000"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_s = monotonic() + 60
    while not list(tmp_path.glob("*/log.txt")) and monotonic() < until_s:
        sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; nothing was left half-written" in said
    assert not list(tmp_path.iterdir())
