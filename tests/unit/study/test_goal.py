"""Goals: what is better, and the order of rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import ConfigError
from hespas.study.goal import fronts, ordered, read_goal

ROWS = [
    {"step_time_s": 3.0, "tokens_per_s": 10.0},
    {"step_time_s": None, "tokens_per_s": 30.0},
    {"step_time_s": 1.0, "tokens_per_s": 5.0},
    {"step_time_s": 2.0, "tokens_per_s": 20.0},
]


def test_the_best_comes_first_and_the_unknown_last() -> None:
    fastest = ordered(ROWS, read_goal({"minimise": "step_time_s"}), lambda row: row)
    assert [row["step_time_s"] for row in fastest] == [1.0, 2.0, 3.0, None]
    most = ordered(ROWS, read_goal({"maximise": "tokens_per_s"}), lambda row: row)
    assert [row["tokens_per_s"] for row in most] == [30.0, 20.0, 10.0, 5.0]


def test_of_several_goals_the_trade_offs_come_first() -> None:
    goal = read_goal({"pareto": ["step_time_s", "tokens_per_s"]})
    found = ordered(ROWS[:1] + ROWS[2:], goal, lambda row: row)
    assert [row["step_time_s"] for row in found] == [1.0, 2.0, 3.0]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_a_front_holds_what_nothing_before_it_is_better_than(
    points: list[tuple[int, int]],
) -> None:
    ranks = fronts([tuple(map(float, point)) for point in points])
    for point, rank in zip(points, ranks, strict=True):
        better = [
            other_rank
            for other, other_rank in zip(points, ranks, strict=True)
            if other != point and other[0] <= point[0] and other[1] <= point[1]
        ]
        assert rank == max(better, default=-1) + 1


@pytest.mark.parametrize(
    ("given_goal", "message"),
    [
        ({"maximise": "token_per_s"}, "did you mean 'tokens_per_s'"),
        ({"maximize": "tokens_per_s"}, "did you mean 'maximise'"),
        ({"maximise": "tokens_per_s", "minimise": "devices"}, "not one goal"),
        ({"pareto": ["tokens_per_s"]}, "give two or more"),
        ({"pareto": ["devices", "devices"]}, "give two or more"),
        ("step_time_s", "not one goal"),
        ({"minimise": ["step_time_s"]}, "no figure"),
    ],
)
def test_mistakes_are_refused(given_goal: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_goal(given_goal)
