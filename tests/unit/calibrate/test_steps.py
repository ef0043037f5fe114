from __future__ import annotations

from pathlib import Path

import pytest

from hespas.calibrate.samples import FactorFit
from hespas.calibrate.steps import PredictedStep, fit_steps
from hespas.errors import MeasurementError

PREDICTED = {
    "a.hlo": PredictedStep(compute_s=0.040, exposed_s=0.002),
    "b.hlo": PredictedStep(compute_s=0.080, exposed_s=0.0),
}


def fitted(tmp_path: Path, *lines: str) -> FactorFit:
    file = tmp_path / "steps.csv"
    file.write_text("\n".join(lines) + "\n")
    return fit_steps(file, lambda workload: PREDICTED[workload.name])


def test_the_factor_is_on_computation_alone(tmp_path: Path) -> None:
    fit = fitted(tmp_path, "workload,seconds", "a.hlo,0.050", "b.hlo,0.096")
    assert (fit.name, fit.factor) == ("all", 1.2)
    assert max(abs(error) for error in fit.errors_after) < 1e-9


def test_other_units_and_columns(tmp_path: Path) -> None:
    fit = fitted(tmp_path, "note,step_ms,workload", "quiet,50,a.hlo")
    assert fit.factor == 1.2


def test_workloads_are_found_beside_the_file(tmp_path: Path) -> None:
    seen: list[Path] = []

    def predict(workload: Path) -> PredictedStep:
        seen.append(workload)
        return PREDICTED["a.hlo"]

    file = tmp_path / "steps.csv"
    file.write_text("workload,seconds\na.hlo,0.05\n")
    fit_steps(file, predict)
    assert seen == [tmp_path / "a.hlo"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["workload,seconds", "a.hlo,0.05", "a.hlo,0.5"], r"csv:2: .* 50 ms here, but 500 ms in"),
        (["workload,ms", "a.hlo,0.05"], r"csv:2: a step of 50 us leaves no time to compute"),
        (
            ["workload,time", "a.hlo,0.05"],
            r"csv:1: the header doesn't name a workload and one time",
        ),
        (["workload,seconds", "a.hlo,-1"], r"csv:2: '-1' is no time"),
        (["workload,seconds", "a.hlo,1,2"], "without all columns"),
        (["workload,seconds"], "it has no lines"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        fitted(tmp_path, *lines)
