from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hespas
from hespas.prediction import composition
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import EstimateOptions, PredictOptions, ProgramOptions, StepOptions
from hespas.prediction.result import Prediction, StepWork
from hespas.report.text import headline, table_lines, whole_per_cents

TOKENS = """
func.func @main(%ids: tensor<4x128xi32>, %a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
"""


def rows(prediction: Prediction) -> dict[str, str]:
    return dict(headline(run_report(prediction)).rows)


def options(tmp_path: Path, step: StepOptions) -> PredictOptions:
    file = tmp_path / "p.mlir"
    file.write_text(TOKENS)
    return PredictOptions(
        program=ProgramOptions(file=file), estimate=EstimateOptions(node="H100_80GB"), step=step
    )


def test_tokens_are_read_off_integers_of_two_dimensions(tmp_path: Path) -> None:
    prediction = composition.predict(options(tmp_path, StepOptions()))
    report = run_report(prediction)
    assert report.tokens_per_s == pytest.approx(512 / prediction.step_time_s)
    assert report.samples_per_s == pytest.approx(4 / prediction.step_time_s)
    assert report.mfu is None
    assert "tokens/s" in rows(prediction)["Throughput"]


def test_tokens_that_are_given_count(tmp_path: Path) -> None:
    prediction = composition.predict(options(tmp_path, StepOptions(tokens=1000, samples=3)))
    report = run_report(prediction)
    assert report.tokens_per_s == pytest.approx(1000 / prediction.step_time_s)
    assert report.samples_per_s == pytest.approx(3 / prediction.step_time_s)


def test_what_nobody_knows_is_null() -> None:
    prediction = hespas.predict("examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU")
    report = run_report(prediction)
    assert report.tokens_per_s is report.samples_per_s is report.mfu is None
    assert "Throughput" not in rows(prediction)


def test_the_models_flops_over_the_peak_are_the_mfu(tmp_path: Path) -> None:
    prediction = composition.predict(options(tmp_path, StepOptions()))
    assert prediction.device is not None
    done = prediction.step_time_s * prediction.device.rate("tf32") / 4
    known = replace(prediction, work=StepWork(tokens=1, model_flops=done))
    assert run_report(known).mfu == pytest.approx(0.25)
    assert rows(known)["Utilisation, model (MFU)"].startswith("25.0 % ")


def test_too_little_memory_stands_first(tmp_path: Path) -> None:
    prediction = composition.predict(options(tmp_path, StepOptions()))
    assert prediction.device is not None
    small = replace(prediction, device=replace(prediction.device, memory_capacity_bytes=1000))
    name, text = headline(run_report(small)).rows[0]
    assert name == "Memory"
    assert "does not fit" in text
    assert "too much" in text


def test_a_step_of_months_keeps_its_columns_apart(tmp_path: Path) -> None:
    given = options(tmp_path, StepOptions())
    slow = replace(given, estimate=replace(given.estimate, memory_bandwidth=0.001))
    assert rows(composition.predict(slow))["  compute"].endswith("e+09 s 100.0 %")


_SHARES = st.lists(st.floats(min_value=1e-9, max_value=1), min_size=1, max_size=6)


@given(_SHARES)
def test_whole_per_cents_add_to_100(parts: list[float]) -> None:
    shares = {str(number): part / sum(parts) for number, part in enumerate(parts)}
    rounded = whole_per_cents(shares)
    assert sum(rounded.values()) == 100
    assert all(abs(rounded[name] - 100 * share) <= 1 + 1e-9 for name, share in shares.items())


@pytest.mark.parametrize(
    "method",
    ["measured", *(pytest.param(name, marks=pytest.mark.rest) for name in ("roofline", "kernel"))],
)
def test_shares_of_the_step_add_to_1_and_to_its_parts(method: str) -> None:
    prediction = hespas.predict(
        "examples/llama3_100m_fsdp4.mlir", "H100_80GB", "H100_80GB_4GPU", method=method
    )
    bound = run_report(prediction).bound
    shares = [getattr(bound, name) for name in bound.__struct_fields__]
    assert sum(shares) == pytest.approx(1, abs=1e-12)
    exposed = prediction.exposed_communication_s / prediction.step_time_s
    assert bound.exposed_communication == pytest.approx(exposed, abs=1e-6)


def test_a_table_is_no_wider_than_a_screen() -> None:
    kernel = f"triton_red_fused_{'mul_' * 40}0"
    heading, row = table_lines("Kernels", {"time": 10}, [(kernel, "1 s")])
    assert len(heading) == len(row) <= 80
    assert row.startswith("  triton_red_fused_mul_")
    assert "mul_0 " in row
