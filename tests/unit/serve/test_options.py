"""Options of serving are refused where they have no effect or mean nothing."""

from __future__ import annotations

import pytest

from hespas.errors import ConfigError
from hespas.serve.answer import Objectives
from hespas.serve.engine import Speculation, engine_named
from hespas.serve.load import Arrivals
from hespas.serve.options import (
    EngineOptions,
    LoadOptions,
    ServeOptions,
    parse_factors,
    parse_objectives,
)
from hespas.serve.step_times import StepFactors


def test_objectives_are_read() -> None:
    assert parse_objectives("ttft=500ms,tpot=40ms,latency=3s") == Objectives(
        ttft_s=0.5, tpot_s=0.04, latency_s=3.0
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tptot=1ms", "did you mean 'tpot'"),
        ("ttft", "write ttft=500ms,tpot=40ms"),
        ("ttft=0ms", "more than 0"),
        ("ttft=1ms,ttft=2ms", "given twice"),
        ("ttft=5kg", "5kg"),
        ("latency=3,ttft=500", "ttft: 500 without a unit is 500 s; give 500ms"),
    ],
)
def test_objectives_that_mean_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_objectives(text)
    assert message in str(caught.value)


def test_a_load_is_needed() -> None:
    with pytest.raises(ConfigError, match="no load is given"):
        LoadOptions().made()


def test_a_closed_load_has_ten_requests_of_each_concurrent_one() -> None:
    assert len(LoadOptions(concurrency=300).made()) == 3000
    assert len(LoadOptions(concurrency=3, requests=7).made()) == 7


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="no effect"):
        LoadOptions(concurrency=3, arrivals=Arrivals.GAMMA)
    with pytest.raises(ConfigError, match="no effect on poisson"):
        LoadOptions(rate=3.0, burstiness=2.0)
    with pytest.raises(ConfigError, match="rate"):
        LoadOptions(rate=3.0, concurrency=2)


@pytest.mark.parametrize("share", [1.5, -0.1])
def test_a_share_of_memory_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match="memory_share"):
        EngineOptions(memory_share=share)


def test_options_change_the_engine() -> None:
    engine = engine_named("vllm", memory_bytes=80 * 2**30, part="H100")
    changed = EngineOptions(max_sequences=7, host_time_s=2e-3).changed(engine)
    assert (changed.most_sequences, changed.host_s) == (7, 2e-3)
    assert changed.token_budget == engine.token_budget


def test_a_cluster_is_needed() -> None:
    with pytest.raises(ConfigError, match="no cluster is given"):
        ServeOptions(model_name="llama3-8b")


def test_step_factors_are_read_or_refused() -> None:
    assert parse_factors("decode=1.05,prompts=0.9") == StepFactors(decode=1.05, prompts=0.9)
    for text, message in (("decoding=2", "did you mean 'decode'"), ("decode=0", "more than 0")):
        with pytest.raises(ConfigError) as caught:
            parse_factors(text)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"acceptance_rate": 0.5}, "no effect without"),
        ({"speculative_tokens": 2}, "how many are accepted"),
        ({"speculative_tokens": 2, "acceptance_rate": 1.5}, "give 0 to 1"),
    ],
)
def test_guesses_need_how_many_are_accepted(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineOptions(**given)  # pyright: ignore[reportArgumentType]


def test_a_guess_takes_as_long_as_a_layer() -> None:
    speculation = EngineOptions(speculative_tokens=2, acceptance_rate=0.5).speculation(40)
    assert speculation == Speculation(tokens=2, acceptance=0.5, draft_share=0.025)


def test_a_load_that_is_drawn_can_be_longer_and_no_other() -> None:
    drawn = LoadOptions(rate=5.0, requests=10, isl=7)
    longer = drawn.longer(drawn.made(), 50)
    assert (len(longer), set(longer.prompts)) == (50, {7})
    assert drawn.longer(longer, 20) is longer
    closed = LoadOptions(concurrency=3, requests=7)
    assert len(closed.longer(closed.made(), 50)) == 7
