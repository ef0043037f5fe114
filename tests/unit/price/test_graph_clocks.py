from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hespas
from hespas.errors import ConfigError, HardwareError, HespasError
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.prediction.explain.changes import AT_BOOST, main_changes
from hespas.prediction.options import Clocks, PowerOptions
from hespas.price.estimate import OpEstimate, TypeTotals
from hespas.price.graph import draw_of
from hespas.report.answers import Answer

PRODUCTS = """HloModule step, is_scheduled=true

ENTRY %main (a: bf16[16384,16384]) -> bf16[16384,16384] {
  %a = bf16[16384,16384]{1,0} parameter(0)
  ROOT %d = bf16[16384,16384]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
STREAMING = """HloModule step, is_scheduled=true

ENTRY %main (a: f32[268435456]) -> f32[268435456] {
  %a = f32[268435456]{0} parameter(0)
  ROOT %n = f32[268435456]{0} negate(%a)
}
"""
NODE = "H100_80GB"


def predicted(
    tmp_path: Path, text: str = PRODUCTS, node: Device | str = NODE, **given: Any
) -> Answer:
    file = tmp_path / "step.hlo"
    file.write_text(text)
    return hespas.predict(file, node, fidelity="compiled", **given)


def clock_of(prediction: Answer) -> float:
    assert prediction.estimates.sustained is not None
    return prediction.estimates.sustained.clock


def test_types_are_those_of_the_tables() -> None:
    types = {
        "f16": TypeTotals(flops=1.0),
        "bf16": TypeTotals(flops=2.0),
        "f8E5M2": TypeTotals(flops=4.0),
    }
    assert draw_of(OpEstimate(per_type=types)).flops == {"bf16": 3.0, "f8": 4.0}


def test_a_long_product_runs_at_the_clock_at_which_it_was_measured(tmp_path: Path) -> None:
    power = load_device(NODE).power
    assert power is not None
    found, in_loop = predicted(tmp_path), predicted(tmp_path, clocks="measured")
    assert clock_of(found) == pytest.approx(power.loop_clock, abs=0.03)
    assert found.step_time_s == pytest.approx(in_loop.step_time_s, rel=0.03)
    assert in_loop.estimates.sustained is None


@pytest.mark.parametrize("limit_w", [650.0, 500.0, 400.0])
def test_the_mean_power_is_the_limit(tmp_path: Path, limit_w: float) -> None:
    sustained = predicted(tmp_path, power_limit_w=limit_w).estimates.sustained
    assert sustained is not None
    assert sustained.power_w == pytest.approx(limit_w, rel=0.01)
    assert sustained.at_boost_w > limit_w


def test_less_power_takes_longer_by_the_ratio_of_clocks(tmp_path: Path) -> None:
    full, less = predicted(tmp_path), predicted(tmp_path, power_limit_w=450.0)
    assert clock_of(less) < clock_of(full)
    ratio = clock_of(full) / clock_of(less)
    assert less.step_time_s / full.step_time_s == pytest.approx(ratio, rel=0.01)


def test_kernels_that_wait_for_memory_take_as_long(tmp_path: Path) -> None:
    full = predicted(tmp_path, STREAMING)
    less = predicted(tmp_path, STREAMING, power_limit_w=450.0)
    assert clock_of(full) == 1.0
    assert clock_of(less) < 0.95
    assert less.step_time_s == pytest.approx(full.step_time_s, rel=0.03)


def test_the_limit_of_a_node_is_its_own(tmp_path: Path) -> None:
    limited = replace(load_device(NODE), power_limit_w=450.0)
    by_node, by_option = predicted(tmp_path, node=limited), predicted(tmp_path, power_limit_w=450.0)
    assert by_node.step_time_s == by_option.step_time_s
    over = predicted(tmp_path, node=limited, power_limit_w=700.0)
    assert over.step_time_s == predicted(tmp_path).step_time_s


def test_the_operations_add_up_to_the_step_at_the_clock(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, power_limit_w=450.0)
    (region,) = prediction.graph.compute_regions
    steps = prediction.steps(region)
    assert steps is not None
    total_ps = sum(each.duration_ps for each in steps)
    assert total_ps == prediction.estimates.total.duration_ps


def test_the_clock_is_among_the_assumptions_with_its_share(tmp_path: Path) -> None:
    prediction = predicted(tmp_path)
    (row,) = [row for row in prediction.rows("assumptions") if "power:" in str(row["text"])]
    assert "the board draws its limit of 700 W in the mean" in str(row["text"])
    assert row["share"] == pytest.approx(1.0, abs=0.02)
    (idle,) = [text for text in predicted(tmp_path, STREAMING).assumptions if "power:" in text]
    assert "at the boost clock, 1.98 GHz" in idle


def test_what_the_limit_costs_is_among_the_changes(tmp_path: Path) -> None:
    limited, free = predicted(tmp_path), predicted(tmp_path, power_limit_w=2000.0)
    (row,) = [row for row in main_changes(limited) if row.change == AT_BOOST]
    assert row.step_time_s == pytest.approx(free.step_time_s)
    assert row.gain > 0.05
    assert AT_BOOST not in [row.change for row in main_changes(free)]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"power_limit_w": 100.0}, HardwareError, "H100_80GB: the power limit is 100 W"),
        ({"power_limit_w": 500.0, "method": "roofline"}, ConfigError, "no effect on method"),
        ({"clocks": "measured", "method": "kernel"}, ConfigError, "no effect on method kernel"),
        ({"power_limit_w": 200.0, "node": "V100_32GB"}, HardwareError, "power of the device is"),
        ({"power_limit_w": -1.0}, ConfigError, "power_limit_w is -1"),
        ({"clocks": "fast"}, ConfigError, "fast"),
        ({"pue": 0.9}, ConfigError, "pue is 0.9"),
        ({"pue": 1.1, "node": "TPUv5e"}, HespasError, "power of the device is not known"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, given: dict[str, Any], kind: type[HespasError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        predicted(tmp_path, **given)


def test_a_limit_has_no_effect_on_clocks_as_measured() -> None:
    with pytest.raises(ConfigError, match="power_limit_w has no effect with clocks measured"):
        PowerOptions(power_limit_w=500.0, clocks=Clocks.MEASURED)
