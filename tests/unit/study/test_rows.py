"""Notes of a study's table: where steps of different work are ranked by a whole step."""

from __future__ import annotations

from hespas.study.goal import FASTEST, Direction, Goal
from hespas.study.rows import Row, unlike_text

CHEAPEST = Goal(metrics=(("usd_per_step", Direction.MINIMISE),))
MOST = Goal(metrics=(("tokens_per_s_per_device", Direction.MAXIMISE),))


def rows(*rates: float, of: str = "tokens_per_s") -> list[Row]:
    return [Row(number=0, candidate={}, figures={"step_time_s": 2.0, of: rate}) for rate in rates]


def test_steps_of_equal_work_need_no_note() -> None:
    assert not unlike_text(rows(10.0, 10.0), FASTEST)
    assert not unlike_text([], FASTEST)
    assert not unlike_text([Row(number=0, candidate={})], FASTEST)


def test_a_goal_of_a_rate_needs_no_note() -> None:
    assert not unlike_text(rows(10.0, 20.0), MOST)


def test_the_figure_that_compares_is_named() -> None:
    assert "usd_per_mtoken" in unlike_text(rows(10.0, 20.0), CHEAPEST)
    note = unlike_text(rows(10.0, 20.0, of="samples_per_s"), FASTEST)
    assert "20 to 40 samples" in note
    assert note.endswith("by samples_per_s")
