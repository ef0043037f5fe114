"""Presets of TPUs have what published steps leave, and the page shows it."""

from __future__ import annotations

from statistics import mean

import pytest

import tpu_calibration
from tpu_calibration import fitted, read_points, rows, table, used_share

POINTS = read_points()


@pytest.mark.parametrize(("part", "within"), [("TPUv3", 0.1), ("TPUv5e", 0.02)])
def test_presets_have_what_is_fitted(part: str, within: float) -> None:
    share = fitted([point for point in POINTS if point.part == part])
    assert used_share(part) == pytest.approx(share, abs=within)


@pytest.mark.parametrize("part", ["TPUv5p", "TPUv6e"])
def test_a_part_with_one_step_that_the_others_do_not_explain_takes_that_of_the_others(
    part: str,
) -> None:
    share = fitted([point for point in POINTS if point.part != part])
    assert used_share(part) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("part", ["TPUv4", "TPUv7x"])
def test_parts_without_a_step_keep_what_the_compiler_wrote(part: str) -> None:
    assert not [point for point in POINTS if point.part == part]
    assert used_share(part) == 1.0


def test_steps_left_out_are_predicted_better_than_by_all_cycles() -> None:
    found = rows(POINTS)
    assert mean(abs(row.left_out) for row in found) < 0.07
    # On the v6e too long by the cycles of what moves: the page says so.
    assert all(abs(row.left_out) < 0.11 for row in found if row.point.part != "TPUv6e")
    assert max(abs(row.left_out) for row in found) < 0.21
    assert all(abs(row.left_out) < abs(row.written) for row in found)


def test_the_page_shows_the_table() -> None:
    assert table(POINTS) in tpu_calibration.PAGE.read_text()
