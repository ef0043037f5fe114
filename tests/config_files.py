"""Configuration files as tests write them, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.prediction.configuration import read_configuration

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


def write_config(directory: Path, value: object) -> Path:
    path = directory / "run.json"
    path.write_text(json.dumps(value))
    return path


def estimator_json(method: str, hardware: object) -> dict[str, object]:
    return {"perf_estimator": {"method": method, "hardware": hardware}}


def roofline_json(**changes: object) -> dict[str, object]:
    return estimator_json("roofline", ROOFLINE | changes)


def complaint_of(directory: Path, value: object) -> str:
    path = write_config(directory, value)
    with pytest.raises(ConfigError) as caught:
        read_configuration(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")
