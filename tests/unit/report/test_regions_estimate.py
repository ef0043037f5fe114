from __future__ import annotations

from pathlib import Path

import hespas
from hespas.prediction.result import Prediction
from hespas.report.regions import estimate_summary
from programs import all_reduce, on_devices, vector_main


def predicted(tmp_path: Path, text: str, system: str | None = None) -> Prediction:
    file = tmp_path / "p.mlir"
    file.write_text(text)
    return hespas.predict(file, "V100_32GB", system, fidelity="exported")


def test_small_shares_are_left_out_of_the_proportions(tmp_path: Path) -> None:
    big = "tensor<65536xf32>"
    text = vector_main(
        f"%z = stablehlo.iota dim = 0 : {big}\n%y = stablehlo.sine %z : {big}\n"
        "%r = stablehlo.cosine %a : tensor<8xf32>"
    )
    summary = estimate_summary(predicted(tmp_path, text).estimates, ())
    assert "    stablehlo.sine: 0.667" in summary
    assert "cosine" not in summary


def test_cache_lines_are_spelled_as_documented(tmp_path: Path) -> None:
    body = f"{all_reduce('%b', '%a')}\n%c = stablehlo.sine %b : tensor<8xf32>\n"
    body += f"{all_reduce('%d', '%c', channel=2)}\n%r = stablehlo.sine %d : tensor<8xf32>"
    prediction = predicted(tmp_path, on_devices(vector_main(body)), "V100_32GB_4GPU")
    lines = estimate_summary(prediction.estimates, ()).splitlines()
    assert lines[:3] == [
        "Cache hits: 1",
        "Basic block reuse rate: 0.500 (1/2)",
        "Operator reuse factor: 0.500 (1/2)",
    ]
