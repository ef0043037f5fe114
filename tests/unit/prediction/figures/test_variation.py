from __future__ import annotations

from functools import cache
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np
import pytest

import hespas
from hespas.hardware.variation import SlowDevices, Variation
from hespas.prediction.figures.schema import VariationReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.figures.variation import Stages, longer_by, variation_report
from hespas.report.run import variation_lines
from hespas.tasks.pipelining.schedule import schedule_named
from hespas.tasks.pipelining.timing import Durations, timed

LLAMA = "examples/llama3_100m_fsdp4.mlir"


@cache
def of(variation: Variation) -> VariationReport:
    prediction = hespas.predict(
        LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported", tokens=8192, variation=variation
    )
    return variation_report(prediction)


def report(**given: Any) -> VariationReport:
    return of(Variation(source="an example", **given))


def test_none_changes_nothing() -> None:
    plain = hespas.predict(LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported")
    none = hespas.predict(
        LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported", variation="none"
    )
    assert plain.to_dict() == none.to_dict()
    assert variation_lines(run_report(plain)) == []


def test_no_deviation_is_the_step_of_equal_devices() -> None:
    found = report()
    assert found.expected_step_s == found.p5_s == found.p95_s == found.equal_step_s
    assert found.waiting_by_axis_s == {}


WORSE: list[list[dict[str, Any]]] = [
    [{"sigma": sigma} for sigma in (0.0, 0.01, 0.02, 0.1)],
    [{"memory_sigma": sigma} for sigma in (0.0, 0.01, 0.1)],
    [{"step_sigma": sigma} for sigma in (0.0, 0.01, 0.1)],
    [{"kernel_sigma": sigma} for sigma in (0.0, 0.1, 1.0)],
    [{"collective_delay_s": delay_s} for delay_s in (0.0, 1e-6, 1e-4)],
    [{"slow": SlowDevices(share=0.1, factor=factor)} for factor in (1.0, 1.1, 2.0)],
]


@pytest.mark.parametrize("rows", WORSE)
def test_more_variation_never_shortens_a_step(rows: list[dict[str, Any]]) -> None:
    reports = [report(**given) for given in rows]
    for less, more in pairwise(reports):
        assert more.expected_step_s > less.expected_step_s
        assert more.p95_s >= less.p95_s


def test_waiting_is_that_of_the_axes() -> None:
    found = report(sigma=0.02, collective_delay_s=1e-5)
    assert found.waiting_s == pytest.approx(found.expected_step_s - found.equal_step_s)
    assert sum(found.waiting_by_axis_s.values()) == pytest.approx(found.waiting_s, rel=0.1)
    assert found.without_slowest_s <= found.expected_step_s
    assert found.tokens_per_s == pytest.approx(8192 / found.expected_step_s)


def test_lines_say_what_waits() -> None:
    prediction = hespas.predict(
        LLAMA, "H100_80GB", "H100_80GB_4GPU", fidelity="exported", variation="GPU_SC22"
    )
    lines = variation_lines(run_report(prediction))
    assert lines[0] == "On devices that are not equal:"
    assert any("Waiting" in line for line in lines)


STAGES, BATCHES = 8, 64


def schedule_s(name: str, factors: list[float], of_stages: list[int]) -> float:
    """Return how long a schedule takes whose stages are slower by some factors."""
    schedule = schedule_named(name, stages=STAGES, micro_batches=BATCHES)
    passes = [
        round(time * factor / schedule.chunks)
        for time, factor in zip(of_stages, factors, strict=True)
    ]
    durations = Durations(
        pass_ps=lambda stage, action: passes[stage] * (1 + (action.kind.name != "FORWARD")),
        message_ps=lambda _source, _target: 0,
    )
    return timed(schedule, durations).finish_ps


@pytest.mark.parametrize("name", ["1f1b", "interleaved:4"])
@pytest.mark.parametrize("last", [1_000_000, 1_100_000])
def test_a_copy_is_as_slow_as_its_schedule_says(name: str, last: int) -> None:
    """Random stages, deviations of 3 %: the mean and the largest difference of whole steps."""
    of_stages = [1_000_000] * (STAGES - 1) + [last]
    equal = schedule_s(name, [1.0] * STAGES, of_stages)
    chunks = schedule_named(name, stages=STAGES, micro_batches=BATCHES).chunks
    busy = tuple(3.0 * BATCHES * time for time in of_stages)
    stages = Stages(
        compute_s=busy, busy_s=busy, ramp=1 / (BATCHES * chunks), deviation=0.03, inner=(),
        copies=(),
    )  # fmt: skip
    draws = 1.0 + 0.03 * np.random.default_rng(1).standard_normal((20, STAGES))
    wrong = [
        (float(longer_by(row[None, None, :], stages)[0, 0]) + equal)
        / schedule_s(name, list(row), of_stages)
        - 1
        for row in draws
    ]
    assert abs(mean(wrong)) < 0.01
    assert max(map(abs, wrong)) < 0.02
