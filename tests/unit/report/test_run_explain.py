from __future__ import annotations

from pathlib import Path

import hespas
from hespas.prediction.figures.schema import ExplainRow
from hespas.prediction.figures.step import run_report
from hespas.report.run import main_change_lines
from programs import vector_main


def lines(tmp_path: Path, *gains: float) -> list[str]:
    file = tmp_path / "p.mlir"
    file.write_text(vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"))
    report = run_report(hespas.predict(file, "V100_32GB"))
    rows = [
        ExplainRow(change=name, step_time_s=1 - gain, gain=gain)
        for name, gain in zip("abcd", gains, strict=False)
    ]
    report.explain[:] = rows
    return main_change_lines(report)


def test_three_changes_stand_under_a_run(tmp_path: Path) -> None:
    shown = lines(tmp_path, 0.1, 0.1, 0.1, 0.1)
    assert [line.split()[0] for line in shown[1:]] == ["a", "b", "c"]


def test_changes_without_a_gain_do_not(tmp_path: Path) -> None:
    assert len(lines(tmp_path, 0.1, 0.0, -0.1)) == 2


def test_nothing_that_gains_gives_no_lines(tmp_path: Path) -> None:
    assert not lines(tmp_path, 0.0)
