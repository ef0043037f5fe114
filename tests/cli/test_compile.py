"""``hespas compile`` as people use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from msgspec.structs import replace

from compilers import RESULT, needs_gpu
from hespas.compile import compiler
from hespas.compile.job import Job
from hespas.program.kernels import decode_kernels

Call = Callable[..., CompletedProcess[str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return a list of what the compilers, which answer at once, were asked for."""
    jobs: list[Job] = []

    def run(job: Job, _: object) -> object:
        jobs.append(job)
        return RESULT

    installed = {"jaxlib": "0.10.2", "jax-cuda12-pjrt": "0.10.2", "libtpu": "0.0.42"}
    monkeypatch.setattr("hespas.compile.packages.installed_version", installed.__getitem__)
    monkeypatch.setattr("hespas.compile.packages.toolkit_version", lambda: "12.9.86")
    monkeypatch.setattr(compiler, "run_job", run)
    return jobs


def test_text_protos_kernels_and_json_are_written(
    call: Call, block: Path, asked: list[Job]
) -> None:
    done = call(
        "hespas", "compile", block, "--target", "H100_SXM", "--cache-dir", "cache",
        "-o", "a.hlo", "--kernels", "a.kernels.json", "--json", "a.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path("a.hlo").read_text() == RESULT.hlo_text
    kernels = decode_kernels(Path("a.kernels.json").read_bytes())
    assert len(kernels.program) == 64
    assert replace(kernels, program="") == RESULT.kernels
    shown = json.loads(Path("a.json").read_text())
    assert shown["memory"]["total_bytes"] == RESULT.memory.total_bytes
    assert shown["kernel_launches"] == 1
    assert "Kernels: 1 launches of 1" in done.stdout
    assert "Note: a note" in done.stdout
    again = call(
        "hespas", "compile", block, "--target", "h100_sxm", "--cache-dir", "cache", "-o", "a.hlo.pb"
    )
    assert again.returncode == 0, again.stderr
    assert Path("a.hlo.pb").read_bytes() == RESULT.hlo_proto
    assert len(asked) == 1


def test_every_option_reaches_the_compiler(call: Call, block: Path, asked: list[Job]) -> None:
    done = call(
        "hespas", "compile", block, "--target", "H100_SXM", "--disable-cache", "--devices", "4",
        "--devices-per-host", "2", "-d", "a-pass, another", "--matmuls", "triton",
        "--no-latency-hiding-scheduler", "--no-pipelined-collectives", "--no-double-buffered-loops",
        "--all-reduce-combine", "1MiB", "--all-gather-combine", "2kB", "--reduce-scatter-combine",
        "3", "--xla-flag", "--xla_x=1=2", "--xla-flag", "xla_y=", "--time-limit", "5ms",
        "--memory-limit", "1GiB", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == RESULT.target
    (job,) = asked
    assert job.request.devices == 4
    flags = job.flags
    assert flags["xla_disable_hlo_passes"] == "a-pass,another"
    assert flags["xla_gpu_enable_triton_gemm"] == "true"
    assert flags["xla_gpu_enable_latency_hiding_scheduler"] == "false"
    assert flags["xla_gpu_enable_pipelined_all_reduce"] == "false"
    assert flags["xla_gpu_enable_while_loop_double_buffering"] == "false"
    assert flags["xla_gpu_all_reduce_combine_threshold_bytes"] == str(2**20)
    assert flags["xla_gpu_all_gather_combine_threshold_bytes"] == "2000"
    assert flags["xla_gpu_reduce_scatter_combine_threshold_bytes"] == "3"
    assert (flags["xla_x"], flags["xla_y"]) == ("1=2", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "H100"], "no target is named 'H100'; did you mean 'H100_SXM' or 'H100_PCIE'"),
        (["--target", "TPUv5e", "--matmuls", "cublas"], "no effect on the compiler of a TPU"),
        (["--target", "TPUv5e", "--kernels", "k.json"], "the kernels of a TPU are not readable"),
        (
            ["--target", "H100_SXM", "-o", "same", "--kernels", "same"],
            "is named for both --output and --kernels",
        ),
        (["--target", "H100_SXM", "-o", "none/a.hlo"], "none is no directory"),
        (["--target", "H100_SXM", "--topology", "2x2"], "a topology is for TPUs"),
        (["--target", "H100_SXM", "--xla-flag", "xla_x"], "write NAME=VALUE"),
        (["--target", "H100_SXM", "--xla-flag", "xla_x=1", "--xla-flag", "xla_x=2"], "twice"),
        (["--target", "H100_SXM", "--all-reduce-combine", "0"], "not a number of bytes"),
        (["--target", "H100_SXM", "--time-limit", "0"], "--time-limit is '0'; give more than 0"),
        (["--target", "H100_SXM", "--devices", "0"], "0 devices are asked for"),
        (["--target", "H100_SXM", "--disable-cache", "--cache-dir", "x"], "drop one"),
        ([], "Missing option '--target'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    call: Call, block: Path, asked: list[Job], words: list[str], message: str
) -> None:
    done = call("hespas", "compile", block, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert asked == []


def test_a_file_that_is_not_there_is_named(call: Call, asked: list[Job]) -> None:
    done = call("hespas", "compile", "no.mlir", "--target", "H100_SXM")
    assert (done.returncode, asked) == (2, [])
    assert "no.mlir: no such file; check the path" in done.stderr


@needs_gpu
def test_a_program_is_compiled_once(call: Call, block: Path) -> None:
    words = ("hespas", "compile", block, "--target", "H100_SXM", "--cache-dir", "cache")
    first = call(*words, "-o", "a.hlo", "--kernels", "a.json")
    assert first.returncode == 0, first.stderr
    (kept,) = Path("cache").iterdir()
    written = kept.stat().st_ino
    second = call(*words, "-o", "b.hlo")
    assert second.stdout == first.stdout
    assert Path("a.hlo").read_bytes() == Path("b.hlo").read_bytes()
    assert kept.stat().st_ino == written
    assert [launch.kernel for launch in decode_kernels(Path("a.json").read_bytes()).launches]
