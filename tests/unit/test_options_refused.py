from __future__ import annotations

import json
from pathlib import Path

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
from hespas.errors import ConfigError
from hespas.options import read_configuration


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
