from __future__ import annotations

from math import prod
from typing import Any

import jax
import pytest

import hespas
from hespas.errors import HespasError
from hespas.models.catalogue import model_named
from hespas.prediction.figures.long_run import goodput_report
from hespas.prediction.figures.schema import GoodputReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.goodput import (
    CHECKPOINT_BYTES_PER_S,
    DEFAULT_START_S,
    FAILURES,
    GoodputOptions,
    LongRun,
    best_interval_s,
    goodput_of,
)
from hespas.report.run import goodput_lines
from step_reports import pipeline_step

LLAMA = "examples/llama3_100m_fsdp4.mlir"


def found(node: str = "H100_80GB", **given: Any) -> GoodputReport:
    tokens = given.pop("tokens", 8192)
    options = GoodputOptions(goodput=True, **given)
    prediction = hespas.predict(
        LLAMA, node, "H100_80GB_4GPU", fidelity="exported", tokens=tokens, long_run=options
    )
    return goodput_report(prediction)


def test_devices_fail_as_often_as_is_published() -> None:
    assert found().failure_interval_s == pytest.approx(FAILURES["H100"].device_interval_s / 4)


def test_what_is_given_is_taken() -> None:
    report = found(
        device_failure_interval=4e6, checkpoint_bandwidth=1e9, checkpoint_interval=1000.0
    )
    assert report.failure_interval_s == 1e6
    assert report.checkpoint_interval_s == 1000.0
    assert report.checkpoint_s == report.checkpoint_bytes / 1e9
    assert not any("125 MB/s" in text for text in report.assumptions)


def test_a_run_takes_as_long_as_its_tokens() -> None:
    report = found(train_tokens=1e12, device_hour_usd=2.0)
    assert report.tokens_per_day is not None
    assert report.days is not None
    assert report.days == pytest.approx(1e12 / report.tokens_per_day)
    assert report.usd == pytest.approx(report.days * 24 * 2.0 * 4)


def test_spares_are_paid() -> None:
    """A node of eight stands by for the one of four devices that trains."""
    one = found(train_tokens=1e12, device_hour_usd=2.0, spare_nodes=1)
    assert one.days is not None
    assert one.usd == pytest.approx(one.days * 24 * 2.0 * 8)


def test_runs_that_would_be_played_for_hours_are_refused() -> None:
    with pytest.raises(HespasError, match="interruptions each are too long to play; give fewer"):
        found(run_days=1e9)


def test_a_checkpoint_is_what_a_step_hands_to_the_next() -> None:
    """Weights and both moments of AdamW of 134.1 M parameters, and two counters."""
    prediction = hespas.predict(LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported")
    assert found().checkpoint_bytes <= 4 * prediction.memory.alias_bytes


def test_a_pipeline_saves_the_states_of_all_stages_once() -> None:
    """Weights in 32 bits and two moments, whatever the number of equal parts along ``data``."""
    report = pipeline_step()
    assert report.goodput is not None
    state: Any = model_named("llama3-100m").step({"layers": "4"}).arguments[0]
    weights = sum(prod(leaf.shape) for leaf in jax.tree.leaves(state["weights"]))
    assert report.goodput.checkpoint_bytes == pytest.approx(12 * weights, rel=1e-3)
    assert report.goodput.failure_interval_s == FAILURES["H100"].device_interval_s / 4
    assert report.goodput.tokens_per_day is not None
    assert report.goodput.days == pytest.approx(1e12 / report.goodput.tokens_per_day)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"checkpoint_interval": 1e-6}, "shorter than a step"),
    ({"train_tokens": 1e12, "tokens": None}, "tokens of a step are not known"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_has_no_answer_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HespasError, match=message):
        found(**given)


def test_a_part_whose_failures_nobody_published_needs_a_figure() -> None:
    with pytest.raises(HespasError, match="how often V100_32GB fails is not known"):
        found(node="V100_32GB")


def test_a_step_that_keeps_nothing_has_no_checkpoint() -> None:
    prediction = hespas.predict(
        "examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU", fidelity="exported",
        long_run=GoodputOptions(goodput=True),
    )  # fmt: skip
    with pytest.raises(HespasError, match="hands nothing to the next"):
        goodput_report(prediction)


def test_lines_are_there_when_it_is_asked_for() -> None:
    prediction = hespas.predict(LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported")
    assert goodput_lines(run_report(prediction)) == []
    asked = hespas.predict(
        LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported",
        long_run=GoodputOptions(goodput=True),
    )  # fmt: skip
    lines = goodput_lines(run_report(asked))
    assert lines[0] == "A long run, with failures:"
    assert any("steps" in line for line in lines)


def test_the_run_of_llama_3_loses_less_than_a_tenth_as_reported() -> None:
    """Source: arXiv 2407.21783, section 3.3.4: more than 90 % effective training time."""
    devices = 16_384
    between_s = FAILURES["H100"].device_interval_s / devices
    assert between_s / 3600 == pytest.approx(3.1, abs=0.05)
    save_s = 12 * 405e9 / (CHECKPOINT_BYTES_PER_S * devices)
    run = LongRun(
        failure_interval_s=between_s, start_s=DEFAULT_START_S, load_s=save_s, save_s=save_s,
        interval_s=best_interval_s(failure_interval_s=between_s, save_s=save_s),
    )  # fmt: skip
    assert 0.90 < goodput_of(run).productive < 0.96
