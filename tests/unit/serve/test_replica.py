"""Prompts that are computed elsewhere, and tokens that are guessed ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.serve.answer import figures_of
from hespas.serve.engine import ENGINES, Setup, Speculation, engine_named
from hespas.serve.load import PICOSECONDS, Lengths, Requests, drawn_requests
from hespas.serve.simulation import Entry, Prefill, ServingPlan
from hespas.serve.step_times import StepTimes

TIMES = StepTimes(tokens_s=((1, 6e-3), (256, 12e-3), (8192, 200e-3)), context_s=((1, 1e-8),))
ENGINE = engine_named("vllm", memory_bytes=80 * 2**30, part="H100")
SETUP = Setup(engine=ENGINE, times=TIMES, blocks=20_000)


def _prefill(**changed: float) -> Prefill:
    prefill = Prefill(
        setup=SETUP, replicas=1, bytes_per_token=1e5, bytes_per_s=1e10, latency_s=1e-3
    )
    return replace(prefill, **changed)  # pyright: ignore[reportArgumentType]


def test_a_prompt_computed_elsewhere_comes_with_its_first_token() -> None:
    requests = Requests(arrivals_ps=(0,), prompts=(1000,), outputs=(11,))
    served = ServingPlan(setup=SETUP, prefill=_prefill()).serve(requests)
    prompt_ps = TIMES.of_tokens(1000)
    arrived_ps = prompt_ps + round(1000 * 1e5 / 1e10 * PICOSECONDS) + PICOSECONDS // 1000
    assert served.first_ps == [arrived_ps]
    alone = ServingPlan(setup=SETUP).serve(requests)
    assert served.ended_ps[0] - arrived_ps == alone.ended_ps[0] - alone.first_ps[0]
    assert served.replicas == [0]


def test_a_single_token_is_not_sent() -> None:
    requests = Requests(arrivals_ps=(0, 1), prompts=(1000, 500), outputs=(1, 1))
    served = ServingPlan(setup=SETUP, prefill=_prefill()).serve(requests)
    assert served.first_ps == served.ended_ps


@pytest.mark.parametrize("name", ENGINES)
def test_decoding_is_not_held_up_by_prompts_of_others(name: str) -> None:
    requests = drawn_requests(
        400, prompts=Lengths(mean=4000, spread=0.5), outputs=Lengths(mean=100), rate=4.0
    )
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    setup = replace(SETUP, engine=engine, blocks=400_000)
    together = figures_of(requests, ServingPlan(setup=setup, replicas=2).serve(requests))
    prefill = replace(_prefill(), setup=setup)
    apart = figures_of(requests, ServingPlan(setup=setup, prefill=prefill).serve(requests))
    assert apart.tpot_s.mean() < together.tpot_s.mean()
    slow = figures_of(
        requests,
        ServingPlan(setup=setup, prefill=replace(prefill, bytes_per_s=1e9)).serve(requests),
    )
    assert slow.ttft_s.mean() > apart.ttft_s.mean()


def test_few_blocks_preempt_and_compute_again_where_it_decodes() -> None:
    requests = drawn_requests(40, prompts=Lengths(mean=300), outputs=Lengths(mean=200), rate=50.0)
    setup = replace(SETUP, blocks=150)
    served = ServingPlan(setup=setup, prefill=_prefill()).serve(requests)
    assert served.preemptions
    assert all(sample.kv_blocks >= 0 for sample in served.samples)
    assert all(first < ended for first, ended in zip(served.first_ps, served.ended_ps, strict=True))


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
def test_tokens_guessed_ahead_share_an_iteration(acceptance: float) -> None:
    requests = Requests(arrivals_ps=(0,), prompts=(100,), outputs=(1001,))
    guessed = Speculation(tokens=3, acceptance=acceptance, draft_share=0.1)
    setup = replace(SETUP, speculation=guessed)
    plain, faster = (
        figures_of(requests, ServingPlan(setup=each).serve(requests)) for each in (SETUP, setup)
    )
    iteration = TIMES.of_tokens(4) / TIMES.of_tokens(1) * 1.3
    assert faster.tpot_s[0] == pytest.approx(plain.tpot_s[0] * iteration / guessed.made, rel=2e-3)
    assert guessed.made == pytest.approx(
        4 if acceptance == 1 else (1 - acceptance**4) / (1 - acceptance)
    )


def test_guessed_tokens_are_made_beside_prompts_too() -> None:
    requests = drawn_requests(200, prompts=Lengths(mean=2000), outputs=Lengths(mean=50), rate=20.0)
    guessed = Speculation(tokens=3, acceptance=0.8, draft_share=0.0)
    plain, faster = (
        ServingPlan(setup=replace(SETUP, speculation=each)).serve(requests)
        for each in (None, guessed)
    )
    assert max(faster.ended_ps) < max(plain.ended_ps)
    assert all(sample.kv_blocks >= 0 for sample in faster.samples)


def test_a_request_waits_for_the_iteration_that_is_planned() -> None:
    # The second comes while the first decodes: its prompt is in the iteration after the next.
    step_ps = TIMES.of_tokens(1) + TIMES.of_context(1) * 100
    second_ps = TIMES.of_tokens(100) + step_ps // 2
    requests = Requests(arrivals_ps=(0, second_ps), prompts=(100, 100), outputs=(50, 2))
    ahead = ServingPlan(setup=SETUP).serve(requests)
    engine = replace(ENGINE, plans_ahead=False, unhidden_s=(0.0, 0.0))
    behind = replace(SETUP, engine=engine)
    waited_ps = ahead.started_ps[1] - ServingPlan(setup=behind).serve(requests).started_ps[1]
    assert waited_ps == pytest.approx(step_ps, rel=1e-3)


def test_an_iteration_waits_for_a_host_that_does_not_schedule_ahead() -> None:
    requests = Requests(arrivals_ps=(0, 0), prompts=(100, 100), outputs=(51, 51))
    hosts = [(0.0, 0.0), (1e-3, 2e-4)]
    hidden, waiting = (
        figures_of(
            requests,
            ServingPlan(
                setup=replace(SETUP, engine=replace(ENGINE, plans_ahead=False, unhidden_s=host))
            ).serve(requests),
        )
        for host in hosts
    )
    assert waiting.tpot_s - hidden.tpot_s == pytest.approx([1e-3 + 2 * 2e-4] * 2)


def test_a_server_takes_requests_one_after_another() -> None:
    entry = Entry(request_s=1e-3, token_s=1e-5)
    requests = Requests(arrivals_ps=(0, 0, 0), prompts=(100, 300, 100), outputs=(1, 1, 1))
    slow = StepTimes(tokens_s=((1, 1e-6), (8192, 1e-6)), context_s=((1, 0.0),))
    served = ServingPlan(setup=replace(SETUP, times=slow), entry=entry).serve(requests)
    assert [started * 1000 // PICOSECONDS for started in served.started_ps] == [2, 6, 8]
    assert served.arrivals_ps == [0, 0, 0]


def test_each_replica_has_a_server() -> None:
    entry = Entry(request_s=1e-3)
    requests = Requests(arrivals_ps=(0, 0), prompts=(10, 10), outputs=(1, 1))
    served = ServingPlan(setup=SETUP, replicas=2, entry=entry).serve(requests)
    assert served.started_ps == [PICOSECONDS // 1000] * 2
