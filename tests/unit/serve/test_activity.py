"""What replicas do over a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.serve.activity import Activity, mean_batch, working_batch
from hespas.serve.answer import figures_of
from hespas.serve.engine import ENGINES, Setup, engine_named
from hespas.serve.load import PICOSECONDS, Lengths, Requests, drawn_requests
from hespas.serve.simulation import Prefill, ServingPlan
from hespas.serve.step_times import StepTimes

TIMES = StepTimes(tokens_s=((1, 6e-3), (256, 12e-3), (8192, 200e-3)), context_s=((1, 1e-8),))


def _setup(name: str = "vllm", blocks: int = 50_000) -> Setup:
    return Setup(
        engine=engine_named(name, memory_bytes=80 * 2**30, part="H100"), times=TIMES, blocks=blocks
    )


def test_preempted_requests_decode_no_more() -> None:
    lengths = Lengths(mean=128), Lengths(mean=640)
    crowd = drawn_requests(200, prompts=lengths[0], outputs=lengths[1], rate=1e6)
    setup = _setup(blocks=480)
    served, block_tokens = ServingPlan(setup=setup).serve(crowd), setup.engine.block_tokens
    assert served.preemptions > 0
    # No more sequences than the blocks hold prompts of.
    most = setup.blocks * block_tokens / 128
    batch = mean_batch(served.activities, figures_of(crowd, served).duration_s)
    assert 0 < batch <= working_batch(served.activities) <= most


def test_a_batch_has_no_more_sequences_than_an_iteration_of_it() -> None:
    rare = Requests(arrivals_ps=(0, 10**15), prompts=(100, 100), outputs=(50, 50))
    served = ServingPlan(setup=_setup()).serve(rare)
    assert working_batch(served.activities) == 1.0
    assert mean_batch(served.activities, 2000.0) == pytest.approx(2 * 49 * 6e-3 / 2000, rel=1e-3)


@pytest.mark.parametrize("name", ENGINES)
def test_a_lone_request_works_from_its_start_to_its_end(name: str) -> None:
    lone = Requests(arrivals_ps=(7,), prompts=(1000,), outputs=(300,))
    for setup in (_setup(name), replace(_setup(name), stages=(TIMES, TIMES))):
        served = ServingPlan(setup=setup).serve(lone)
        (activity,) = served.activities
        assert activity.working_ps == served.ended_ps[0] - 7
        assert activity.decodes.elapsed_ps + activity.prompts.elapsed_ps == activity.working_ps


def test_batches_of_stages_work_at_the_same_time() -> None:
    lengths = Lengths(mean=900), Lengths(mean=60)
    load = drawn_requests(200, prompts=lengths[0], outputs=lengths[1], concurrency=64)
    served = ServingPlan(setup=replace(_setup(), stages=(TIMES, TIMES))).serve(load)
    (activity,) = served.activities
    ran_ps = activity.decodes.elapsed_ps + activity.prompts.elapsed_ps
    duration_ps = figures_of(load, served).duration_s * PICOSECONDS
    assert activity.working_ps <= duration_ps * (1 + 1e-9)
    assert 1.5 * activity.working_ps < ran_ps <= 2 * activity.working_ps


def test_replicas_of_prompts_decode_nothing() -> None:
    lengths = Lengths(mean=900), Lengths(mean=60)
    load = drawn_requests(50, prompts=lengths[0], outputs=lengths[1], rate=20.0)
    prefill = Prefill(setup=_setup(), replicas=1, bytes_per_token=1e5, bytes_per_s=1e10)
    decoder, prompter = ServingPlan(setup=_setup(), prefill=prefill).serve(load).activities
    assert prompter.decoding_ps == prompter.decodes.elapsed_ps == 0 < prompter.prompts.elapsed_ps
    assert decoder.prompts.elapsed_ps == 0 < decoder.decoding_ps


def test_nothing_done_is_no_batch() -> None:
    assert working_batch([Activity()]) == mean_batch([Activity()], 1.0) == 0.0
