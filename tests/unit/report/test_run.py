from __future__ import annotations

from pathlib import Path

import hespas
from hespas.prediction import Prediction
from hespas.report.estimate import estimate_summary
from hespas.report.run import run_report, run_text
from programs import vector_main

KINDS = (
    "sine", "cosine", "exponential", "log", "sqrt", "tanh", "negate", "abs", "floor", "ceil",
    "sign",
)  # fmt: skip


def predicted(tmp_path: Path, text: str, system: str | None = None) -> Prediction:
    file = tmp_path / "p.mlir"
    file.write_text(text)
    return hespas.predict(file, "V100_32GB", system)


def chain(kinds: tuple[str, ...]) -> str:
    names = ["%a", *(f"%v{at}" for at in range(len(kinds) - 1)), "%r"]
    return "\n".join(
        f"{made} = stablehlo.{kind} {taken} : tensor<8xf32>"
        for kind, taken, made in zip(kinds, names, names[1:], strict=False)
    )


def test_kinds_beyond_the_first_eight_are_joined(tmp_path: Path) -> None:
    text = run_text(run_report(predicted(tmp_path, vector_main(chain(KINDS)))))
    assert "  3 other kinds" in text
    table = text.partition("operation")[2].partition("Per device")[0]
    assert table.count("%") == 9


def test_a_program_that_does_nothing_is_reported(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, vector_main("", result="%a"))
    text = run_text(run_report(prediction))
    assert "Step time" in text
    assert "0 s" in text
    summary = estimate_summary(prediction.estimates, ())
    assert "Compute Runtime Estimation: 0.000 us" in summary
    assert "proportions" not in summary
