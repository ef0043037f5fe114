from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace as replace_struct

from hespas.compile.targets import find_target
from hespas.hardware.links import load_link
from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.hardware.presets import load_device
from hespas.program.kernels import CompiledKernels, KernelLaunch, encode_kernels

Run = Callable[..., "CompletedProcess[str]"]
_ON_MINE = ("--system", "H100_80GB_4GPU")
GEMM = "m,n,k,dtype,latency_us\n4096,4096,4096,bf16,200\n2048,2048,2048,bf16,30\n"
RANKS = "".join(f"#  Rank {at} Group 0 Pid 1 on node device {at}\n" for at in range(4))
NCCL = (
    f"# all_reduce_perf\n{RANKS}#  (B) (elements) (us) (GB/s) (GB/s)\n"
    " 2048 512 float sum -1 12.0 0.17 0.26 0 12.0 0.17 0.26 0\n"
    " 134217728 33554432 float sum -1 630.0 213.04 319.6 0 630.0 213.04 319.6 0\n"
)


def hespas(call: Run, *words: str) -> CompletedProcess[str]:
    return call("hespas", *words)


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    (tmp_path / "gemm.csv").write_text(GEMM)
    (tmp_path / "nccl.txt").write_text(NCCL)
    of_8 = NCCL.replace(RANKS, RANKS + RANKS).replace("0.26", "0.30").replace("319.6", "372.82")
    (tmp_path / "of_8.txt").write_text(of_8)
    return tmp_path


def test_a_calibrated_node_and_link_load_and_predict(
    call: Run, measurements: Path, block: Path
) -> None:
    mine = measurements / "mine"
    done = hespas(
        call, "calibrate", "--node", "H100_80GB", "--link", "NVLink4_H100", "-o", str(mine),
        "--gemm", str(measurements / "gemm.csv"), "--nccl", str(measurements / "nccl.txt"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gemm.bf16: x 1.1" in done.stdout
    assert "all_reduce among 4:" in done.stdout
    device = load_device(mine)
    assert device.measured is not None
    assert device.measured.part == "H100_SXM"
    assert set(device.measured.factors) == {"gemm.bf16"}
    assert device.microarchitecture == mine / "microarchitecture.json"
    assert load_microarchitecture(mine) == load_microarchitecture("H100_80GB")
    assert find_target(str(mine)) == replace(find_target("H100_80GB"), name="mine")
    assert "NVIDIA H100 SXM5 80 GB, calibrated" in hespas(call, "hardware", str(mine)).stdout
    fit = load_link(mine / "link.json").measured("all_reduce", 4, 2**27)
    assert fit is not None
    assert fit.time_s(2**27) == pytest.approx(630e-6, rel=0.01)
    gather = load_link(mine / "link.json").measured("all_gather", 8, 2**20)
    assert gather == load_link("NVLink4_H100").measured("all_gather", 8, 2**20)
    ET.parse(mine / "calibration.svg")  # noqa: S314 - our own file
    report = json.loads((mine / "calibration.json").read_text())
    assert report["factors"][0]["points"][0]["what"] == "4096 x 4096 x 4096 of bf16"
    plain, slower = (
        json.loads(
            hespas(
                call, "estimate", str(block), "--node", node, "--method", "measured", "--json"
            ).stdout
        )
        for node in ("H100_80GB", str(mine))
    )
    assert slower != plain
    on_mine = (*_ON_MINE, "--node", str(mine), "--method", "measured")
    shown = hespas(call, "run", str(block), *on_mine, "--verbose")
    assert "times are multiplied as mine was calibrated: gemm.bf16 x 1.1" in shown.stdout


def test_a_calibrated_system_runs_in_both_models(
    call: Run, measurements: Path, block: Path
) -> None:
    mine = str(measurements / "mine")
    nccl = ("--nccl", str(measurements / "nccl.txt"), "--system", "A100_SXM_40GB_4GPU")
    done = hespas(call, "calibrate", "--node", "A100_SXM_40GB", *nccl, "-o", mine)
    assert done.returncode == 0, done.stderr
    assert load_link(Path(mine) / "link.json").parameters is not None
    assert "The link is for hespas' own network model, the default where" in done.stdout
    for model in ("hespas", "astra-sim"):
        start = ("run", str(block), "--node", "A100_SXM_40GB", "--model", model, "--json")
        times = [
            json.loads(hespas(call, *start, "--system", system).stdout)["communication_s"]
            for system in ("A100_SXM_40GB_4GPU", mine)
        ]
        assert (times[0] != times[1]) == (model == "hespas")


def test_calibrating_again_replaces_and_multiplies(call: Run, measurements: Path) -> None:
    first, second = measurements / "first", measurements / "second"
    gemm = ("--gemm", str(measurements / "gemm.csv"))
    assert hespas(call, "calibrate", "--node", "H100_80GB", *gemm, "-o", str(first)).returncode == 0
    again = hespas(call, "calibrate", "--node", str(first), *gemm, "-o", str(second))
    assert "gemm.bf16: x 1.0," in again.stdout
    tables = load_device(first).measured, load_device(second).measured
    assert tables[0] == tables[1]
    assert load_microarchitecture(second) == load_microarchitecture("H100_80GB")
    before = (second / "node.json").read_bytes()
    assert hespas(call, "calibrate", "--node", str(first), *gemm, "-o", str(second)).returncode == 0
    assert (second / "node.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "there is nothing to calibrate with; give --gemm, --nccl, --profile, --steps or",
        ),
        (["--gemm", "gemm.csv", "--link", "NVLink4_H100"], "--link has no effect without --nccl"),
        (["--gemm", "gemm.csv", "--system", "x"], "--system has no effect without --steps or"),
        (["--profile", "trace.json.gz"], "--profile has no effect without --program"),
        (["--gemm", "gemm.csv", "--kernels", "k.json"], "--kernels has no effect without --prof"),
        (["--gemm", "gemm.csv", "--gemm", "gemm.csv"], "gemm.bf16 is measured here and in"),
        (["--nccl", "of_8.txt", "--system", "H100_80GB_4GPU"], "all_reduce among 8 is of no group"),
        (["--gemm", "none.csv"], "none.csv: cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused(
    call: Run,
    measurements: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(measurements)
    done = hespas(call, "calibrate", "--node", "H100_80GB", "-o", "mine", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (measurements / "mine").exists()


def test_a_directory_of_something_else_is_left_alone(call: Run, measurements: Path) -> None:
    gemm = str(measurements / "gemm.csv")
    done = hespas(call, "calibrate", "--node", "H100_80GB", "--gemm", gemm, "-o", str(measurements))
    assert done.returncode == 2
    assert "holds files of another origin" in done.stderr
    assert not (measurements / "node.json").exists()


def test_step_times_of_a_workload_that_communicates_need_a_system(
    call: Run, measurements: Path, block: Path
) -> None:
    (measurements / "steps.csv").write_text(f"workload,seconds\n{block},90e-6\n")
    start = ("calibrate", "--node", "A100_SXM_40GB", "--steps", str(measurements / "steps.csv"))
    done = hespas(call, *start, "-o", str(measurements / "mine"))
    assert done.returncode == 2
    assert "steps.csv:2: " in done.stderr
    assert "the program communicates among 4 devices, but no system is given" in done.stderr
    assert "give --cluster" in done.stderr
    system = ("--system", "A100_SXM_40GB_4GPU")
    done = hespas(call, *start, "-o", str(measurements / "mine"), *system)
    assert done.returncode == 0, done.stderr
    assert "0.0 % after, worst 0.0 %" in done.stdout
    run = ("run", str(block), "--node", str(measurements / "mine"))
    step = json.loads(hespas(call, *run, *system, "--json").stdout)
    assert step["step_time_s"] == pytest.approx(90e-6, rel=1e-3)
    measured = load_device(measurements / "mine").measured
    assert measured is not None
    assert set(measured.factors) == {"all"}


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_what_an_earlier_calibration_wrote_goes(call: Run, measurements: Path) -> None:
    again, fresh = measurements / "again", measurements / "fresh"
    gemm = ("calibrate", "--node", "H100_80GB", "--gemm", str(measurements / "gemm.csv"))
    nccl = ("--nccl", str(measurements / "nccl.txt"), "--system", "H100_80GB_4GPU")
    assert hespas(call, *gemm, *nccl, "-o", str(again)).returncode == 0
    assert (again / "astra-sim" / "system.json").is_file()
    (again / "notes.txt").write_text("mine")
    both = files_of(again)
    done = hespas(call, "calibrate", "--node", str(again), *gemm[3:], "-o", str(again))
    assert done.returncode == 2
    assert "the calibration starts from it, and would remove its link.json, hespas/" in done.stderr
    assert files_of(again) == both
    for target in (again, fresh):
        assert hespas(call, *gemm, "-o", str(target)).returncode == 0
    assert files_of(again) == files_of(fresh) | {"notes.txt": b"mine"}
    assert not (again / "astra-sim").exists()


SCATTERED = """HloModule step, is_scheduled=true

%loop (p: f32[16777216]) -> f32[16777216] {
  %p = f32[16777216]{0} parameter(0)
  ROOT %n = f32[16777216]{0} negate(%p)
}

ENTRY %main (a: f32[16777216]) -> f32[16777216] {
  %a = f32[16777216]{0} parameter(0)
  ROOT %fusion.1 = f32[16777216]{0} fusion(%a), kind=kLoop, calls=%loop
}
"""
# Threads write a sector each, of which a number needs an eighth.
SCATTERED_PTX = """
.visible .entry negated(.param .u64 negated_param_0)
{
    ld.param.b64 %rd1, [negated_param_0];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 128, %r2;
    mul.wide.u32 %rd2, %r3, 64;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r3;
    ret;
}
"""


def test_a_profile_is_held_against_the_kernels_that_runs_read(call: Run, tmp_path: Path) -> None:
    (tmp_path / "step.hlo").write_text(SCATTERED)
    launch = KernelLaunch(
        instruction="fusion.1",
        kernel="negated",
        grid=(131072, 1, 1),
        block=(128, 1, 1),
        shared_memory_bytes=0,
    )
    known = CompiledKernels(launches=(launch,), ptx={"negated": SCATTERED_PTX})
    (tmp_path / "kernels.json").write_bytes(encode_kernels(known))
    start = ("run", "step.hlo", "--node", "H100_80GB", "--kernels", "kernels.json", "--json")
    read_s = json.loads(hespas(call, *start).stdout)["step_time_s"]
    event = {"ph": "X", "name": "k", "dur": 1e6 * read_s, "args": {"hlo_op": "fusion.1"}}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    fit = ("calibrate", "--node", "H100_80GB", "--profile", "trace.json", "--program", "step.hlo")
    done = hespas(call, *fit, "--kernels", "kernels.json", "-o", "with")
    assert "kernels: x 1.0, 1 measurement; median error 0.0 % before" in done.stdout
    by_kind = hespas(call, *fit, "-o", "without")
    assert by_kind.returncode == 0
    assert "kernels: x 1.0" not in by_kind.stdout
    (tmp_path / "steps.csv").write_text(
        f"workload,seconds,kernels\nstep.hlo,{read_s},kernels.json\n"
    )
    steps = ("calibrate", "--node", "H100_80GB", "--steps", "steps.csv")
    done = hespas(call, *steps, "-o", "steps")
    assert "all: x 1.0, 1 measurement; median error 0.0 % before" in done.stdout
    foreign = replace_struct(launch, instruction="fusion.7")
    other = replace_struct(known, launches=(foreign,))
    (tmp_path / "kernels.json").write_bytes(encode_kernels(other))
    done = hespas(call, *fit, "--kernels", "kernels.json", "-o", "other")
    assert done.returncode == 2
    assert "kernels.json: holds the kernels of another program than step.hlo" in done.stderr
    done = hespas(call, *steps, "-o", "other")
    assert "steps.csv:2: kernels.json: holds the kernels of another" in done.stderr
