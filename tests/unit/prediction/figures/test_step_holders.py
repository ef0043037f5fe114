"""Who holds memory at the peak, in figures and in text."""

from __future__ import annotations

from hespas import predict
from hespas.frontend.load import load_per_device
from hespas.program.recorded import encode_recorded
from hespas.report.answers import full_report
from hespas.report.run import run_text
from recorded_steps import sharded_layers


def test_rows_add_up_to_what_is_live_and_the_text_has_them() -> None:
    program = load_per_device(encode_recorded(sharded_layers()), name="step.json").program
    prediction = predict(program, cluster="8xH100_80GB", model="hespas")
    report = full_report(prediction)
    assert sum(row.bytes for row in report.holders) == report.live_memory_bytes
    assert report.live_memory_bytes is not None
    assert report.live_memory_bytes <= report.peak_memory_bytes
    paths = {row.path for row in report.holders if row.role == "activation"}
    assert paths == {"layers/wq"}
    text = run_text(report)
    assert "live at the peak" in text
    assert "Live memory at the peak, by module" in text
