from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hespas
from hespas.hardware.presets import load_device
from hespas.prediction.figures.schema import EnergyParts
from hespas.prediction.figures.step import run_report
from hespas.prediction.result import Prediction
from hespas.report.text import headline
from small_pipelines import predicted as stages_of

STEP = """HloModule step, is_scheduled=true, replica_count={devices}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}

ENTRY %main (a: bf16[16384,16384], b: f32[1048576]) -> f32[1048576] {{
  %a = bf16[16384,16384]{{1,0}} parameter(0)
  %b = f32[1048576]{{0}} parameter(1)
  %d = bf16[16384,16384]{{1,0}} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %r = f32[1048576]{{0}} all-reduce(%b), replica_groups={{}}, to_apply=%add
}}
"""


def predicted(
    tmp_path: Path, devices: int = 8, part: str = "H100_80GB", **given: Any
) -> Prediction:
    file = tmp_path / "step.hlo"
    file.write_text(STEP.format(devices=devices))
    return hespas.predict(file, cluster=f"{devices}x{part}", fidelity="compiled", **given)


@pytest.mark.parametrize("part", ["H100_80GB", "B200_180GB", "A100_SXM_40GB"])
@pytest.mark.parametrize("pue", [1.0, 1.25])
def test_the_parts_add_up(tmp_path: Path, part: str, pue: float) -> None:
    report = run_report(predicted(tmp_path, part=part, pue=pue))
    parts = report.energy
    assert parts is not None
    assert parts.node_j is not None
    assert parts.network_j is not None
    machine_j = parts.compute_j + parts.memory_j + parts.idle_j + parts.node_j + parts.network_j
    assert report.energy_j == pytest.approx(machine_j + parts.facility_j)
    assert parts.facility_j == pytest.approx((pue - 1) * machine_j)


def test_machines_draw_what_was_measured_under_products(tmp_path: Path) -> None:
    # `validation/power_readings.py`: 6.8 to 7.2 kW, 9.6 to 10 kW while they trained.
    for part, measured_w in (("H100_80GB", 7000), ("B200_180GB", 9800)):
        parts = run_report(predicted(tmp_path, part=part)).energy
        assert parts is not None
        assert parts.node_w == pytest.approx(measured_w, rel=0.1)
        assert parts.device_w <= parts.power_limit_w


def test_switches_between_machines_have_a_share(tmp_path: Path) -> None:
    one, two = (run_report(predicted(tmp_path, devices=devices)).energy for devices in (8, 16))
    assert one is not None
    assert two is not None
    assert one.network_j == 0
    assert two.network_j is not None
    assert two.network_j > 0


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_pipeline_draws_power_while_its_stages_wait(schedule: str) -> None:
    report = run_report(stages_of(schedule), with_tables=False)
    parts, power = report.energy, load_device("H100_80GB").power
    assert parts is not None
    assert parts.node_j is not None
    assert power is not None
    assert parts.idle_j == pytest.approx(power.idle_w * report.step_time_s)
    assert parts.compute_j > power.busy_w * parts.clock**3 * report.compute_s * 0.9
    assert parts.device_w <= parts.power_limit_w
    assert report.energy_j == pytest.approx(
        parts.compute_j + parts.memory_j + parts.idle_j + parts.node_j
    )


def test_without_the_clock_energy_is_of_the_board_while_it_computes(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, clocks="measured")
    assert run_report(prediction).energy is None
    tdp_w = load_device("H100_80GB").tdp_w
    assert tdp_w is not None
    assert run_report(prediction, with_tables=False).energy_j == pytest.approx(
        tdp_w * prediction.compute_s
    )
    more = run_report(predicted(tmp_path, clocks="measured", pue=1.5), with_tables=False)
    assert more.energy_j == pytest.approx(1.5 * tdp_w * prediction.compute_s)


def test_the_headline_says_power_and_parts(tmp_path: Path) -> None:
    rows = dict(headline(run_report(predicted(tmp_path))).rows)
    assert "kW a machine of 8 (limit 700 W, clock" in rows["Power"]
    shares = [int(word) for word in rows["Energy"].split() if word.isdigit()]
    assert sum(shares) == 100


def test_every_part_of_the_energy_is_explained_by_its_name_in_json_and_in_text() -> None:
    page = Path("docs/reference/output.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `energy` |"))
    parts = [name for name in EnergyParts.__struct_fields__ if name.endswith("_j")]
    words = ("arithmetic", "memory", "idle", "machine", "network", "facility")
    assert len(parts) == len(words)
    assert all(f"`{name}`" in row for name in parts)
    assert all(f"*{word}*" in row for word in words)
