from __future__ import annotations

from dataclasses import astuple, replace
from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.prediction.goodput import Goodput, LongRun, best_interval_s, goodput_of

RUN = LongRun(failure_interval_s=10_000, start_s=300, load_s=60, save_s=60, interval_s=1_100)
TIMES = st.floats(1.0, 1e5)


def whole(found: Goodput) -> float:
    return sum(astuple(found)[:-1])


RUNS = st.builds(
    LongRun,
    failure_interval_s=st.floats(1e3, 1e7),
    start_s=TIMES,
    load_s=TIMES,
    save_s=TIMES,
    interval_s=TIMES,
    spares=st.none() | st.integers(0, 50),
    repair_s=st.floats(1e3, 1e6),
)


@given(RUNS.filter(lambda run: run.interval_s + run.save_s < 100 * run.failure_interval_s))
def test_the_shares_add_to_1(run: LongRun) -> None:
    found = goodput_of(replace(run, start_s=min(run.start_s, 10 * run.failure_interval_s)))
    assert whole(found) == pytest.approx(1)
    assert min(astuple(found)) >= 0


def test_nothing_that_fails_leaves_saving() -> None:
    found = goodput_of(replace(RUN, failure_interval_s=inf))
    assert (found.productive, found.saving) == (1100 / 1160, 60 / 1160)
    assert found.failures_per_day == 0


def test_no_other_interval_is_better_than_the_best() -> None:
    best = best_interval_s(failure_interval_s=RUN.failure_interval_s, save_s=RUN.save_s)
    reached = goodput_of(replace(RUN, interval_s=best)).productive
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert goodput_of(replace(RUN, interval_s=best * factor)).productive <= reached


@pytest.mark.parametrize("save_s", [1e-3, 0.1, 1.0])
def test_short_saves_have_youngs_interval(save_s: float) -> None:
    best = best_interval_s(failure_interval_s=1e6, save_s=save_s)
    assert best == pytest.approx(sqrt(2 * save_s * 1e6), rel=1e-3)


def test_what_costs_nothing_is_done_always_and_what_never_helps_never() -> None:
    assert best_interval_s(failure_interval_s=1e4, save_s=0.0) == 0.0
    assert best_interval_s(failure_interval_s=inf, save_s=1.0) == inf


def test_more_spares_wait_less() -> None:
    waits = [
        goodput_of(replace(RUN, spares=spares, repair_s=86400)).waiting for spares in range(30)
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < 1e-3 < waits[0]
