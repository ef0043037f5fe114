from __future__ import annotations

from dataclasses import field
from pathlib import Path

import pytest

from hespas.base.frozen import frozen
from hespas.errors import ConfigError, MeasurementError
from hespas.evidence.calibrate.factors import fit_factors
from hespas.evidence.calibrate.samples import FactorFit
from hespas.evidence.calibrate.steps import PipelineSteps, Workload, step_group
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.hardware.system import System

DEVICE = load_device("H100_80GB")


@frozen
class Steps(PipelineSteps):
    """40 ms that the factor scales beside 5 ms that it doesn't."""

    node: Device = DEVICE
    system: System | None = None
    compiled: bool = True
    peaks_s: float = 0.020
    seen: list[Workload] = field(default_factory=list[Workload])

    def step_s(self, workload: Workload, device: Device) -> float:
        self.seen.append(workload)
        if workload.file.name == "gone.hlo":
            raise ConfigError("cannot be read", location=str(workload.file), hint="check the path")
        assert device.measured is not None
        return 0.005 + 0.040 * device.measured.factors.get("all", 1.0)

    def floor_s(self, workload: Workload, device: Device) -> float:
        assert self.step_s(workload, device) > self.peaks_s
        return self.peaks_s

    def is_compiled(self, workload: Workload) -> bool:
        return self.compiled and bool(workload.file.name)


def fitted(tmp_path: Path, *lines: str, compiled: bool = True) -> FactorFit:
    file = tmp_path / "steps.csv"
    file.write_text("\n".join(lines) + "\n")
    (fit,) = fit_factors([step_group(file, Steps(compiled=compiled), DEVICE)], DEVICE)
    return fit


def test_the_factor_leaves_what_it_does_not_scale(tmp_path: Path) -> None:
    fit = fitted(tmp_path, "workload,seconds", "a.hlo,0.053", "b.hlo,0.053")
    assert (fit.name, fit.factor, fit.notes) == ("all", 1.2, ())
    assert max(abs(sample.error_after) for sample in fit.samples) < 1e-9


def test_other_units_and_columns(tmp_path: Path) -> None:
    fit = fitted(tmp_path, "note,step_ms,workload", "quiet,53,a.hlo")
    assert fit.factor == 1.2


def test_workloads_are_found_beside_the_file(tmp_path: Path) -> None:
    steps = Steps()
    file = tmp_path / "steps.csv"
    file.write_text("workload,kernels,seconds\na.hlo,a.json,0.05\nb.hlo,,0.05\n")
    step_group(file, steps, DEVICE)
    assert set(steps.seen) == {
        Workload(file=tmp_path / "a.hlo", kernels=tmp_path / "a.json"),
        Workload(file=tmp_path / "b.hlo"),
    }


def test_who_has_a_program_that_is_not_compiled_is_reported_the_method(tmp_path: Path) -> None:
    fit = fitted(tmp_path, "workload,seconds", "a.mlir,0.053", compiled=False)
    (note,) = fit.notes
    assert "steps.csv:2: a.mlir is not compiled: hespas run prices it by the roofline" in note
    assert "unless --method measured is given" in note


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["workload,seconds", "a.hlo,0.05", "a.hlo,0.5"], r"csv:2: .* 50 ms here, but 500 ms in"),
        (
            ["workload,ms", "a.hlo,0.05"],
            r"csv:2: a\.hlo in 50 us is below the physical floor of 20 ms; correct the unit",
        ),
        (
            ["workload,seconds", "a.hlo,50"],
            r"csv:2: a\.hlo in 50 s is 1111 times the 45 ms expected; correct the unit",
        ),
        (
            ["workload,time", "a.hlo,0.05"],
            r"csv:1: the header doesn't name one time with its unit",
        ),
        (
            ["workload,ms,Workload", "a.hlo,5,b.hlo"],
            r"csv:1: the header has two columns 'workload'",
        ),
        (["workload,seconds", "a.hlo,-1"], r"csv:2: seconds is '-1'; give a number above 0"),
        (["workload,seconds", "a.hlo,1,2"], r"csv:2: the line has 3 cells under 2 columns"),
        (["workload,seconds"], "there is no measurement"),
        (["a.hlo,0.05"], r"csv:1: there is no header; .* must be the header: workload,seconds"),
        (
            ["workload,seconds", "a.hlo,0.05", "gone.hlo,0.05"],
            r"csv:3: .*gone\.hlo: cannot be read; check the path",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        fitted(tmp_path, *lines)


def test_less_than_a_program_that_is_not_compiled_takes_at_the_peaks_is_refused(
    tmp_path: Path,
) -> None:
    message = r"csv:2: a\.mlir in 10 ms is less than the 20 ms .* isn't compiled.*; give the comp"
    with pytest.raises(MeasurementError, match=message):
        fitted(tmp_path, "workload,seconds", "a.mlir,0.010", compiled=False)


def test_a_step_without_time_to_compute_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("workload,seconds\na.hlo,0.004\n")
    with pytest.raises(MeasurementError, match=r"csv:2: a step of 4 ms leaves no time to compute"):
        step_group(file, Steps(peaks_s=0.001), DEVICE)
