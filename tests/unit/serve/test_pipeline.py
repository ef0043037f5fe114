"""Laws of a replica that is cut into stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.serve.answer import figures_of
from hespas.serve.engine import ENGINES, BatchLimit, Setup, engine_named
from hespas.serve.load import Lengths, Requests, drawn_requests, in_conversations
from hespas.serve.simulation import Prefill, ServingPlan
from hespas.serve.step_times import StepTimes, summed

HALF = StepTimes(
    tokens_s=((1, 3e-3), (256, 6e-3), (8192, 100e-3)), context_s=((1, 5e-9),), pair_s=5e-11
)


def _setup(name: str, *, stages: int, tokens: int = 400_000) -> Setup:
    engine = engine_named(name, memory_bytes=80 * 2**30, part="H100")
    blocks = tokens // engine.block_tokens
    times = (HALF,) * stages if stages > 1 else ()
    whole = summed((HALF,) * max(2, stages))
    return Setup(engine=engine, times=whole, blocks=blocks, stages=times)


def _load(count: int, how: Mapping[str, Any]) -> Requests:
    lengths = Lengths(mean=900, spread=0.5), Lengths(mean=60, spread=0.5)
    return drawn_requests(count, prompts=lengths[0], outputs=lengths[1], **how)


@pytest.mark.parametrize("name", ENGINES)
def test_a_lone_request_takes_the_sum_of_the_stages(name: str) -> None:
    lone = Requests(arrivals_ps=(7,), prompts=(1000,), outputs=(300,))
    whole, cut = (ServingPlan(setup=_setup(name, stages=stages)).serve(lone) for stages in (1, 2))
    assert cut.first_ps[0] == pytest.approx(whole.first_ps[0], abs=10)
    assert cut.ended_ps[0] == pytest.approx(whole.ended_ps[0], abs=1000)


def test_an_unequal_cut_takes_no_less() -> None:
    """Sends between stages are in the times of those that receive."""
    later = replace(HALF, tokens_s=tuple((size, 1.2 * time) for size, time in HALF.tokens_s))
    lone = Requests(arrivals_ps=(0,), prompts=(1000,), outputs=(300,))
    even = _setup("vllm", stages=2)
    uneven = replace(even, stages=(HALF, later))
    assert (
        ServingPlan(setup=uneven).serve(lone).ended_ps[0]
        > ServingPlan(setup=even).serve(lone).ended_ps[0]
    )


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("how", [{"rate": 1000.0}, {"concurrency": 64}])
def test_stages_work_side_by_side_and_no_faster_than_that(name: str, how: dict[str, float]) -> None:
    requests = _load(200, how)
    whole_s, cut_s = (
        figures_of(
            requests, ServingPlan(setup=_setup(name, stages=stages)).serve(requests)
        ).duration_s
        for stages in (1, 2)
    )
    assert whole_s / 2 < cut_s < whole_s


@pytest.mark.parametrize("name", ENGINES)
def test_the_slowest_stage_bounds_what_is_served(name: str) -> None:
    """No stage is busy for longer than the run."""
    slow = replace(HALF, tokens_s=tuple((size, 3 * time) for size, time in HALF.tokens_s))
    setup = replace(_setup(name, stages=2), stages=(HALF, slow))
    requests = Requests(arrivals_ps=(0,) * 40, prompts=(8000,) * 40, outputs=(1,) * 40)
    served = ServingPlan(setup=setup).serve(requests)
    least_ps = 40 * slow.of_tokens(8000)
    assert least_ps <= max(served.ended_ps) < 1.1 * least_ps + setup.times.of_tokens(8192)


@pytest.mark.parametrize(("name", "follows"), [("vllm", True), ("sglang", True), ("trtllm", False)])
def test_chunks_of_a_long_prompt_follow_one_another(name: str, *, follows: bool) -> None:
    long = Requests(arrivals_ps=(0,), prompts=(32768,), outputs=(2,))
    whole, cut = (
        ServingPlan(setup=_setup(name, stages=stages)).serve(long).first_ps[0] for stages in (1, 2)
    )
    assert (cut < 0.7 * whole) is follows


@settings(deadline=None, max_examples=30)
@given(
    name=st.sampled_from(sorted(ENGINES)),
    stages=st.integers(min_value=2, max_value=5),
    tokens=st.sampled_from([6000, 10_000, 400_000]),
    how=st.sampled_from([{"rate": 5.0}, {"rate": 100.0}, {"concurrency": 7}]),
    turns=st.sampled_from([1, 3]),
)
def test_work_is_conserved(
    name: str, stages: int, tokens: int, how: dict[str, float], turns: int
) -> None:
    requests = _load(60, how)
    if turns > 1 and "rate" in how:
        requests = in_conversations(requests, turns=turns, shared=100, think_s=0.2, seed=1)
    served = ServingPlan(setup=_setup(name, stages=stages, tokens=tokens)).serve(requests)
    for request, arrived in enumerate(served.arrivals_ps):
        one = served.started_ps[request], served.first_ps[request], served.ended_ps[request]
        assert arrived <= one[0] < one[1] <= one[2]
        more = requests.outputs[request] - 1
        # A token takes a pass through all stages.
        assert one[2] - one[1] >= more * stages * HALF.of_tokens(1)
    assert all(sample.kv_blocks >= 0 for sample in served.samples)
    assert served == ServingPlan(setup=_setup(name, stages=stages, tokens=tokens)).serve(requests)


def test_prompts_are_computed_in_a_pipeline_apart() -> None:
    requests = _load(100, {"rate": 20.0})
    prefill = Prefill(
        setup=_setup("vllm", stages=2), replicas=1, bytes_per_token=1e5, bytes_per_s=1e10
    )
    served = ServingPlan(setup=_setup("vllm", stages=2), prefill=prefill).serve(requests)
    assert all(first < ended for first, ended in zip(served.first_ps, served.ended_ps, strict=True))


def test_engines_limit_all_batches_or_each() -> None:
    requests = Requests(arrivals_ps=(0,) * 64, prompts=(2000,) * 64, outputs=(400,) * 64)
    most: dict[BatchLimit, int] = {}
    for limit in BatchLimit:
        setup = _setup("vllm", stages=2)
        engine = replace(setup.engine, most_sequences=8, batch_limit=limit)
        served = ServingPlan(setup=replace(setup, engine=engine)).serve(requests)
        most[limit] = max(sample.decoding for sample in served.samples)
    assert most == {BatchLimit.TOGETHER: 8, BatchLimit.SHARED: 8, BatchLimit.EACH: 16}
