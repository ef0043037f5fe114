"""The functions of hespas, as a notebook calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hespas
from hespas.base.fields import options_in
from hespas.compile.options import CompileOptions, Matmuls
from hespas.errors import (
    ConfigError,
    CostError,
    DeviceCountError,
    HespasError,
    ProgramError,
    TraceError,
)
from hespas.hardware.cluster import Cluster
from hespas.hardware.device import Device
from hespas.hardware.presets import PRESETS_DIRECTORY, load_device, load_system
from hespas.prediction.goodput import GoodputOptions
from hespas.prediction.options import PredictOptions, ReportOptions
from hespas.prediction.overrides import ModelOverrides, Overrides, PipelinedOverrides
from hespas.price.cache import DiskStore, MemoryStore
from hespas.program.work import OperandTraffic
from hespas.sources.options import ModelOptions
from hespas.tasks.pipelining.options import PipelineOptions
from hlo_programs import module
from programs import all_reduce, on_devices, vector_main

BLOCK = Path(__file__).resolve().parents[2] / "examples" / "attention_block.mlir"


def test_the_stages_one_by_one_give_what_predict_gives() -> None:
    graph = hespas.stages.split(hespas.stages.load(BLOCK))
    estimates = hespas.stages.estimate(graph, "A100_SXM_40GB")
    timeline = hespas.stages.simulate(hespas.stages.trace(graph, estimates), "A100_SXM_40GB_4GPU")
    whole = hespas.predict(hespas.stages.load(BLOCK), "A100_SXM_40GB", "A100_SXM_40GB_4GPU")
    assert whole.step_time_s == timeline.step_time_s
    assert whole.compute_s == estimates.total.time_s
    # By hand: 23068672 bytes at 1555 GB/s.
    assert estimates.total.time_s == pytest.approx(23068672 / 1555e9, rel=1e-12)


def test_descriptions_serve_as_well_as_names() -> None:
    device, system = load_device("A100_SXM_40GB"), load_system("A100_SXM_40GB_4GPU")
    program = hespas.stages.load(str(BLOCK))
    by_value = hespas.predict(program, device, system)
    by_name = hespas.predict(program, "A100_SXM_40GB", "A100_SXM_40GB_4GPU")
    assert by_value.step_time_s == by_name.step_time_s


def test_a_store_keeps_estimates_between_calls(tmp_path: Path) -> None:
    graph = hespas.stages.split(hespas.stages.load(BLOCK))
    for store in (MemoryStore(), DiskStore(directory=tmp_path)):
        first = hespas.stages.estimate(graph, "A100_SXM_40GB", store=store)
        second = hespas.stages.estimate(graph, "A100_SXM_40GB", store=store)
        assert second.total == first.total
        assert second.reuse.block_reuse_rate == 1
    assert hespas.stages.estimate(graph, "A100_SXM_40GB").reuse.block_reuse_rate == 0


def test_what_a_program_leaves_open_is_given(tmp_path: Path) -> None:
    file = tmp_path / "p.mlir"
    file.write_text(vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"))
    assert hespas.stages.load(file).declared_devices == 1
    assert hespas.stages.load(file, devices=8).declared_devices == 8
    assert hespas.predict(file, "V100_32GB", devices=8).devices == 8
    with pytest.raises(DeviceCountError, match="0 devices"):
        hespas.stages.load(file, devices=0)


def test_custom_calls_are_stated(tmp_path: Path) -> None:
    file = tmp_path / "p.mlir"
    file.write_text(
        vector_main("%r = stablehlo.custom_call @mine(%a) : (tensor<8xf32>) -> tensor<8xf32>")
    )
    graph = hespas.stages.split(hespas.stages.load(file))
    with pytest.raises(CostError, match="mine"):
        hespas.stages.estimate(graph, "V100_32GB")
    stated = hespas.stages.estimate(graph, "V100_32GB", custom_calls={"mine": OperandTraffic()})
    assert stated.total.time_s == 64 / 900e9


def test_errors_are_hespas_errors(tmp_path: Path) -> None:
    with pytest.raises(hespas.HespasError):
        hespas.stages.load(tmp_path / "nothing.mlir")
    with pytest.raises(ProgramError, match="no such file"):
        hespas.stages.load("nothing.mlir")
    program = hespas.stages.load(BLOCK)
    with pytest.raises(ConfigError, match="split_strategy is 'sideways'"):
        hespas.stages.split(program, strategy="sideways")
    graph = hespas.stages.split(program)
    with pytest.raises(hespas.HespasError, match="did you mean 'V100_32GB'"):
        hespas.stages.estimate(graph, "V100_32G")
    tasks = hespas.stages.trace(graph, hespas.stages.estimate(graph, "V100_32GB"))
    with pytest.raises(ConfigError, match="network is 'magic'"):
        hespas.stages.simulate(tasks, "V100_32GB_4GPU", network="magic")
    with pytest.raises(ConfigError, match="no system is given"):
        hespas.predict(BLOCK, "V100_32GB")


def test_equal_regions_are_one_estimate(tmp_path: Path) -> None:
    body = f"{all_reduce('%b', '%a')}\n{all_reduce('%r', '%b')}"
    file = tmp_path / "p.mlir"
    file.write_text(on_devices(vector_main(body)))
    prediction = hespas.predict(file, "V100_32GB", "V100_32GB_4GPU")
    assert prediction.compute_s == 0
    assert prediction.step_time_s == prediction.exposed_communication_s > 0


def test_paths_serve_as_well_as_names() -> None:
    by_path = hespas.predict(
        BLOCK,
        PRESETS_DIRECTORY / "nodes" / "V100_32GB",
        PRESETS_DIRECTORY / "systems" / "V100_32GB_4GPU",
    )
    assert by_path.step_time_s == hespas.predict(BLOCK, "V100_32GB", "V100_32GB_4GPU").step_time_s


def test_what_was_compiled_for_another_part_is_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "p.hlo"
    shown = 'backend_config={"window_config":{"estimated_cycles":"9"}}'
    file.write_text(module(f"  x = f32[8] parameter(0)\n  ROOT y = f32[8] add(x, x), {shown}"))
    listed = hespas.predict(file, "V100_32GB").assumptions
    assert any("compiled for a TPU, and is priced on V100_32GB" in text for text in listed)


PROGRAM = hespas.stages.load(BLOCK)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("predict", (b"abc", "V100_32GB"), "bytes is given in place of a program"),
        ("predict", (BLOCK, 3), "an int is given in place of a device"),
        ("predict", (BLOCK, "V100_32GB", 4), "int is given in place of a system"),
        ("split", (BLOCK,), r"a program; load it first: hespas\.stages\.load\(path\)"),
        ("estimate", (PROGRAM, "V100_32GB"), "a Program is given in place of a region graph"),
        ("trace", (PROGRAM, None), "a Program is given in place of a region graph"),
        ("simulate", (PROGRAM, "V100_32GB_4GPU"), "a Program is given in place of a task graph"),
    ],
)
def test_likely_mistakes_are_reported(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        getattr(hespas if name == "predict" else hespas.stages, name)(*arguments)


def test_a_method_is_named() -> None:
    number: Any = 5
    with pytest.raises(ConfigError, match="int is given in place of a method's name"):
        hespas.stages.estimate(hespas.stages.split(PROGRAM), "V100_32GB", method=number)
    with pytest.raises(ConfigError, match="int is given in place of a method's name"):
        hespas.predict(BLOCK, "V100_32GB", method=number)


@pytest.mark.parametrize("node", ["V100_32GB", load_device("V100_32GB")], ids=["name", "device"])
@pytest.mark.parametrize("method", ["xla", "systolic"])
def test_a_node_is_refused_by_methods_that_use_none(node: str | Device, method: str) -> None:
    shown = f"node has no effect on method {method}, which .*a configuration of the method"
    with pytest.raises(ConfigError, match=shown):
        hespas.stages.estimate(hespas.stages.split(PROGRAM), node, method=method)
    with pytest.raises(ConfigError, match=shown):
        hespas.predict(BLOCK, node, "V100_32GB_4GPU", method=method)


def test_a_configuration_of_such_a_method_stands_in_the_nodes_place(tmp_path: Path) -> None:
    array = {"array_rows": 128, "array_columns": 128, "clock_hz": 1e9, "memory_bandwidth": 1e11}
    estimator = {"method": "systolic", "hardware": {**array, "vector_flops": 1e12}}
    file = tmp_path / "array.json"
    file.write_text(json.dumps({"perf_estimator": estimator}))
    whole = hespas.predict(BLOCK, file, "V100_32GB_4GPU")
    assert (
        whole.compute_s
        == hespas.stages.estimate(hespas.stages.split(PROGRAM), file).total.time_s
        > 0
    )
    assert whole.memory_capacity_bytes is None
    assert whole.compute_s == hespas.predict(BLOCK, str(file), "V100_32GB_4GPU").compute_s


def test_a_configuration_that_names_a_node_stands_in_its_place(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    estimator = {"method": "measured", "hardware": {"node": "H100_80GB"}}
    file.write_text(json.dumps({"perf_estimator": estimator}))
    whole = hespas.predict(BLOCK, file, "V100_32GB_4GPU")
    assert whole.memory_capacity_bytes == 80 * 2**30
    named = hespas.predict(BLOCK, "H100_80GB", "V100_32GB_4GPU", method="measured")
    assert whole.compute_s == named.compute_s
    with pytest.raises(ConfigError, match="node has no effect on method xla"):
        hespas.predict(BLOCK, file, "V100_32GB_4GPU", method="xla")


def test_estimates_of_another_graph_are_refused() -> None:
    program = hespas.stages.load(BLOCK)
    whole, single = (
        hespas.stages.split(program),
        hespas.stages.split(program, strategy="individual_split"),
    )
    with pytest.raises(TraceError, match=r"estimates of another graph.*estimate the graph"):
        hespas.stages.trace(whole, hespas.stages.estimate(single, "V100_32GB"))


def test_a_model_runs_on_a_number_of_devices() -> None:
    small = {"m": "256", "k": "256", "n": "256"}
    prediction = hespas.predict("gemm-contracting", cluster="4xH100_80GB", settings=small)
    assert prediction.devices == 4
    assert "the mesh is x=4, since none is given" in prediction.assumptions
    again = hespas.predict(
        "gemm-contracting", "H100_80GB", "H100_80GB_4GPU", mesh="x=4", settings=small
    )
    assert again.step_time_s == prediction.step_time_s


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cluster": "4xH100"}, "did you mean 'H100_80GB'"),
        ({"cluster": "4xH100_80GB", "mesh": "x=2"}, "the mesh x=2 has 2 devices, and there are 4"),
        ({"cluster": "4xH100_80GB", "batch": 3}, "gemm-contracting has no option 'batch'"),
        ({"cluster": "4xH100_80GB", "system": "H100_80GB_4GPU"}, "both a cluster and a system"),
        ({"mesh": "x=2"}, "no device is given"),
    ],
)
def test_a_cluster_or_mesh_that_does_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HespasError, match=message):
        hespas.predict("gemm-contracting", **given)


def test_a_model_in_stages_has_a_function_of_its_own() -> None:
    mesh = "pipe=2"
    given: dict[str, Any] = {"sequence": 256, "settings": {"layers": "2"}, "fidelity": "fused"}
    with pytest.raises(HespasError, match="pipe=2 divides the model into stages"):
        hespas.predict("llama3-100m", cluster="2xH100_80GB", mesh=mesh)
    with pytest.raises(HespasError, match="no axis pipe of several stages"):
        hespas.predict_pipeline("llama3-100m", "2xH100_80GB", mesh="fsdp=2")
    found = hespas.predict_pipeline(
        "llama3-100m", "2xH100_80GB", mesh=mesh, global_batch=4, schedule="gpipe", **given
    )
    assert repr(found).startswith("llama3-100m: one step on 2 x H100_80GB")
    answer = found.to_dict()
    assert answer["step_time_s"] == found.step_time_s
    assert msgspec.to_builtins(answer["pipeline"])["schedule"] == "gpipe"
    assert {row["phase"] for row in found.rows("phases")} >= {"forward", "backward"}


def test_predict_takes_what_run_takes() -> None:
    names = {
        "trip_count": "trip_counts",
        "set": "settings",
        "split_fn": "strategy",
        "block_lim": "block_limit",
        "launch_overhead": "launch_overhead_s",
        "host_launch": "host_launch_s",
        "custom_call": "custom_calls",
    }
    elsewhere = {"mlir_file", "as_exported", "optimise", "output", "clean"}
    elsewhere |= {each.name for each in options_in(ReportOptions)}
    elsewhere |= {each.name for each in options_in(GoodputOptions)}
    of_pipelines = {each.name for each in options_in(PipelineOptions)}
    assert of_pipelines <= PipelinedOverrides.__annotations__.keys()
    elsewhere |= of_pipelines
    of_compiler = {each.name for each in options_in(CompileOptions)}
    options = {each.name for each in options_in(PredictOptions) if each.has_flag}
    expected = {names.get(name, name) for name in options - elsewhere - of_compiler}
    # Shared experts run beside all-to-alls without stages, too.
    assert Overrides.__annotations__.keys() == (expected - {"node", "system"}) | {"overlap"}


@pytest.mark.parametrize("overrides", [Overrides, ModelOverrides])
def test_models_take_the_options_of_models(overrides: type) -> None:
    options = {each.name for each in options_in(ModelOptions) if each.has_flag}
    options = options - {"set"} | {"settings"}
    assert options <= overrides.__annotations__.keys()


def test_what_is_given_in_python_has_its_effect() -> None:
    node, system = "H100_80GB", "H100_80GB_4GPU"
    plain = hespas.predict(BLOCK, node, system)
    rates = {"bf16": 1e18}
    faster = hespas.predict(BLOCK, node, system, memory_bandwidth=1e15, per_datatype_flops=rates)
    assert faster.compute_s < plain.compute_s
    assert hespas.predict(BLOCK, system=system).step_time_s == plain.step_time_s
    assert hespas.predict(BLOCK, cluster="4xH100_80GB").step_time_s == plain.step_time_s
    ring = hespas.predict(BLOCK, node, system, algorithm="ring")
    assert ring.communication_s > 0
    slow = hespas.predict(BLOCK, node, system, imperfect=Cluster(compute_scales={0: 2.0}))
    assert slow.straggler_s > 0
    with pytest.raises(ConfigError, match="matmuls has no effect on fidelity exported"):
        hespas.predict(
            BLOCK,
            node,
            system,
            fidelity="exported",
            compiler=CompileOptions(matmuls=Matmuls.TRITON),
        )
    with pytest.raises(ConfigError, match="sequence has no effect on a program"):
        hespas.predict(hespas.stages.load(BLOCK), node, system, sequence=128)
