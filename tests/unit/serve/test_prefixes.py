"""Prefixes that requests share are computed once, and never cost blocks or time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.serve.answer import figures_of
from hespas.serve.engine import ENGINES, Setup, engine_named
from hespas.serve.load import Lengths, Requests, drawn_requests, in_conversations
from hespas.serve.prefixes import PrefixCache
from hespas.serve.simulation import Router, ServingPlan
from hespas.serve.step_times import StepTimes

TIMES = StepTimes(
    tokens_s=((1, 6e-3), (256, 12e-3), (1024, 30e-3), (8192, 200e-3)),
    context_s=((1, 2e-8), (256, 1e-8)),
    pair_s=5e-10,
)
VLLM = engine_named("vllm", memory_bytes=80 * 2**30, part="H100")


def _conversations(turns: int, shared: int, count: int = 60, rate: float = 5.0) -> Requests:
    drawn = drawn_requests(
        count,
        prompts=Lengths(mean=300, spread=0.5),
        outputs=Lengths(mean=60, spread=0.5),
        rate=rate,
    )
    return in_conversations(drawn, turns=turns, shared=shared, think_s=1.0)


def test_a_turn_has_all_before_it_in_its_prompt() -> None:
    requests = _conversations(turns=3, shared=50)
    first, second, third = requests.prompts[:3]
    assert 200 <= first <= 500
    assert second - first - requests.outputs[0] in range(150, 451)
    assert requests.chains is not None
    assert requests.output_segments is not None
    assert requests.chains[1][: len(requests.chains[0])] == requests.chains[0]
    assert requests.chains[1][2] == (requests.output_segments[0], first + requests.outputs[0])
    assert requests.chains[2][-1][1] == third
    assert requests.chains[3][0] == requests.chains[0][0] == (1, 50)
    assert requests.follows is not None
    assert requests.follows[:3] == (1, 2, -1)
    assert requests.rate == pytest.approx(5.0, rel=0.4)


def test_with_room_a_replica_computes_every_block_once() -> None:
    requests = _conversations(turns=4, shared=64)
    served = ServingPlan(setup=Setup(engine=VLLM, times=TIMES, blocks=100_000)).serve(requests)
    expected = 0
    for request, prompt in enumerate(requests.prompts):
        before = 64 if request else 0
        if request % 4:
            before = requests.prompts[request - 1] + requests.outputs[request - 1]
        expected += min(before // 16 * 16, prompt - 1)
    assert served.cached_tokens == expected


def test_a_turn_follows_the_end_of_the_one_before() -> None:
    requests = _conversations(turns=3, shared=0)
    served = ServingPlan(setup=Setup(engine=VLLM, times=TIMES, blocks=100_000)).serve(requests)
    for request in range(len(requests)):
        if request % 3:
            assert served.arrivals_ps[request] >= served.ended_ps[request - 1]


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(list(ENGINES)),
    turns=st.integers(1, 5),
    shared=st.integers(0, 600),
    rate=st.floats(0.5, 20.0),
    blocks=st.integers(0, 400),
    replicas=st.integers(1, 3),
    router=st.sampled_from(list(Router)),
)
def test_blocks_are_conserved_and_time_is_ordered(  # noqa: PLR0917 - Hypothesis gives all
    name: str, turns: int, shared: int, rate: float, blocks: int, replicas: int, router: Router
) -> None:
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    requests = _conversations(turns, shared, count=24, rate=rate)
    longest = max(map(sum, zip(requests.prompts, requests.outputs, strict=True)))
    blocks += -(-longest // engine.block_tokens)
    setup = Setup(engine=engine, times=TIMES, blocks=blocks)
    served = ServingPlan(setup=setup, replicas=replicas, router=router).serve(
        requests, most_samples=1_000_000
    )
    assert all(0 <= sample.kv_blocks <= blocks for sample in served.samples)
    last = {sample.replica: sample for sample in served.samples}
    assert all(sample.kv_blocks == 0 for sample in last.values())
    for request in range(len(requests)):
        assert served.arrivals_ps[request] <= served.started_ps[request]
        assert served.started_ps[request] < served.first_ps[request] <= served.ended_ps[request]
    assert 0 <= served.cached_tokens <= sum(requests.prompts)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("rate", [0.5, 3.0, 10.0])
def test_kept_prefixes_never_raise_the_time_to_the_first_token(name: str, rate: float) -> None:
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    requests = replace(_conversations(1, 400, count=200, rate=rate), follows=None)
    kept = Setup(engine=engine, times=TIMES, blocks=20_000)
    dropped = replace(kept, engine=replace(engine, caches_prefixes=False))
    with_s, without_s = (
        figures_of(requests, ServingPlan(setup=setup).serve(requests)).ttft_s
        for setup in (kept, dropped)
    )
    assert with_s.mean() < without_s.mean()
    assert np.percentile(with_s, 99) <= np.percentile(without_s, 99)


def test_affinity_finds_more_than_turns_sent_anywhere() -> None:
    requests = _conversations(turns=5, shared=0, count=200)
    setup = Setup(engine=VLLM, times=TIMES, blocks=20_000)
    found = {
        router: ServingPlan(setup=setup, replicas=4, router=router).serve(requests).cached_tokens
        for router in Router
    }
    assert found[Router.PREFIX] > 1.5 * found[Router.ROUND_ROBIN]


def test_the_last_of_the_least_recent_chain_goes_first() -> None:
    cache = PrefixCache(block_tokens=16)
    chains = [((1, 64), (2, 128)), ((1, 64), (3, 128))]
    for chain in chains:
        nodes = cache.match(chain, 1000)
        cache.take(nodes)
        cache.insert(nodes, chain)
        cache.leave(nodes)
    assert cache.unused_blocks == 12
    cache.shrink_to(8)
    assert [[node.number for node in cache.match(it, 1000)] for it in chains] == [[1], [1, 3]]
    cache.shrink_to(4)
    assert [[node.number for node in cache.match(it, 1000)] for it in chains] == [[1], [1]]
    assert cache.tokens_of(cache.match(chains[0], 1000)) == 64
    assert cache.match(chains[0], 63) == []
