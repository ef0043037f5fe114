from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.backends.profiling import PROFILED, Repeats, estimate_of
from hespas.backends.xla import Profiler, XlaHardware, XlaProfile, XlaTranslate, make
from hespas.base.process import Worker
from hespas.errors import ConfigError, ToolError
from hespas.frontend.load import load_program
from hespas.price.cache import MemoryStore
from hespas.price.graph import estimate_graph
from hespas.price.methods import EstimatorSpec, estimator
from hespas.split.modules import region_modules
from hespas.split.options import SplitOptions
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_options, split_program
from hlo_programs import module, read_hlo

TWO_PRODUCTS = """
func.func @main(%a: tensor<256x256xf32>, %b: tensor<256x256xbf16>, %n: tensor<i32>)
    -> (tensor<256x256xf32>, tensor<256x256xbf16>, tensor<i32>) {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %1 = stablehlo.dot_general %b, %b, contracting_dims = [1] x [0]
    : (tensor<256x256xbf16>, tensor<256x256xbf16>) -> tensor<256x256xbf16>
  %2 = stablehlo.add %n, %n : tensor<i32>
  return %0, %1, %2 : tensor<256x256xf32>, tensor<256x256xbf16>, tensor<i32>
}
"""

STAND_IN = """
import json, os, sys, time
for number, line in enumerate(sys.stdin):
    what = json.loads(line)["module"] and open(json.loads(line)["module"]).read()
    if "bf16" in what:
        {fault}
    print(json.dumps({{"durations_s": [2e-3, 1e-3] if what else [1e-4], "compile_s": 0.1,
                       "device": "stand-in", "error": ""}}), flush=True)
"""


def graph(path: Path) -> RegionGraph:
    path.write_text(TWO_PRODUCTS)
    options: SplitOptions = split_options(strategy="individual_split")
    return split_program(load_program(path), options)


StandingIn = Callable[[str, Repeats], XlaProfile]


@pytest.fixture
def standing_in(tmp_path: Path) -> Generator[StandingIn]:
    workers: list[Worker] = []

    def make_one(fault: str, repeats: Repeats) -> XlaProfile:
        worker = Worker(
            command=[sys.executable, "-c", STAND_IN.format(fault=fault)],
            name="the stand-in",
            directory=tmp_path / f"worker_{len(workers)}",
        )
        workers.append(worker)
        return XlaProfile(
            platform="cpu",
            repeats=repeats,
            profiler=Profiler(worker=worker),
            custom_calls={},
            machine="test",
        )

    yield make_one
    for worker in workers:
        worker.close()


def test_regions_run_on_this_machine(tmp_path: Path) -> None:
    regions = graph(tmp_path / "p.mlir")
    profile = estimator("xla", EstimatorSpec(hardware=XlaHardware(type="cpu", sample=True)))
    result = estimate_graph(regions, region_modules(regions), profile, store=MemoryStore())
    assert result.total.per_op[PROFILED].count == 3
    assert 1e-6 < result.total.time_s < 1
    assert result.total.total.flops == 2 * 2 * 256**3 + 1
    assert not result.total.total.knows_peaks
    assert any("profiled on" in note for note in result.total.notes)


def test_what_was_measured_before_a_crash_is_kept(tmp_path: Path, standing_in: StandingIn) -> None:
    regions = graph(tmp_path / "p.mlir")
    store = MemoryStore()
    crashing = standing_in("os.abort()", Repeats())
    with pytest.raises(ToolError, match=r"region 1 of .*p\.mlir: the stand-in was ended by SIGAB"):
        estimate_graph(regions, region_modules(regions), crashing, store=store)
    well = standing_in("pass", Repeats())
    result = estimate_graph(regions, region_modules(regions), well, store=store)
    assert [module.from_store for module in result.modules] == [True, False, False]
    assert result.total.time_s == pytest.approx(3 * 0.9e-3)


def test_a_region_that_takes_too_long_is_named(tmp_path: Path, standing_in: StandingIn) -> None:
    regions = graph(tmp_path / "p.mlir")
    slow = standing_in("time.sleep(60)", replace(Repeats(), limit_s=1.0))
    with pytest.raises(ToolError, match=r"region 1 of .*took longer than 1 s; allow more time"):
        estimate_graph(regions, region_modules(regions), slow, store=MemoryStore())


@pytest.mark.parametrize(
    ("platform", "needs"),
    [
        ("cuda", "an NVIDIA GPU with its driver, and jax-cuda12-plugin"),
        ("tpu", "a TPU, and libtpu"),
    ],
)
def test_a_platform_that_is_not_there_is_said(tmp_path: Path, platform: str, needs: str) -> None:
    regions = graph(tmp_path / "p.mlir")
    hardware = XlaHardware(translate=XlaTranslate(target_backends=platform))
    profile = estimator("xla", EstimatorSpec(hardware=hardware))
    said = rf"^XLA's profiler for {platform} finds no device to run on: .*it needs {needs}.*on cpu"
    with pytest.raises(ToolError, match=said):
        estimate_graph(regions, region_modules(regions), profile, store=MemoryStore())


def test_a_compiled_program_that_cannot_run_here_is_said_to_be_one() -> None:
    call = '  y = f32[8] custom-call(x), custom_call_target="mine"\n  ROOT z = f32[8] add(y, y)'
    program = read_hlo(module(f"  x = f32[8] parameter(0)\n{call}"))
    regions = split_program(program, split_options())
    profile = estimator("xla", EstimatorSpec(hardware=XlaHardware(type="cpu", sample=True)))
    with pytest.raises(ToolError, match=r"mine.*the program is compiled.*give the StableHLO"):
        estimate_graph(regions, region_modules(regions), profile, store=MemoryStore())


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no platform 'cudda'.*did you mean 'cuda'"):
        make(EstimatorSpec(hardware=XlaHardware(type="cudda")))


def test_the_cache_keeps_machines_and_repeats_apart(standing_in: StandingIn) -> None:
    one = standing_in("pass", Repeats())
    others = (replace(one, machine="other"), replace(one, repeats=Repeats(least_runs=9)))
    assert all(other.parameters != one.parameters for other in others)


def test_the_floor_is_taken_off_and_what_lies_below_it_is_reported() -> None:
    above = estimate_of([5e-3, 4e-3], floor_s=1e-3, where="x")
    assert above.time_s == pytest.approx(3e-3)
    below = estimate_of([1e-5, 1e-5], floor_s=1e-3, where="x")
    assert below.time_s == 0
    assert any("no longer than dispatching nothing" in note for note in below.notes)
    busy = estimate_of([1e-3, 2e-3, 3e-3], floor_s=0.0, where="x")
    assert any("the machine was busy" in note for note in busy.notes)
