from __future__ import annotations

from pathlib import Path

import hespas
from hespas.prediction.figures.step import run_report
from hespas.prediction.result import Prediction
from hespas.report.regions import estimate_summary
from hespas.report.run import run_text
from programs import vector_main


def predicted(tmp_path: Path, text: str, system: str | None = None) -> Prediction:
    file = tmp_path / "p.mlir"
    file.write_text(text)
    return hespas.predict(file, "V100_32GB", system)


def test_a_program_that_does_nothing_is_reported(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, vector_main("", result="%a"))
    text = run_text(run_report(prediction))
    assert "Step time" in text
    assert "0 s" in text
    summary = estimate_summary(prediction.estimates, ())
    assert "Compute Runtime Estimation: 0.000 us" in summary
    assert "proportions" not in summary
