"""Utilisations are FLOPs over (time x peak), with the FLOPs, times and peaks that stand beside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hespas.base.units import parse_quantity
from hespas.models.model import parse_mesh
from hespas.prediction import composition, staged
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.report.run import run_text
from hespas.sources.options import ModelOptions

A100_BF16 = 312e12
"""FLOP/s, dense: NVIDIA A100 datasheet."""
A100_BANDWIDTH = 1555e9
"""B/s of the 40 GB part: the same."""


def model(mesh: str, cluster: str, *, batch: int = 1) -> PredictOptions:
    given = ModelOptions(mesh=parse_mesh(mesh), sequence=512, batch=batch)
    return PredictOptions(
        program=ProgramOptions(file=Path("llama3-100m"), model=given),
        network=NetworkOptions(cluster=cluster),
    )


@pytest.fixture(scope="module")
def report() -> RunReport:
    return run_report(composition.predict(model("fsdp=4", "4xA100_SXM_40GB")))


def check(report: RunReport) -> None:
    assert report.peak_flops_per_s is not None
    assert report.peak_bytes_per_s is not None
    of_step = report.step_time_s * report.peak_flops_per_s
    assert report.model_flops is not None
    assert report.mfu == pytest.approx(report.model_flops / (report.devices * of_step), rel=1e-12)
    assert report.hardware_utilisation == pytest.approx(report.flops / of_step, rel=1e-12)
    computing = report.compute_s * report.peak_flops_per_s
    assert report.flops_utilisation == pytest.approx(report.flops / computing, rel=1e-12)
    moving = report.compute_s * report.peak_bytes_per_s
    share = report.memory_traffic_bytes / moving
    assert report.memory_utilisation == pytest.approx(share, rel=1e-12)


def test_all_of_an_answer_divide_by_the_datasheets_peak(report: RunReport) -> None:
    assert (report.peak_type, report.peak_flops_per_s) == ("bf16", A100_BF16)
    assert report.peak_bytes_per_s == pytest.approx(A100_BANDWIDTH)
    check(report)


def test_those_of_a_pipeline_divide_out() -> None:
    options = model("pipe=7", "7xA100_SXM_40GB", batch=2)
    check(run_report(staged.predict_pipeline(options)))


_QUOTIENT = re.compile(
    r"Utilisation, (?:model \(MFU\)|executed) +([0-9.]+) % +([0-9.]+ \wFLOP)(?: a device)? / "
    r"\(([0-9.]+ \w?s)(?: x ([0-9]+))? x ([0-9.]+ \wFLOP/s) of bf16\)"
)


def test_the_lines_of_the_text_divide_out(report: RunReport) -> None:
    found = _QUOTIENT.findall(run_text(report))
    assert len(found) == 2
    for share, flops, time, devices, peak in found:
        over = parse_quantity(time, "s") * int(devices or 1) * parse_quantity(peak, "FLOP/s")
        # Figures have four digits, shares a tenth of a per cent.
        divided = 100 * parse_quantity(flops, "FLOP") / over
        assert float(share) == pytest.approx(divided, rel=2e-3, abs=0.06)


def test_a_product_at_its_peak_is_1(tmp_path: Path) -> None:
    """2 n^3 FLOPs, n = 4096, take 440.5 us at 312 TFLOP/s, and their bytes 64.7 us."""
    kind = "tensor<4096x4096xbf16>"
    file = tmp_path / "p.mlir"
    file.write_text(
        f"func.func @main(%a: {kind}) -> {kind} {{\n"
        f"  %r = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : "
        f"({kind}, {kind}) -> {kind}\n  return %r : {kind}\n}}\n"
    )
    options = PredictOptions(
        program=ProgramOptions(file=file),
        compile=CompileChoice(fidelity=Fidelity.EXPORTED),
        estimate=EstimateOptions(node="A100_SXM_40GB", method="roofline"),
    )
    report = run_report(composition.predict(options))
    assert report.step_time_s == pytest.approx(2 * 4096**3 / A100_BF16, rel=1e-6)
    assert report.hardware_utilisation == pytest.approx(1.0, rel=1e-6)
    assert report.mfu is None
