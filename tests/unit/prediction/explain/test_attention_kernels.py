"""Kernels at the limit of their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.hardware.presets import load_device
from hespas.prediction import composition
from hespas.prediction.explain.changes import all_changes
from hespas.prediction.options import EstimateOptions, PredictOptions, ProgramOptions

NODE = "H100_80GB"
HLO = """HloModule step, is_scheduled=true

%loop (p: f32[16777216]) -> f32[16777216] {
  %p = f32[16777216]{0} parameter(0)
  ROOT %n = f32[16777216]{0} negate(%p)
}

ENTRY %main (a: f32[16777216]) -> f32[16777216] {
  %a = f32[16777216]{0} parameter(0)
  %fusion.1 = f32[16777216]{0} fusion(%a), kind=kLoop, calls=%loop
  ROOT %fusion.2 = f32[16777216]{0} fusion(%fusion.1), kind=kLoop, calls=%loop
}
"""


@pytest.mark.parametrize("method", ["measured", "kernel"])
def test_a_kernel_at_its_limit_takes_its_bytes_and_its_launch(tmp_path: Path, method: str) -> None:
    file = tmp_path / "step.hlo"
    file.write_text(HLO)
    options = PredictOptions(
        program=ProgramOptions(file=file), estimate=EstimateOptions(node=NODE, method=method)
    )
    prediction = composition.predict(options)
    found = {each.change: each for each in all_changes(prediction)}
    moved_s = 2 * 4 * 16777216 / load_device(NODE).memory_bandwidth_bytes_per_s
    limit_s = moved_s + load_microarchitecture(NODE).launch_s
    everything = found["every kernel at its memory limit"]
    assert everything.step_time_s == pytest.approx(2 * limit_s)
    one = found["kernel fusion.1 at its memory limit"]
    # Equal kernels are one, by the name of the first.
    assert one.gain == pytest.approx(everything.gain)
    reached = 2 * limit_s / prediction.step_time_s
    assert f"{100 * reached:.0f} % of its memory limit: no PTX" in one.note
