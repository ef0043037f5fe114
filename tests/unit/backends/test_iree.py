"""IREE, with stand-ins for its programs that print what they print."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from hespas.backends.iree import IreeCompile, IreeHardware
from hespas.backends.profiling import PROFILED
from hespas.errors import ExtraMissingError, ToolError
from hespas.frontend.load import load_program
from hespas.hardware.device import Device
from hespas.price.estimate import Estimate
from hespas.price.methods import EstimatorSpec, estimator
from hespas.split.regions import Compute
from hespas.split.strategies import split_options, split_program

COMPILER = """
import sys
if "--typo" in sys.argv:
    sys.exit("error: unknown option --typo")
text = open(sys.argv[1]).read()
if "--iree-llvmcpu-target-cpu=host" not in sys.argv:
    sys.exit("compiled for any processor, 11 times slower than for this one")
if "cosine" in text:
    sys.exit("error: failed to legalize operation 'stablehlo.cosine'")
open("module.vmfb", "w").write(" ".join(sys.argv[1:]) + ("" if "add" in text else " nothing"))
"""

BENCHMARK = """
import json, sys
compiled = open("module.vmfb").read()
time = 0.5 if compiled.endswith("nothing") else 10.5
if not compiled.endswith("nothing"):
    assert "--iree-hal-target-backends=llvm-cpu --flag" in compiled, compiled
    assert "--input=4x8xbf16" in sys.argv and "--device=local-task" in sys.argv, sys.argv
    assert "--more" in sys.argv
print("a line of log", file=sys.stderr, flush=True)
runs = [("iteration", time), ("iteration", 2 * time), ("aggregate", 0.0)]
print(json.dumps({"context": {}, "benchmarks": [
    {"run_type": kind, "real_time": each, "time_unit": "us"} for kind, each in runs]}, indent=1))
"""

HARDWARE = IreeHardware(
    compile=IreeCompile(extra_args=("--flag",), extra_runtime_args=("--more",)), sample=True
)


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "bin"
    home.mkdir()
    for name, code in (("iree-compile", COMPILER), ("iree-benchmark-module", BENCHMARK)):
        file = home / name
        file.write_text(f"#!{sys.executable}\n{code}")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(home / "python"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


DEVICE = Device(name="mine", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e9)


def estimated(
    tmp_path: Path,
    kind: str,
    device: Device | None = None,
    *,
    hardware: IreeHardware = HARDWARE,
) -> Estimate:
    file = tmp_path / "p.mlir"
    operands = "%a, %a" if kind == "add" else "%a"
    file.write_text(
        "func.func @main(%a: tensor<4x8xbf16>) -> tensor<4x8xbf16> {\n"
        f"  %0 = stablehlo.{kind} {operands} : tensor<4x8xbf16>\n"
        "  return %0 : tensor<4x8xbf16>\n}"
    )
    graph = split_program(load_program(file), split_options())
    (region,) = graph.regions
    assert isinstance(region, Compute)
    made = estimator("iree", EstimatorSpec(hardware=hardware, device=device))
    assert made.assumptions(graph.program)[0].startswith(
        "iree: regions that IREE takes were compiled"
    )
    return made.estimate(region, graph.program)


def test_the_fastest_repetition_counts_less_the_floor(tmp_path: Path) -> None:
    found = estimated(tmp_path, "add")
    assert found.per_op[PROFILED].time_s == pytest.approx(10e-6)
    assert found.per_op[PROFILED].flops == 32
    assert any("profiled on local-task by IREE" in note for note in found.notes)
    assert not list(tmp_path.glob("hespas-iree-*"))


def test_the_processor_may_be_named(tmp_path: Path) -> None:
    """The compiler here ends with an error for any other processor than this one."""
    generic = IreeHardware(compile=IreeCompile(extra_args=("--iree-llvmcpu-target-cpu=generic",)))
    with pytest.raises(ToolError, match="compiled for any processor"):
        estimated(tmp_path, "add", hardware=generic)


@pytest.mark.parametrize("printed", ["float('nan')", "float('inf')", "0.0", "-1.0", "'fast'"])
def test_times_that_are_none_are_an_error(tmp_path: Path, printed: str) -> None:
    benchmark = tmp_path / "bin" / "iree-benchmark-module"
    text = benchmark.read_text().replace("else 10.5", f"else {printed}")
    benchmark.write_text(text.replace("2 * time", "time"))
    with pytest.raises(ToolError, match=r"region 0 .*benchmark printed (impossible|no) times"):
        estimated(tmp_path, "add")


def test_a_benchmark_without_repetitions_is_an_error(tmp_path: Path) -> None:
    benchmark = tmp_path / "bin" / "iree-benchmark-module"
    benchmark.write_text(benchmark.read_text().replace('"iteration"', '"aggregate"'))
    with pytest.raises(ToolError, match="printed impossible times: none"):
        estimated(tmp_path, "add")


def test_the_preset_is_of_this_machine_alone() -> None:
    (preset,) = Path("configs/nodes/profiling/iree").glob("*.json")
    assert "num_npus" not in preset.read_text(encoding="utf-8")


def test_what_iree_refuses_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"region 0 of .*failed to legalize.*give node") as caught:
        estimated(tmp_path, "cosine")
    assert "failed to legalize" in Path(caught.value.location).read_text()


def test_what_iree_refuses_falls_to_the_named_roofline(tmp_path: Path) -> None:
    found = estimated(tmp_path, "cosine", DEVICE)
    assert found.time_s == pytest.approx(2 * 64 / 1e9)
    assert not found.total.knows_peaks
    assert any("priced by the roofline of mine" in note for note in found.notes)
    assert not any("profiled on" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["add", "cosine"])
def test_what_iree_is_reported_wrongly_is_no_refusal_of_the_region(
    tmp_path: Path, kind: str
) -> None:
    wrong = IreeHardware(compile=IreeCompile(extra_args=("--typo",)))
    with pytest.raises(ToolError, match=r"does nothing.*unknown option --typo.*extra-args") as one:
        estimated(tmp_path, kind, DEVICE, hardware=wrong)
    assert "unknown option" in Path(one.value.location).read_text()


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ExtraMissingError, match=r"pip install 'hespas\[iree\]'"):
        estimator("iree", EstimatorSpec())
