from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import UnsupportedError
from hespas.evidence.measure.measured import Measurement, MeasureOptions, measure_step
from hespas.prediction.options import PredictOptions, ProgramOptions


def test_a_step_takes_the_median_with_percentiles_around_it(measured: Measurement) -> None:
    assert measured.median_s == 0.03
    assert measured.p10_s == pytest.approx(0.014)
    assert measured.p90_s == pytest.approx(0.046)
    assert measured.spread == pytest.approx(0.032 / 0.03)


def test_compiled_programs_are_refused_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "step.hlo"
    file.write_text("HloModule step\n\nENTRY e { ROOT a = f32[] parameter(0) }\n")
    options = PredictOptions(program=ProgramOptions(file=file))
    with pytest.raises(UnsupportedError, match="give the StableHLO that it was made of"):
        measure_step(options, MeasureOptions())
