from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import msgspec
import pytest

from config_files import (
    IREE,
    ROOFLINE,
    XLA,
    H,
    complaint_of,
    estimator_json,
    roofline_json,
    write_config,
)
from hespas.config import run_config, wire
from hespas.config.load import load_config
from hespas.config.run_config import (
    CocossimProgram,
    EstimatorConfig,
    IreeCompile,
    IreeHardware,
    NodeHardware,
    OnnximProgram,
    RooflineHardware,
    RunConfig,
    SimulatorCall,
    SystolicHardware,
    XlaHardware,
    XlaTranslate,
    roofline_hardware,
)
from hespas.errors import ConfigError


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    value = {
        "mlir_file": "path/to/workload.mlir",
        "split_strategy": "linear_split",
        "output_dir": "output/my_experiment",
    } | roofline_json(num_npus=64, in_memory_only_cache=True)
    assert load_config(write_config(tmp_path, value)) == RunConfig(
        mlir_file="path/to/workload.mlir",
        split_strategy="linear_split",
        output_dir="output/my_experiment",
        perf_estimator=EstimatorConfig(
            method="roofline",
            hardware=RooflineHardware(
                peak_flops=312e12,
                memory_bandwidth=1935e9,
                num_npus=64,
                in_memory_only_cache=True,
            ),
        ),
    )


def test_every_documented_key_of_the_run_is_read(tmp_path: Path) -> None:
    value: dict[str, object] = {
        "mlir_file": "a.mlir",
        "split_strategy": "individual_split",
        "output_dir": "out",
        "clean": True,
        "block_lim": 1024,
        "cache_dir": "cache",
        "merge": False,
        "disable_cache": False,
        "num_threads": 2,
        "separator": "is_communication_op",
        "separator_policy": "end_block",
    }
    config = load_config(write_config(tmp_path, value))
    assert {key: getattr(config, key) for key in value} == value


def test_every_documented_key_of_the_roofline_is_read(tmp_path: Path) -> None:
    value = ROOFLINE | {
        "num_npus": 8,
        "per_datatype_flops": {"f16": 312e12, "f8E4M3FN": 1},
        "in_memory_only_cache": False,
        "tdp_W": 400,
        "hbm_power_ratio": 0.25,
        "error_on_unknown_type": True,
        "warn_on_unknown_type": False,
    }
    config = load_config(write_config(tmp_path, estimator_json("roofline", value)))
    assert roofline_hardware(config) == RooflineHardware(
        peak_flops=312e12,
        memory_bandwidth=1935e9,
        num_npus=8,
        per_datatype_flops={"f16": 312e12, "f8E4M3FN": 1.0},
        in_memory_only_cache=False,
        tdp_w=400.0,
        hbm_power_ratio=0.25,
        error_on_unknown_type=True,
        warn_on_unknown_type=False,
    )


def test_what_the_file_leaves_out_is_none(tmp_path: Path) -> None:
    assert load_config(write_config(tmp_path, {})) == RunConfig()
    hardware = roofline_hardware(load_config(write_config(tmp_path, roofline_json())))
    assert hardware.num_npus is None
    assert dict(hardware.per_datatype_flops) == {}


def test_the_documented_xla_and_iree_files_are_read(tmp_path: Path) -> None:
    xla = load_config(write_config(tmp_path, estimator_json("xla", XLA)))
    assert xla.perf_estimator == EstimatorConfig(
        method="xla",
        hardware=XlaHardware(
            type="nvidiagpu",
            num_npus=4,
            sample=False,
            translate=XlaTranslate(target_backends="cuda"),
            in_memory_only_cache=True,
        ),
    )
    iree = load_config(write_config(tmp_path, estimator_json("iree", IREE)))
    assert iree.perf_estimator == EstimatorConfig(
        method="iree",
        hardware=IreeHardware(
            num_npus=64,
            sample=True,
            compile=IreeCompile(
                device="local-task",
                target_backends="llvm-cpu",
                extra_args=("--iree-llvmcpu-target-cpu=host",),
                extra_runtime_args=(),
            ),
            in_memory_only_cache=True,
        ),
    )
    with pytest.raises(ConfigError, match=r"^x\.json: method 'xla' describes no device"):
        roofline_hardware(xla, location="x.json")


def test_xla_and_iree_need_no_hardware_keys(tmp_path: Path) -> None:
    for method, hardware in (("xla", XlaHardware()), ("iree", IreeHardware())):
        config = load_config(write_config(tmp_path, {"perf_estimator": {"method": method}}))
        assert config.perf_estimator == EstimatorConfig(method=method, hardware=hardware)


def test_a_run_without_an_estimator_has_no_hardware() -> None:
    with pytest.raises(ConfigError, match=r"^a\.json: no perf_estimator is given; add one"):
        roofline_hardware(RunConfig(), location="a.json")


ARRAY: dict[str, object] = {
    "array_rows": 128,
    "array_columns": 128,
    "clock_hz": 940e6,
    "memory_bandwidth": 900e9,
    "vector_flops": 4e12,
}


@pytest.mark.parametrize("method", ["systolic", "scalesim", "zigzag_onnx"])
def test_the_methods_of_systolic_arrays_are_read(tmp_path: Path, method: str) -> None:
    config = load_config(write_config(tmp_path, estimator_json(method, ARRAY)))
    assert config.perf_estimator == EstimatorConfig(
        method=method,
        hardware=SystolicHardware(
            array_rows=128,
            array_columns=128,
            clock_hz=940e6,
            memory_bandwidth=900e9,
            vector_flops=4e12,
        ),
    )


CALL: dict[str, object] = {
    "binary": "/opt/simulator",
    "arguments": ["-i", "{workload}"],
    "cycles_pattern": "cycles ([0-9]+)",
    "answer_file": "answer.txt",
    "files": {"configs": "/opt/configs"},
}


@pytest.mark.parametrize(
    ("method", "own", "program"),
    [
        (
            "cocossim",
            {"product_line": "Product {m} {n} {k}"},
            CocossimProgram(product_line="Product {m} {n} {k}"),
        ),
        (
            "onnxim",
            {"core_config": "c.json", "operator": "Gemm", "model_options": {"batch_size": 1}},
            OnnximProgram(core_config="c.json", operator="Gemm", model_options={"batch_size": 1}),
        ),
    ],
)
def test_the_methods_of_programs_are_read(
    tmp_path: Path,
    method: str,
    own: dict[str, object],
    program: CocossimProgram | OnnximProgram,
) -> None:
    config = load_config(write_config(tmp_path, estimator_json(method, ARRAY | CALL | own)))
    assert config.perf_estimator is not None
    hardware = config.perf_estimator.hardware
    assert isinstance(hardware, SystolicHardware)
    assert (hardware.array_rows, hardware.binary) == (128, "/opt/simulator")
    call = SimulatorCall(
        arguments=("-i", "{workload}"),
        cycles_pattern="cycles ([0-9]+)",
        answer_file="answer.txt",
        files={"configs": "/opt/configs"},
    )
    assert hardware.simulator == dataclasses.replace(program, call=call)


@pytest.mark.parametrize(
    ("method", "key", "known"),
    [
        ("systolic", "arguments", "known"),
        ("scalesim", "cycles_pattern", "known"),
        ("cocossim", "core_config", "known"),
        ("onnxim", "product_line", "known"),
        ("onnxim", "core_confg", "did you mean 'core_config'"),
    ],
)
def test_what_has_no_effect_on_a_method_is_no_key_of_it(
    tmp_path: Path, method: str, key: str, known: str
) -> None:
    said = complaint_of(tmp_path, estimator_json(method, ARRAY | {key: "x"}))
    assert f"unknown key '{key}' in {H}; {known}" in said


@pytest.mark.parametrize("method", ["measured", "kernel"])
def test_the_methods_that_know_parts_by_name_are_read(tmp_path: Path, method: str) -> None:
    config = load_config(write_config(tmp_path, estimator_json(method, {"node": "H100_80GB"})))
    assert config.perf_estimator == EstimatorConfig(
        method=method, hardware=NodeHardware(node="H100_80GB")
    )


@pytest.mark.parametrize(
    ("struct", "values"),
    [
        (wire.RooflineWire, RooflineHardware),
        (wire.XlaWire, XlaHardware),
        (wire.XlaTranslateWire, XlaTranslate),
        (wire.IreeWire, IreeHardware),
        (wire.IreeCompileWire, IreeCompile),
        (wire.EstimatorWire, EstimatorConfig),
        (wire.RunWire, RunConfig),
    ],
)
def test_the_structs_mirror_the_dataclasses(struct: type[msgspec.Struct], values: type) -> None:
    fields = dataclasses.fields(cast("type[RunConfig]", values))
    assert struct.__struct_fields__ == tuple(field.name for field in fields)


def test_per_type_rates_cannot_be_changed() -> None:
    rates = {"f32": 1.0}
    hardware = run_config.RooflineHardware(
        peak_flops=1.0, memory_bandwidth=1.0, per_datatype_flops=rates
    )
    rates["f32"] = 2.0
    assert hardware.per_datatype_flops == {"f32": 1.0}
    with pytest.raises(TypeError):
        cast("dict[str, float]", hardware.per_datatype_flops)["f32"] = 3.0
