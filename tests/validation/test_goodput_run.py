from __future__ import annotations

from dataclasses import asdict
from math import inf

import pytest

from goodput_run import simulated
from hespas.prediction.goodput import LongRun, goodput_of

RUNS = {
    "a large cluster": LongRun(
        failure_interval_s=11_000, start_s=600, load_s=120, save_s=120, interval_s=1_500
    ),
    "failures in restarts": LongRun(
        failure_interval_s=1_500, start_s=600, load_s=300, save_s=60, interval_s=400
    ),
    "few spares": LongRun(
        failure_interval_s=11_000, start_s=600, load_s=120, save_s=120, interval_s=1_500,
        spares=6, repair_s=86_400,
    ),
    "no spares": LongRun(
        failure_interval_s=50_000, start_s=60, load_s=20, save_s=20, interval_s=1_500,
        spares=0, repair_s=20_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_played_through_is_as_the_closed_forms_say(name: str) -> None:
    run = RUNS[name]
    expected, found = asdict(goodput_of(run)), asdict(simulated(run, intervals=1_000_000, seed=7))
    for category, share in expected.items():
        assert found[category] == pytest.approx(share, rel=0.01), category


def test_without_failures_all_is_known() -> None:
    run = LongRun(failure_interval_s=inf, start_s=1, load_s=1, save_s=10, interval_s=90)
    assert simulated(run, intervals=10, seed=1) == goodput_of(run)


def test_a_seed_gives_one_answer() -> None:
    run = RUNS["few spares"]
    assert simulated(run, intervals=100, seed=3) == simulated(run, intervals=100, seed=3)
    assert simulated(run, intervals=100, seed=3) != simulated(run, intervals=100, seed=4)
