"""A rate of the device decides a time, or is refused with the rate that does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.prediction import composition
from hespas.prediction.options import EstimateOptions, PredictOptions, ProgramOptions
from hespas.prediction.result import Prediction

PRODUCT = """HloModule step, is_scheduled=true

ENTRY %main (a: bf16[4096,4096]) -> bf16[4096,4096] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  ROOT %d = bf16[4096,4096]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
SMALL = PRODUCT.replace("4096,4096", "16,16")


def predicted(program: str, directory: Path, estimate: EstimateOptions) -> Prediction:
    file = directory / "step.hlo"
    file.write_text(program)
    options = PredictOptions(program=ProgramOptions(file=file), estimate=estimate)
    return composition.predict(options)


@pytest.mark.parametrize("method", ["measured", "roofline"])
@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("peak_flops", EstimateOptions(peak_flops=1e12)),
        ("per_datatype_flops", EstimateOptions(per_datatype_flops={"f8E4M3FN": 1e15, "f64": 1e12})),
    ],
)
def test_rates_that_decide_no_time_are_refused_with_the_one_that_does(
    name: str, rates: EstimateOptions, method: str, tmp_path: Path
) -> None:
    estimate = replace(rates, node="H100_80GB", method=method)
    with pytest.raises(ConfigError) as refused:
        predicted(PRODUCT, tmp_path, estimate)
    error = str(refused.value)
    assert f"{name} has no effect: no time that method {method} predicts depends on it" in error
    assert "per_datatype_flops bf16=RATE (989.5TFLOP/s now)" in error


def test_several_rates_of_which_one_decides_are_a_data_sheet(tmp_path: Path) -> None:
    rates = {"bf16": 500e12, "f8E4M3FN": 1e15}
    node = EstimateOptions(node="H100_80GB")
    slower = predicted(PRODUCT, tmp_path, replace(node, per_datatype_flops=rates))
    assert slower.compute_s > 1.5 * predicted(PRODUCT, tmp_path, node).compute_s


def test_a_rate_counts_where_something_else_bounds_the_time(tmp_path: Path) -> None:
    node = EstimateOptions(node="H100_80GB", method="roofline")
    faster = replace(node, per_datatype_flops={"bf16": 2e15})
    before, after = (predicted(SMALL, tmp_path, each).compute_s for each in (node, faster))
    assert before == after


def test_a_device_without_a_node_needs_its_peak(tmp_path: Path) -> None:
    rates = {"bf16": 1e15}
    device = EstimateOptions(peak_flops=1e12, memory_bandwidth=1e12, per_datatype_flops=rates)
    assert predicted(PRODUCT, tmp_path, device).compute_s > 0
