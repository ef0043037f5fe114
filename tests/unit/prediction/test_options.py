from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from hespas.backends.cocossim import CocossimHardware
from hespas.backends.iree import IreeCompile, IreeHardware
from hespas.backends.onnxim import OnnximHardware
from hespas.backends.xla import XlaHardware, XlaTranslate
from hespas.errors import ConfigError
from hespas.hardware.device import NodeHardware, RooflineHardware, read_roofline
from hespas.prediction.configuration import read_configuration
from hespas.price.systolic import SystolicHardware
from hespas.split.options import SeparatorPolicy, SplitStrategy


def values(directory: Path, config: object) -> dict[str, object]:
    """Return what a configuration says, but for its path."""
    read = dict(read_configuration(write_config(directory, config)).values)
    read.pop("configuration", None)
    return read


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    value = {
        "mlir_file": "path/to/workload.mlir",
        "split_strategy": "linear_split",
        "output_dir": "output/my_experiment",
    } | roofline_json(num_npus=64, in_memory_only_cache=True)
    assert values(tmp_path, value) == {
        "mlir_file": Path("path/to/workload.mlir"),
        "split_fn": SplitStrategy.LINEAR,
        "output": Path("output/my_experiment"),
        "method": "roofline",
        "hardware": RooflineHardware(
            peak_flops=312e12,
            memory_bandwidth=1935e9,
            num_npus=64,
            in_memory_only_cache=True,
        ),
        "devices": 64,
        "in_memory_only_cache": True,
    }


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
    assert values(tmp_path, value) == {
        "mlir_file": Path("a.mlir"),
        "split_fn": SplitStrategy.INDIVIDUAL,
        "output": Path("out"),
        "clean": True,
        "block_lim": 1024,
        "cache_dir": Path("cache"),
        "threads": 2,
        "separator": "is_communication_op",
        "separator_policy": SeparatorPolicy.END_BLOCK,
    }, "a switch that is off is not given"


def test_every_documented_key_of_the_roofline_is_read(tmp_path: Path) -> None:
    value = ROOFLINE | {
        "num_npus": 8,
        "per_datatype_flops": {"f16": 312e12, "f8E4M3FN": 1e9},
        "in_memory_only_cache": False,
        "tdp_W": 400,
        "hbm_power_ratio": 0.25,
        "error_on_unknown_type": True,
        "warn_on_unknown_type": False,
    }
    hardware = RooflineHardware(
        peak_flops=312e12,
        memory_bandwidth=1935e9,
        num_npus=8,
        per_datatype_flops={"f16": 312e12, "f8E4M3FN": 1e9},
        in_memory_only_cache=False,
        tdp_w=400.0,
        hbm_power_ratio=0.25,
        error_on_unknown_type=True,
        warn_on_unknown_type=False,
    )
    config = estimator_json("roofline", value)
    assert values(tmp_path, config)["hardware"] == hardware
    assert read_roofline(write_config(tmp_path, config)) == hardware


def test_what_the_file_leaves_out_is_not_given(tmp_path: Path) -> None:
    assert values(tmp_path, {}) == {}
    hardware = read_roofline(write_config(tmp_path, roofline_json()))
    assert hardware.num_npus is None
    assert dict(hardware.per_datatype_flops) == {}


def test_the_documented_xla_and_iree_files_are_read(tmp_path: Path) -> None:
    config = estimator_json("xla", XLA)
    assert values(tmp_path, config)["hardware"] == XlaHardware(
        type="nvidiagpu",
        num_npus=4,
        sample=False,
        translate=XlaTranslate(target_backends="cuda"),
        in_memory_only_cache=True,
    )
    with pytest.raises(ConfigError, match=r"run\.json: method 'xla' describes no device"):
        read_roofline(write_config(tmp_path, config))
    assert values(tmp_path, estimator_json("iree", IREE))["hardware"] == IreeHardware(
        num_npus=64,
        sample=True,
        compile=IreeCompile(
            device="local-task",
            target_backends="llvm-cpu",
            extra_args=("--iree-llvmcpu-target-cpu=host",),
            extra_runtime_args=(),
        ),
        in_memory_only_cache=True,
    )


def test_xla_and_iree_need_no_hardware_keys(tmp_path: Path) -> None:
    for method, hardware in (("xla", XlaHardware()), ("iree", IreeHardware())):
        read = values(tmp_path, {"perf_estimator": {"method": method}})
        assert read == {"method": method, "hardware": hardware}


def test_a_run_without_an_estimator_has_no_hardware(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.json: no perf_estimator is given; add one"):
        read_roofline(write_config(tmp_path, {}))


ARRAY: dict[str, object] = {
    "array_rows": 128,
    "array_columns": 128,
    "clock_hz": 940e6,
    "memory_bandwidth": 900e9,
    "vector_flops": 4e12,
}


@pytest.mark.parametrize("method", ["systolic", "scalesim", "zigzag_onnx"])
def test_the_methods_of_systolic_arrays_are_read(tmp_path: Path, method: str) -> None:
    assert values(tmp_path, estimator_json(method, ARRAY)) == {
        "method": method,
        "hardware": SystolicHardware(
            array_rows=128,
            array_columns=128,
            clock_hz=940e6,
            memory_bandwidth=900e9,
            vector_flops=4e12,
        ),
    }


CALL: dict[str, object] = {
    "binary": "/opt/simulator",
    "arguments": ["-i", "{workload}"],
    "cycles_pattern": "cycles ([0-9]+)",
    "answer_file": "answer.txt",
    "files": {"configs": "/opt/configs"},
}


@pytest.mark.parametrize(
    ("method", "own", "form"),
    [
        ("cocossim", {"product_line": "Product {m} {n} {k}"}, CocossimHardware),
        (
            "onnxim",
            {"core_config": "c.json", "operator": "Gemm", "model_options": {"batch_size": 1}},
            OnnximHardware,
        ),
    ],
)
def test_the_methods_of_programs_are_read(
    tmp_path: Path, method: str, own: dict[str, object], form: type[SystolicHardware]
) -> None:
    given = ARRAY | CALL | own
    hardware = values(tmp_path, estimator_json(method, given))["hardware"]
    assert isinstance(hardware, form)
    read = msgspec.json.decode(msgspec.json.encode(hardware))
    assert {name: read[name] for name in given} == given


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
    read = values(tmp_path, estimator_json(method, {"node": "H100_80GB"}))
    assert read == {"method": method, "hardware": NodeHardware(node="H100_80GB")}


def test_per_type_rates_cannot_be_changed() -> None:
    rates = {"f32": 1e12}
    hardware = RooflineHardware(peak_flops=1e12, memory_bandwidth=1e9, per_datatype_flops=rates)
    rates["f32"] = 2e12
    assert hardware.per_datatype_flops == {"f32": 1e12}
    with pytest.raises(TypeError):
        cast("dict[str, float]", hardware.per_datatype_flops)["f32"] = 3.0


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
        (estimator_json("roofline", []), f"{H} is []; give an object"),
        (estimator_json("roofline", {}), f"{H} lacks 'peak_flops'; add it"),
        (estimator_json("roofline", {"peak_flops": 1.0}), f"{H} lacks 'memory_bandwidth'; add it"),
        (roofline_json(peak_flops=0), f"{H}.peak_flops is 0; give a number > 0.0"),
        (
            roofline_json(peak_flops=-1e12),
            f"{H}.peak_flops is -1000000000000.0; give a number > 0.0",
        ),
        (roofline_json(peak_flops="312e12"), f'{H}.peak_flops is "312e12"; give a number'),
        (roofline_json(peak_flops=True), f"{H}.peak_flops is true; give a number"),
        (roofline_json(memory_bandwidth=0.0), f"{H}.memory_bandwidth is 0.0; give a number > 0.0"),
        (roofline_json(num_npus=True), f"{H}.num_npus is true; give an integer"),
        (roofline_json(num_npus=0), f"{H}.num_npus is 0; give an integer >= 1"),
        (roofline_json(num_npus=-1), f"{H}.num_npus is -1; give an integer >= 1"),
        (roofline_json(num_npus="8"), f'{H}.num_npus is "8"; give an integer'),
        (roofline_json(tdp_W=0), f"{H}.tdp_W is 0; give a number > 0.0"),
        (roofline_json(tdp_w=1), f"unknown key 'tdp_w' in {H}; did you mean 'tdp_W'?"),
        (roofline_json(hbm_power_ratio=1.5), f"{H}.hbm_power_ratio is 1.5; give a number <= 1.0"),
        (roofline_json(peak_flop=1), f"unknown key 'peak_flop' in {H}; did you mean 'peak_flops'?"),
        (
            roofline_json(per_datatype_flops={"f32": 1, "bf16": 0}),
            f"{H}.per_datatype_flops.bf16 is 0; give a number > 0.0",
        ),
        (
            roofline_json(per_datatype_flops={"bf16": "fast"}),
            f'{H}.per_datatype_flops.bf16 is "fast"; give a number',
        ),
        (
            roofline_json(per_datatype_flops={"bf61": 1}),
            "unknown element type 'bf61' in per_datatype_flops; did you mean 'bf16'?",
        ),
        (
            estimator_json("xla", XLA | {"translate": {"target-backend": "cuda"}}),
            f"unknown key 'target-backend' in {H}.translate; did you mean 'target-backends'?",
        ),
        (estimator_json("xla", XLA | {"num_npus": True}), f"{H}.num_npus is true; give an integer"),
        (estimator_json("xla", XLA | {"peak_flops": 1}), None),
        (
            estimator_json("iree", IREE | {"compile": {"extra-args": ["-a", 3]}}),
            f"{H}.compile.extra-args[1] is 3; give a string",
        ),
        (
            estimator_json("iree", IREE | {"compile": {"extra-args": "-a"}}),
            f'{H}.compile.extra-args is "-a"; give a list',
        ),
        (
            estimator_json("iree", IREE | {"num_npus": 0}),
            f"{H}.num_npus is 0; give an integer >= 1",
        ),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, value: object, complaint: str | None) -> None:
    found = complaint_of(tmp_path, value)
    if complaint is None:
        assert found.startswith(f"unknown key 'peak_flops' in {H}; known: ")
    else:
        assert found == complaint


def test_a_number_too_large_for_a_float_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    text = json.dumps(roofline_json(peak_flops=123))
    path.write_text(text.replace("123", "1e999"))
    with pytest.raises(ConfigError) as caught:
        read_configuration(path)
    assert str(caught.value) == f"{path}: {H}.peak_flops is inf; give a finite number"


def test_a_long_value_is_cut_short(tmp_path: Path) -> None:
    complaint = complaint_of(tmp_path, {"clean": "y" * 500})
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
        return repr(read_configuration(path))
    except ConfigError as error:
        return str(error)


@settings(max_examples=60)
@given(VALUES)
def test_any_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = write_config(tmp_path_factory.getbasetemp(), value)
    assert "\n" not in _outcome(path)


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES), st.sampled_from(["roofline", "xla", "iree"]))
def test_any_hardware_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, hardware: dict[str, object], method: str
) -> None:
    path = write_config(tmp_path_factory.getbasetemp(), estimator_json(method, ROOFLINE | hardware))
    assert "\n" not in _outcome(path)


@pytest.mark.parametrize("key", ["a`b", "a\nb", "a` - at `$.clean", "a.b", "$", ""])
def test_a_strange_unknown_key_is_named_in_one_line(tmp_path: Path, key: str) -> None:
    assert "unknown key " in complaint_of(tmp_path, {key: 1, "clean": True})


def test_malformed_json_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{\n "mlir_file": \n}')
    with pytest.raises(ConfigError) as caught:
        read_configuration(str(path))
    assert str(caught.value).startswith(f"{path}:3:1: malformed JSON")
