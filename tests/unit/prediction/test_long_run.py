from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise

import pytest

from hespas.prediction.goodput import LongRun, goodput_of
from hespas.prediction.hazards import Cause, Hazards, Infant, Retries, Unequal
from hespas.prediction.long_run import CATEGORIES, PlayedRuns, best_spares, played

DAY_S = 86_400.0
ALIKE = Hazards(causes=(Cause(name="a device", interval_s=10_000.0),), nodes=100)
RUN = LongRun(failure_interval_s=10_000, start_s=300, load_s=60, save_s=30, interval_s=600)
GROUPED = replace(
    ALIKE,
    causes=(*ALIKE.causes, Cause(name="a switch", interval_s=200_000.0, nodes=8)),
    unequal=Unequal(nodes=0.05, failures=0.5),
)


def of(run: LongRun, hazards: Hazards, *, days: float = 54, seeds: int = 200) -> PlayedRuns:
    return played(run, hazards, run_s=days * DAY_S, seeds=seeds, seed=3)


PLANS = {
    "as it is": RUN,
    "written beside training": replace(RUN, save_s=2, behind_s=300),
    "failures in restarts": replace(RUN, start_s=6_000, load_s=3_000),
    "few spares": replace(RUN, spares=6, repair_s=DAY_S),
}


@pytest.mark.parametrize("name", PLANS)
def test_equal_nodes_lose_what_the_closed_forms_say(name: str) -> None:
    run = PLANS[name]
    runs, expected = of(run, ALIKE, days=400), asdict(goodput_of(run))
    for category in CATEGORIES:
        assert runs.share(category) == pytest.approx(expected[category], rel=0.02, abs=5e-4)


@pytest.mark.parametrize("hazards", [ALIKE, GROUPED])
def test_all_time_goes_to_a_category(hazards: Hazards) -> None:
    runs = of(replace(RUN, spares=4, repair_s=DAY_S), hazards, days=20)
    assert sum(runs.seconds.values()) == pytest.approx(20 * DAY_S)


def test_nothing_that_fails_leaves_saving() -> None:
    runs = of(RUN, replace(ALIKE, causes=()))
    assert runs.goodput == pytest.approx(600 / 630, rel=2e-4)
    assert runs.share("starting") == runs.share("waiting") == 0


@pytest.mark.parametrize("behind_s", [0, 300])
@pytest.mark.parametrize("run_s", [400, 615, 629, 900, 1259, 2000])
def test_a_run_saves_what_it_trained_before_it_ends(run_s: float, behind_s: float) -> None:
    run, never = replace(RUN, behind_s=behind_s), replace(ALIKE, causes=())
    runs = played(run, never, run_s=run_s, seeds=2, seed=0)
    assert runs.share("lost") == 0
    assert sum(runs.seconds.values()) == pytest.approx(run_s)
    # Each whole interval was saved once, and the last one when the run ends.
    whole = (run_s - behind_s) // 630
    least_s = run_s - behind_s - (whole + 1) * 30
    assert runs.seconds["productive"] == pytest.approx(max(whole * 600, least_s))


@pytest.mark.parametrize("hazards", [ALIKE, GROUPED])
def test_no_seed_trains_less_with_more_spares(hazards: Hazards) -> None:
    plan = replace(RUN, repair_s=DAY_S)
    runs = [of(replace(plan, spares=spares), hazards) for spares in (0, 1, 4, 16, 64)]
    for few, more in pairwise(runs):
        if hazards is ALIKE:
            assert (more.goodput >= few.goodput).all()
        assert more.goodput.mean() >= few.goodput.mean()


def test_more_of_anything_bad_loses_more() -> None:
    calm = of(RUN, ALIKE).goodput.mean()
    (cause,) = ALIKE.causes
    for worse in (
        replace(ALIKE, infant=Infant(factor=5, days=10)),
        replace(ALIKE, retries=Retries(success=0.3, interval_s=660)),
        replace(ALIKE, causes=(replace(cause, detection_s=900),)),
        replace(ALIKE, causes=(replace(cause, restart_s=900),)),
        replace(ALIKE, causes=(replace(cause, validation_every_s=3_600.0),)),
    ):
        assert of(RUN, worse).goodput.mean() < calm - 0.001


def test_a_factor_of_1_and_a_success_of_1_change_nothing() -> None:
    same = replace(ALIKE, infant=Infant(factor=1, days=3), retries=Retries(success=1, interval_s=9))
    assert (of(RUN, same).goodput == of(RUN, ALIKE).goodput).all()


def test_a_planned_stop_throws_nothing_away() -> None:
    (cause,) = ALIKE.causes
    runs = of(RUN, replace(ALIKE, causes=(replace(cause, planned=True),)))
    assert runs.share("lost") < 1e-3 < of(RUN, ALIKE).share("lost")


def test_few_nodes_cause_half_of_the_failures() -> None:
    """Source: arXiv 2605.09370: 3 of 63 nodes, more than half of the exclusions in 73 days."""
    hazards = Hazards(
        causes=(Cause(name="a node", interval_s=DAY_S / 2),),
        nodes=63,
        unequal=Unequal(nodes=3 / 63, failures=0.53),
    )
    runs = of(replace(RUN, repair_s=3_600), hazards, days=73)
    assert runs.worst is not None
    assert runs.worst.mean() == pytest.approx(0.51, abs=0.03)


def test_the_same_seed_plays_the_same_runs() -> None:
    assert (of(RUN, GROUPED).goodput == of(RUN, GROUPED).goodput).all()


def test_the_best_spares_are_worth_their_nodes() -> None:
    plan = replace(RUN, repair_s=DAY_S)
    spares, reached = best_spares(plan, ALIKE, run_s=54 * DAY_S, seeds=50, seed=0)
    for other in (spares // 2, spares + 8):
        runs = played(replace(plan, spares=other), ALIKE, run_s=54 * DAY_S, seeds=50, seed=0)
        assert runs.goodput.mean() * 100 / (100 + other) <= reached * 100 / (100 + spares)


SCARCE = replace(RUN, spares=2, repair_s=2 * DAY_S)
"""Some 17 nodes are in repair at a time."""


def test_a_run_that_goes_on_with_fewer_nodes_trains_more() -> None:
    waits, goes_on = [
        of(replace(SCARCE, elastic_nodes=copy), ALIKE).goodput.mean() for copy in (None, 1)
    ]
    assert goes_on > waits + 0.2


def test_smaller_copies_train_more() -> None:
    runs = [of(replace(SCARCE, elastic_nodes=copy), ALIKE).goodput.mean() for copy in (5, 25, 100)]
    assert runs == sorted(runs, reverse=True)


def test_a_run_of_one_copy_waits() -> None:
    waits = of(SCARCE, ALIKE)
    elastic = of(replace(SCARCE, elastic_nodes=100), ALIKE)
    assert elastic.goodput == pytest.approx(waits.goodput)


@pytest.mark.parametrize("hazards", [ALIKE, GROUPED])
def test_all_time_of_an_elastic_run_goes_to_a_category(hazards: Hazards) -> None:
    runs = of(replace(SCARCE, elastic_nodes=4), hazards, days=20)
    assert sum(runs.seconds.values()) == pytest.approx(20 * DAY_S)
    assert all((seconds >= 0).all() for seconds in runs.seconds.values())


def test_nodes_that_are_away_are_what_is_missing() -> None:
    """Little fails but nodes: speed is that of the nodes that are there, by Little's law."""
    often = Hazards(causes=(Cause(name="a device", interval_s=20_000.0),), nodes=100)
    run = LongRun(
        failure_interval_s=20_000, start_s=0, load_s=0, save_s=0, interval_s=1.0, spares=0,
        repair_s=2 * DAY_S, elastic_nodes=1,
    )  # fmt: skip
    assert of(run, often, days=200).goodput.mean() == pytest.approx(
        1 - 2 * DAY_S / 20_000 / 100, abs=0.003
    )


def test_spares_are_never_worse_for_an_elastic_run() -> None:
    runs = [
        of(replace(SCARCE, elastic_nodes=4, spares=spares), ALIKE).goodput.mean()
        for spares in (0, 2, 8, 32)
    ]
    assert runs == sorted(runs)
