from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.evidence.measure.measured import Measurement
from hespas.evidence.measure.report import measured_json, measurement_text, table_names, table_step
from hespas.evidence.validate.measurements import add_step, read_steps
from hespas.evidence.validate.recompute import check_step
from hespas.prediction.options import (
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.sources.options import ModelOptions

CLUSTER = NetworkOptions(cluster="4xA100_SXM_40GB")
MODEL = PredictOptions(
    program=ProgramOptions(file=Path("llama3-100m"), model=ModelOptions(batch=2)), network=CLUSTER
)


def test_the_text_says_time_spread_memory_and_versions(measured: Measurement) -> None:
    lines = measurement_text(measured).splitlines()
    assert lines == [
        "step.mlir: one step on 4 x NVIDIA A100-SXM4-40GB, measured",
        "  Step time       30 ms, the median of 5 steps",
        "  10 % to 90 %    14 ms to 46 ms: a spread of 106.7 %",
        "  Memory          2 GiB a device, of 30 GiB that were free",
        "  Compiled in     2 s",
        "  Versions        jax 1, jaxlib 2",
        "  Note: steps differ widely: other programs run here, or more steps are needed",
    ]


def test_the_json_has_every_duration(measured: Measurement) -> None:
    shown = measured_json(measured, None)
    assert shown["durations_s"] == list(measured.durations_s)
    assert (shown["least_s"], shown["median_s"], shown["most_s"]) == (0.01, 0.03, 0.05)
    assert shown["predicted"] is None


def test_a_line_is_what_validate_reads(measured: Measurement, tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    add_step(table_step(MODEL, measured), table)
    (step,) = read_steps(table)
    assert step.workload == "llama3-100m"
    assert step.options == {"batch": "2", "mesh": "fsdp=4", "scan": "True"} | dict(step.options)
    assert (step.node, step.system) == ("A100_SXM_40GB", "4xA100_SXM_40GB")
    assert step.interval_s == pytest.approx((0.014, 0.046))
    check_step(step, method="roofline", location=f"{table}:2")


def test_a_line_needs_a_system(tmp_path: Path) -> None:
    file = tmp_path / "step.mlir"
    file.write_text("module {}")
    alone = PredictOptions(
        program=ProgramOptions(file=file), estimate=EstimateOptions(node="A100_SXM_40GB")
    )
    with pytest.raises(ConfigError, match="csv names the system"):
        table_names(alone)


def test_a_function_has_no_line() -> None:
    function = PredictOptions(program=ProgramOptions(file=Path("mine:step")), network=CLUSTER)
    with pytest.raises(ConfigError, match="csv names a model or a file, and mine:step is neither"):
        table_names(function)
