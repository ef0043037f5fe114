"""What every estimator keeps, through the public verb."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import hespas
from hespas.errors import CostError
from hespas.hardware.presets import load_device
from hespas.prediction.configuration import read_configuration
from hespas.price.cache import DiskStore
from hespas.price.graph import GraphEstimate
from hespas.price.methods import METHODS, EstimatorSpec, estimator
from hespas.split.regions import RegionGraph
from simulators import (
    CORES,
    ONNXIM,
    cocossim_checkout,
    do_without_onnx,
    program_file,
)

PROGRAM = """
func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xbf16>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.dot_general %0, %a, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = stablehlo.convert %b : (tensor<64x64xbf16>) -> tensor<64x64xf32>
  %3 = stablehlo.add %1, %2 : tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}
"""

UNKNOWN = """
func.func @main(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.custom_call @nobody.knows(%a) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
"""

ARRAY: Mapping[str, object] = {
    "array_rows": 16,
    "array_columns": 16,
    "clock_hz": 1e9,
    "memory_bandwidth": 1e11,
    "vector_flops": 1e12,
}
SCALE_SIM = """
import os
os.makedirs("results/hespas")
open("results/hespas/COMPUTE_REPORT.csv", "w").write("LayerID, Total Cycles,\\n0, 1234,\\n")
"""
ZIGZAG = """open("answer.json", "w").write('{"cycles": 1234.0}')"""
IREE_COMPILER = """open("module.vmfb", "w").write(open(__import__("sys").argv[1]).read())"""
IREE_BENCHMARK = """
import json
time = 9.0 if "dot" in open("module.vmfb").read() else 2.0
time = time if "tensor" in open("module.vmfb").read() else 1.0
print(json.dumps({"benchmarks": [
    {"run_type": "iteration", "real_time": time, "time_unit": "us"}]}, indent=1))
"""
REPEATABLE = tuple(name for name in METHODS if name != "xla")
"""The profiler of this machine measures anew each time."""
COUNTING = tuple(name for name in METHODS if name not in {"xla", "iree"})
"""Those that ask what an operation does; a profiler finds out by running it."""
TPU_PROGRAM = Path(__file__).with_name("tpu_v5e.hlo")
"""PROGRAM as ``hespas compile --target TPUv5e`` writes it, but for where it comes from."""
TPU_UNKNOWN = """
HloModule step, is_scheduled=true
ENTRY main {
  a = f32[64,64] parameter(0)
  b = f32[64,64] add(a, a), backend_config={"window_config":{"estimated_cycles":"99"}}
  ROOT c = f32[64,64] custom-call(b), custom_call_target="nobody.knows"
}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, code in {
        "scalesim": SCALE_SIM,
        "zigzag": ZIGZAG,
        "iree-compile": IREE_COMPILER,
        "iree-benchmark-module": IREE_BENCHMARK,
        "onnxim": ONNXIM,
    }.items():
        program_file(tmp_path / name, code)
    cocossim_checkout(tmp_path / "cocossim")
    # PROGRAM's products have elements of 4 bytes.
    (tmp_path / "cores.json").write_text(json.dumps({**CORES, "precision": 4}))
    do_without_onnx(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def device_of(method: str, home: Path) -> str:
    """Return the preset or the configuration that shows a method."""
    arrays: Mapping[str, Mapping[str, object]] = {
        "systolic": {},
        "scalesim": {"binary": str(home / "scalesim")},
        "zigzag_onnx": {"binary": str(home / "zigzag")},
        "cocossim": {"binary": str(home / "cocossim" / "build" / "perf_model")},
        "onnxim": {
            "binary": str(home / "onnxim"),
            "core_config": str(home / "cores.json"),
        },
    }
    hardware: dict[str, object]
    if method in arrays:
        hardware = {**ARRAY, **arrays[method]}
    elif method == "xla":
        hardware = {"type": "cpu", "sample": True}
    elif method == "iree":
        hardware = {"sample": True}
    else:
        return "TPUv5e" if method in {"compiler", "tensor_core"} else "H100_80GB"
    file = home / f"{method}.json"
    file.write_text(json.dumps({"perf_estimator": {"method": method, "hardware": hardware}}))
    return str(file)


def graph_of(text: str, home: Path) -> RegionGraph:
    is_hlo = text.lstrip().startswith("HloModule")
    file = home / ("program.hlo" if is_hlo else "program.mlir")
    file.write_text(text)
    return hespas.stages.split(hespas.stages.load(file), strategy="individual_split")


def program_of(method: str) -> str:
    """Return the program that a method can price: only a TPU's compiler writes cycles."""
    return TPU_PROGRAM.read_text() if method == "compiler" else PROGRAM


def estimated(method: str, home: Path, store: DiskStore | None = None) -> GraphEstimate:
    graph = graph_of(program_of(method), home)
    return hespas.stages.estimate(graph, device_of(method, home), method=method, store=store)


@pytest.mark.parametrize("method", METHODS)
def test_every_region_has_a_time_and_says_what_it_rests_on(method: str, home: Path) -> None:
    result = estimated(method, home)
    times = [each.time_s for each in result.estimate_of_region if each is not None]
    # The TPU's program is a copy into the on-chip memory and one fusion.
    assert len(times) == (2 if method == "compiler" else 4)
    assert all(0 <= time < 1 for time in times)
    assert result.total.time_s == pytest.approx(sum(times), rel=1e-9)
    assert result.total.time_s > 0
    assert result.assumptions
    assert all(text.startswith(f"{method.partition('_')[0]}") for text in result.assumptions[:1])


@pytest.mark.parametrize("method", METHODS)
def test_the_work_is_the_same_whoever_prices_it(method: str, home: Path) -> None:
    result = estimated(method, home)
    assert result.total.total.flops == 2 * 2 * 64**3 + 2 * 64**2


@pytest.mark.parametrize("method", METHODS)
def test_what_decides_a_time_adds_up_to_it(method: str, home: Path) -> None:
    for op in estimated(method, home).total.per_op.values():
        parts = (op.bound.compute_s, op.bound.memory_s, op.bound.launch_s)
        assert min(parts) >= 0
        assert sum(parts) + op.other_s == pytest.approx(op.time_s, rel=1e-9)


@pytest.mark.parametrize("method", [name for name in COUNTING if name != "kernel"])
def test_a_method_that_counts_the_work_says_what_decides_its_time(method: str, home: Path) -> None:
    # Of small kernels, as read from PTX, starting their blocks may take longer than all else.
    total = estimated(method, home).total.total
    assert total.bound.known_s == pytest.approx(total.time_s, rel=1e-9)


@pytest.mark.parametrize("method", ["roofline", "measured", "kernel", "compiler"])
def test_a_device_draws_its_power_as_long_as_the_method_says_that_it_runs(
    method: str, home: Path
) -> None:
    device = replace(load_device(device_of(method, home)), tdp_w=700.0, hbm_power_ratio=None)
    graph = graph_of(program_of(method), home)
    found = hespas.stages.estimate(graph, device, method=method).total.total
    assert found.energy_j == pytest.approx(700.0 * found.time_s)


@pytest.mark.parametrize("method", REPEATABLE)
def test_the_answer_is_the_same_again_and_from_the_cache(method: str, home: Path) -> None:
    store = DiskStore(directory=home / "cache")
    first = estimated(method, home, store)
    kept = estimated(method, home, store)
    assert first.total == kept.total == estimated(method, home).total
    assert kept.reuse.region_hits == kept.reuse.regions


@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_json_and_name_the_method(method: str, home: Path) -> None:
    device = device_of(method, home)
    spec = EstimatorSpec(device=None if device.endswith(".json") else load_device(device))
    if device.endswith(".json"):
        spec = EstimatorSpec(hardware=read_configuration(device).values["hardware"])
    made = estimator(method, spec)
    assert made.method == method
    text = json.dumps(dict(made.parameters), sort_keys=True)
    assert json.dumps(json.loads(text), sort_keys=True) == text


@pytest.mark.parametrize("method", COUNTING)
def test_unknown_work_is_an_error_with_a_place(method: str, home: Path) -> None:
    unknown = TPU_UNKNOWN if method == "compiler" else UNKNOWN
    with pytest.raises(CostError, match=r"program\.mlir:3.*nobody\.knows|%c.*nobody\.knows"):
        hespas.stages.estimate(graph_of(unknown, home), device_of(method, home), method=method)
