from __future__ import annotations

import pytest

from hespas.evidence.validate.measurements import MeasuredStep
from hespas.evidence.validate.tables import Point, error_sizes, speed_ups


def point(system: str, step_s: float, predicted_s: float, *, workload: str = "w") -> Point:
    step = MeasuredStep(
        workload=workload,
        options={},
        node="n",
        system=system,
        step_s=step_s,
        resolution_s=0.1,
        profiled_compute_s=None,
        line=2,
    )
    return Point(measured=step, predicted_s=predicted_s)


def test_errors_have_signs_and_rounding_forgives() -> None:
    assert point("a", 1.0, 0.9).error == pytest.approx(-0.1)
    assert point("a", 1.0, 0.9).error_beyond_rounding == pytest.approx(0.9 / 0.95 - 1)
    assert point("a", 1.0, 1.04).error_beyond_rounding == 0
    assert point("a", 1.0, 1.155).error_beyond_rounding == pytest.approx(0.1)


def test_a_summary_takes_absolute_values() -> None:
    errors, beyond = error_sizes([point("a", 1.0, 0.9), point("b", 1.0, 1.1)])
    assert errors == pytest.approx([0.1, 0.1])
    assert beyond == pytest.approx([1 - 0.9 / 0.95, 1.1 / 1.05 - 1])


def test_systems_are_compared_for_each_workload() -> None:
    points = [
        point("a", 2.0, 2.2),
        point("b", 1.0, 1.0),
        point("c", 4.0, 4.0),
        point("a", 9.0, 9.0, workload="alone"),
    ]
    found = speed_ups(points)
    assert [(each.slower.system, each.faster.system) for each in found] == [
        ("a", "b"),
        ("c", "a"),
        ("c", "b"),
    ]
    assert [each.measured for each in found] == pytest.approx([2.0, 2.0, 4.0])
    assert [each.error for each in found] == pytest.approx([0.1, 1 / 1.1 - 1, 0.0])
    # 2 to 1, each to 0.1, may be 2.05 / 0.95; 4 to 2 at least 3.95 / 2.05.
    assert found[0].error_beyond_rounding == pytest.approx(2.2 / (2.05 / 0.95) - 1)


def test_what_rounds_to_nothing_may_be_any_speed_up() -> None:
    (found,) = speed_ups([point("a", 2.0, 40.0), point("b", 0.05, 0.01)])
    assert found.error_beyond_rounding == 0


def test_one_system_has_no_speed_up() -> None:
    assert speed_ups([point("a", 1.0, 1.0)]) == ()
