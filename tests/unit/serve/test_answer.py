"""Figures of a served load: percentiles, goodput, the largest rate and the word for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.serve.activity import mean_batch
from hespas.serve.answer import (
    LEAST_OF_LOAD,
    Objectives,
    check_lengths,
    figures_of,
    largest_rate,
    latency,
    load_word,
    sustained_rate,
)
from hespas.serve.engine import Setup, vllm
from hespas.serve.load import PICOSECONDS, Lengths, Requests, drawn_requests
from hespas.serve.options import LoadOptions
from hespas.serve.simulation import Entry, ServingPlan
from hespas.serve.step_times import StepTimes

TIMES = StepTimes(tokens_s=((1, 6e-3), (256, 12e-3), (8192, 200e-3)), context_s=((1, 1e-8),))
SETUP = Setup(engine=vllm(memory_bytes=80 * 2**30, part="H100"), times=TIMES, blocks=50_000)
NO_OBJECTIVES = Objectives()


def _load(rate: float, count: int = 300) -> Requests:
    return drawn_requests(count, prompts=Lengths(mean=512), outputs=Lengths(mean=64), rate=rate)


def _most(objectives: Objectives, replicas: int = 1) -> float | None:
    return largest_rate(_load(10.0), ServingPlan(setup=SETUP, replicas=replicas), objectives)


def test_percentiles_are_in_order_and_no_number_is_left_out() -> None:
    values = latency(np.array([3.0, 1.0, np.nan, 2.0]))
    assert values is not None
    assert (values.mean, values.p50) == (2.0, 2.0)
    assert values.p50 <= values.p90 <= values.p99 <= 3.0
    assert latency(np.array([np.nan])) is None


def test_a_single_request_takes_what_its_iterations_take() -> None:
    requests = Requests(arrivals_ps=(7,), prompts=(1000,), outputs=(3,))
    served = ServingPlan(setup=SETUP).serve(requests)
    figures = figures_of(requests, served)
    prompt_s = TIMES.of_tokens(1000) / PICOSECONDS
    assert figures.ttft_s[0] == pytest.approx(prompt_s)
    step_s = TIMES.of_tokens(1) / PICOSECONDS
    assert figures.tpot_s[0] == pytest.approx(step_s + 1000.5 * 1e-8, rel=1e-6)
    assert figures.latency_s[0] == pytest.approx(prompt_s + 2 * figures.tpot_s[0])
    assert figures.queue_s[0] == 0
    assert mean_batch(served.activities, figures.duration_s) == pytest.approx(
        2 * figures.tpot_s[0] / figures.latency_s[0]
    )


def test_requests_of_one_token_have_no_time_between_tokens() -> None:
    requests = Requests(arrivals_ps=(0,), prompts=(10,), outputs=(1,))
    assert latency(figures_of(requests, ServingPlan(setup=SETUP).serve(requests)).tpot_s) is None


def test_the_largest_rate_meets_the_objectives_and_a_larger_one_does_not() -> None:
    objectives = Objectives(ttft_s=0.1)
    most = _most(objectives)
    assert most is not None
    for factor, is_met in ((0.9, True), (1.3, False)):
        load = _load(10.0).at_rate(most * factor)
        met = objectives.met(figures_of(load, ServingPlan(setup=SETUP).serve(load)))
        assert bool(met.mean() >= 0.99) is is_met


def test_stricter_objectives_and_fewer_replicas_never_serve_more() -> None:
    rates = [_most(Objectives(tpot_s=limit)) or 0.0 for limit in (9e-3, 12e-3, 20e-3)]
    assert rates == sorted(rates)
    for objectives in (NO_OBJECTIVES, Objectives(ttft_s=0.5)):
        by_replicas = [_most(objectives, replicas) or 0.0 for replicas in (1, 2, 4)]
        assert by_replicas == sorted(by_replicas)


def test_no_short_load_is_served_faster_than_prompts_are_computed() -> None:
    # 8192 tokens take 200 ms: prompts of 512 alone bound the rate by 80 a second.
    few = _load(10.0, 20)
    most = largest_rate(few, ServingPlan(setup=SETUP), Objectives(ttft_s=5.0))
    sustained = sustained_rate(few, ServingPlan(setup=SETUP))
    assert most is not None
    assert most <= sustained < 8192 / 0.2 / 512
    assert sustained_rate(few, ServingPlan(setup=SETUP, replicas=2)) == 2 * sustained
    cached = sustained_rate(few, ServingPlan(setup=SETUP), cached=10 * 512)
    assert sustained < cached < 2 * sustained


@pytest.mark.parametrize("objectives", [NO_OBJECTIVES, Objectives(ttft_s=1.0)])
@pytest.mark.parametrize("replicas", [1, 4])
def test_the_largest_rate_is_that_of_many_requests_however_few_there_are(
    objectives: Objectives, replicas: int
) -> None:
    plan = ServingPlan(setup=SETUP, replicas=replicas)
    many = largest_rate(_load(10.0, 8000), plan, objectives)
    for count in (10, 100, 1000):
        few = largest_rate(_load(10.0, count), plan, objectives)
        assert few == pytest.approx(many, rel=0.15)


@pytest.mark.parametrize("seed", [1, 2])
def test_objectives_are_held_against_the_bursts_of_a_long_load(seed: int) -> None:
    """Few requests hardly ever come in a burst that misses an objective."""
    plan, objectives = ServingPlan(setup=SETUP), Objectives(ttft_s=0.3)
    drawn = LoadOptions(rate=10.0, isl=512, osl=64, requests=100, seed=seed)
    few = drawn.made()
    many = replace(drawn, requests=16000).made()
    truth = largest_rate(many, plan, objectives)
    longer = drawn.longer(few, LEAST_OF_LOAD)
    assert len(longer) == LEAST_OF_LOAD
    assert largest_rate(few, plan, objectives, longer=longer) == pytest.approx(truth, rel=0.06)
    assert (largest_rate(few, plan, objectives) or 0.0) > 1.06 * (truth or 0.0)


@pytest.mark.parametrize("count", [20, 300])
def test_no_objective_is_met_at_a_rate_beyond_that_without_any(count: int) -> None:
    plan, load = ServingPlan(setup=SETUP), _load(10.0, count)
    most = largest_rate(load, plan, NO_OBJECTIVES)
    assert most is not None
    for limit_s in (0.05, 0.5, 5.0, 1e6):
        assert (largest_rate(load, plan, Objectives(ttft_s=limit_s)) or 0.0) <= most


def test_objectives_that_nothing_meets_have_no_rate() -> None:
    assert _most(Objectives(ttft_s=1e-3)) is None


@pytest.mark.parametrize(("share", "word"), [(0.3, "stable"), (4.0, "overloaded")])
def test_a_load_has_a_word(share: float, word: str) -> None:
    most = _most(NO_OBJECTIVES)
    assert most is not None
    load = _load(10.0).at_rate(most * share)
    assert load_word(load, figures_of(load, ServingPlan(setup=SETUP).serve(load)), most) == word


def test_a_request_beyond_the_context_is_refused() -> None:
    requests = Requests(arrivals_ps=(0, 0), prompts=(10, 90), outputs=(10, 11))
    check_lengths(requests, 101)
    with pytest.raises(ConfigError, match=r"request 2 has 90 \+ 11 tokens"):
        check_lengths(requests, 100)


@pytest.mark.parametrize("blocks", [1500, 50_000])
@pytest.mark.parametrize("replicas", [1, 2])
def test_no_queue_grows_at_the_largest_rate_and_one_does_beyond(blocks: int, replicas: int) -> None:
    """Requests that are all there at once preempt each other, and are worked off more slowly."""
    plan = ServingPlan(setup=replace(SETUP, blocks=blocks), replicas=replicas)
    most = largest_rate(_load(10.0), plan, NO_OBJECTIVES)
    assert most is not None
    for factor, word in ((0.98, "stable"), (1.03, "overloaded")):
        load = _load(10.0, 20_000).evenly(most * factor)
        assert load_word(load, figures_of(load, plan.serve(load)), most) == word


def test_a_long_prompt_that_waits_for_no_other_is_no_backlog() -> None:
    entry = Entry(request_s=2e-3, token_s=4e-6)
    arrivals = (0, PICOSECONDS, 2 * PICOSECONDS)
    load = Requests(arrivals_ps=arrivals, prompts=(100, 1000, 9000), outputs=(10, 10, 10))
    plan = ServingPlan(setup=SETUP, entry=entry)
    figures = figures_of(load, plan.serve(load))
    assert figures.queue_s[-1] > 2 * figures.queue_s[0]
    assert load_word(load, figures, 1.0) == "backlogged"
    assert load_word(load, figures, 1.0, entry) == "stable"
