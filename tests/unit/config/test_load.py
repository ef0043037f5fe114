from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

H = "$.perf_estimator.hardware"
ROOFLINE: dict[str, object] = {"peak_flops": 312e12, "memory_bandwidth": 1935e9}
XLA: dict[str, object] = {
    "type": "nvidiagpu",
    "num_npus": 4,
    "sample": False,
    "translate": {"target-backends": "cuda"},
    "in_memory_only_cache": True,
}
IREE: dict[str, object] = {
    "num_npus": 64,
    "sample": True,
    "compile": {
        "device": "local-task",
        "target-backends": "llvm-cpu",
        "extra-args": ["--iree-llvmcpu-target-cpu=host"],
        "extra-runtime-args": [],
    },
    "in_memory_only_cache": True,
}


def _write(directory: Path, value: object) -> Path:
    path = directory / "run.json"
    path.write_text(json.dumps(value))
    return path


def _estimator(method: str, hardware: object) -> dict[str, object]:
    return {"perf_estimator": {"method": method, "hardware": hardware}}


def _roofline(**changes: object) -> dict[str, object]:
    return _estimator("roofline", ROOFLINE | changes)


def _complaint(directory: Path, value: object) -> str:
    path = _write(directory, value)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    value = {
        "mlir_file": "path/to/workload.mlir",
        "split_strategy": "linear_split",
        "output_dir": "output/my_experiment",
    } | _roofline(num_npus=64, in_memory_only_cache=True)
    assert load_config(_write(tmp_path, value)) == RunConfig(
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
    config = load_config(_write(tmp_path, value))
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
    config = load_config(_write(tmp_path, _estimator("roofline", value)))
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
    assert load_config(_write(tmp_path, {})) == RunConfig()
    hardware = roofline_hardware(load_config(_write(tmp_path, _roofline())))
    assert hardware.num_npus is None
    assert dict(hardware.per_datatype_flops) == {}


def test_the_documented_xla_and_iree_files_are_read(tmp_path: Path) -> None:
    xla = load_config(_write(tmp_path, _estimator("xla", XLA)))
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
    iree = load_config(_write(tmp_path, _estimator("iree", IREE)))
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
        roofline_hardware(xla, place="x.json")


def test_xla_and_iree_need_no_hardware_keys(tmp_path: Path) -> None:
    for method, hardware in (("xla", XlaHardware()), ("iree", IreeHardware())):
        config = load_config(_write(tmp_path, {"perf_estimator": {"method": method}}))
        assert config.perf_estimator == EstimatorConfig(method=method, hardware=hardware)


def test_a_run_without_an_estimator_has_no_hardware() -> None:
    with pytest.raises(ConfigError, match=r"^a\.json: no perf_estimator is given; add one"):
        roofline_hardware(RunConfig(), place="a.json")


ARRAY: dict[str, object] = {
    "array_rows": 128,
    "array_columns": 128,
    "clock_hz": 940e6,
    "memory_bandwidth": 900e9,
    "vector_flops": 4e12,
}


@pytest.mark.parametrize("method", ["systolic", "scalesim", "zigzag_onnx"])
def test_the_methods_of_systolic_arrays_are_read(tmp_path: Path, method: str) -> None:
    config = load_config(_write(tmp_path, _estimator(method, ARRAY)))
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
    config = load_config(_write(tmp_path, _estimator(method, ARRAY | CALL | own)))
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
    said = _complaint(tmp_path, _estimator(method, ARRAY | {key: "x"}))
    assert f"unknown key '{key}' in {H}; {known}" in said


@pytest.mark.parametrize("method", ["measured", "kernel"])
def test_the_methods_that_know_parts_by_name_are_read(tmp_path: Path, method: str) -> None:
    config = load_config(_write(tmp_path, _estimator(method, {"node": "H100_80GB"})))
    assert config.perf_estimator == EstimatorConfig(
        method=method, hardware=NodeHardware(node="H100_80GB")
    )


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "$ is []; give an object"),
        (None, "$ is null; give an object"),
        ({"mlir_fil": "a"}, "unknown key 'mlir_fil' in $; did you mean 'mlir_file'?"),
        ({"mlir_file": 3}, "$.mlir_file is 3; give a string"),
        ({"mlir_file": ""}, '$.mlir_file is ""; give a string of length >= 1'),
        ({"clean": 1}, "$.clean is 1; give true or false"),
        ({"clean": "yes"}, '$.clean is "yes"; give true or false'),
        ({"block_lim": 0}, "$.block_lim is 0; give an integer >= 1"),
        ({"block_lim": True}, "$.block_lim is true; give an integer"),
        ({"num_threads": 1.5}, "$.num_threads is 1.5; give an integer"),
        (
            {"split_strategy": "lineer_split"},
            "$.split_strategy is \"lineer_split\"; did you mean 'linear_split'?",
        ),
        (
            {"separator_policy": "x"},
            '$.separator_policy is "x"; known: end_block, isolated, start_block',
        ),
        ({"perf_estimator": {}}, "$.perf_estimator lacks 'method'; add it"),
        (
            {"perf_estimator": {"method": "roofline", "hw": {}}},
            "unknown key 'hw' in $.perf_estimator; known: hardware, method",
        ),
        (
            {"perf_estimator": {"method": "rooflin"}},
            "$.perf_estimator.method is \"rooflin\"; did you mean 'roofline'?",
        ),
        (_estimator("roofline", []), f"{H} is []; give an object"),
        (_estimator("roofline", {}), f"{H} lacks 'peak_flops'; add it"),
        (_estimator("roofline", {"peak_flops": 1.0}), f"{H} lacks 'memory_bandwidth'; add it"),
        (_roofline(peak_flops=0), f"{H}.peak_flops is 0; give a number > 0.0"),
        (_roofline(peak_flops=-1e12), f"{H}.peak_flops is -1000000000000.0; give a number > 0.0"),
        (_roofline(peak_flops="312e12"), f'{H}.peak_flops is "312e12"; give a number'),
        (_roofline(peak_flops=True), f"{H}.peak_flops is true; give a number"),
        (_roofline(memory_bandwidth=0.0), f"{H}.memory_bandwidth is 0.0; give a number > 0.0"),
        (_roofline(num_npus=True), f"{H}.num_npus is true; give an integer"),
        (_roofline(num_npus=0), f"{H}.num_npus is 0; give an integer >= 1"),
        (_roofline(num_npus=-1), f"{H}.num_npus is -1; give an integer >= 1"),
        (_roofline(num_npus="8"), f'{H}.num_npus is "8"; give an integer'),
        (_roofline(tdp_W=0), f"{H}.tdp_W is 0; give a number > 0.0"),
        (_roofline(tdp_w=1), f"unknown key 'tdp_w' in {H}; did you mean 'tdp_W'?"),
        (_roofline(hbm_power_ratio=1.5), f"{H}.hbm_power_ratio is 1.5; give a number <= 1.0"),
        (_roofline(peak_flop=1), f"unknown key 'peak_flop' in {H}; did you mean 'peak_flops'?"),
        (
            _roofline(per_datatype_flops={"f32": 1, "bf16": 0}),
            f"{H}.per_datatype_flops.bf16 is 0; give a number > 0.0",
        ),
        (
            _roofline(per_datatype_flops={"bf16": "fast"}),
            f'{H}.per_datatype_flops.bf16 is "fast"; give a number',
        ),
        (
            _roofline(per_datatype_flops={"bf61": 1}),
            f"unknown element type 'bf61' in {H}.per_datatype_flops; did you mean 'bf16'?",
        ),
        (
            _estimator("xla", XLA | {"translate": {"target-backend": "cuda"}}),
            f"unknown key 'target-backend' in {H}.translate; did you mean 'target-backends'?",
        ),
        (_estimator("xla", XLA | {"num_npus": True}), f"{H}.num_npus is true; give an integer"),
        (_estimator("xla", XLA | {"peak_flops": 1}), None),
        (
            _estimator("iree", IREE | {"compile": {"extra-args": ["-a", 3]}}),
            f"{H}.compile.extra-args[1] is 3; give a string",
        ),
        (
            _estimator("iree", IREE | {"compile": {"extra-args": "-a"}}),
            f'{H}.compile.extra-args is "-a"; give a list',
        ),
        (_estimator("iree", IREE | {"num_npus": 0}), f"{H}.num_npus is 0; give an integer >= 1"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, value: object, complaint: str | None) -> None:
    found = _complaint(tmp_path, value)
    if complaint is None:
        assert found.startswith(f"unknown key 'peak_flops' in {H}; known: ")
    else:
        assert found == complaint


def test_a_number_too_large_for_a_float_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    text = json.dumps(_roofline(peak_flops=123))
    path.write_text(text.replace("123", "1e999"))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: {H}.peak_flops is inf; give a finite number"


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    complaint = _complaint(tmp_path, {"clean": "y" * 500})
    assert len(complaint) < 120
    assert complaint.endswith("...; give true or false")


KEYS = st.sampled_from(
    [
        "mlir_file",
        "clean",
        "block_lim",
        "perf_estimator",
        "method",
        "hardware",
        "peak_flops",
        "memory_bandwidth",
        "per_datatype_flops",
        "num_npus",
        "compile",
        "extra-args",
        "f32",
    ]
)
METHODS = st.sampled_from(["roofline", "xla", "iree", "onnxim"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | METHODS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS | st.text(), inner), max_leaves=12
)


def _outcome(path: Path) -> str:
    try:
        return repr(load_config(path))
    except ConfigError as error:
        return str(error)


@settings(max_examples=60)
@given(VALUES)
def test_any_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = _write(tmp_path_factory.getbasetemp(), value)
    assert "\n" not in _outcome(path)


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES), st.sampled_from(["roofline", "xla", "iree"]))
def test_any_hardware_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, hardware: dict[str, object], method: str
) -> None:
    path = _write(tmp_path_factory.getbasetemp(), _estimator(method, ROOFLINE | hardware))
    assert "\n" not in _outcome(path)


@pytest.mark.parametrize("key", ["a`b", "a\nb", "a` - at `$.clean", "a.b", "$", ""])
def test_a_strange_unknown_key_is_named_in_one_line(tmp_path: Path, key: str) -> None:
    assert "unknown key " in _complaint(tmp_path, {key: 1, "clean": True})


def test_malformed_json_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{\n "mlir_file": \n}')
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert str(caught.value).startswith(f"{path}:3:1: malformed JSON")


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
