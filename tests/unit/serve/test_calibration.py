"""Step times are fitted to measured requests: the factors that made a log are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.serve.answer import figures_of
from hespas.serve.calibration import COLUMNS, compared, read_log
from hespas.serve.engine import Setup, engine_named
from hespas.serve.load import PICOSECONDS, Lengths, drawn_requests
from hespas.serve.simulation import ServingPlan
from hespas.serve.step_times import StepFactors, StepTimes

TIMES = StepTimes(
    tokens_s=((1, 6e-3), (256, 12e-3), (1024, 40e-3), (8192, 200e-3)), context_s=((1, 1e-8),)
)
ENGINE = engine_named("vllm", memory_bytes=80 * 2**30, part="H100")


def _plan(factors: StepFactors) -> ServingPlan:
    times = TIMES.scaled(factors, most_decoded=256)
    return ServingPlan(setup=Setup(engine=ENGINE, times=times, blocks=50_000))


def _log(path: Path, factors: StepFactors, rate: float) -> Path:
    requests = drawn_requests(
        200, prompts=Lengths(mean=900, spread=0.5), outputs=Lengths(mean=80, spread=0.5), rate=rate
    )
    figures = figures_of(requests, _plan(factors).serve(requests))
    lines = ["# a source", ",".join(COLUMNS)]
    for number, arrival in enumerate(requests.arrivals_ps):
        row = (
            arrival / PICOSECONDS,
            requests.prompts[number],
            requests.outputs[number],
            *(each[number] for each in (figures.queue_s, figures.ttft_s, figures.tpot_s)),
        )
        lines.append(",".join(f"{value:.12g}" for value in row))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(("decode", "prompts"), [(1.0, 1.0), (1.4, 0.8), (0.7, 1.5)])
def test_the_factors_of_a_log_are_found_again(
    tmp_path: Path, decode: float, prompts: float
) -> None:
    file = _log(tmp_path / "log.csv", StepFactors(decode=decode, prompts=prompts), rate=4.0)
    report = compared(read_log(file), _plan)
    assert report.decode_factor == pytest.approx(decode, rel=0.03)
    assert report.prompts_factor == pytest.approx(prompts, rel=0.05)
    assert report.fitted.tpot_median < 0.03
    assert abs(report.fitted.ttft_mean) < 0.05
    if decode != 1.0:
        assert abs(report.predicted.tpot_mean) > abs(report.fitted.tpot_mean)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,input_tokens\n0,1\n", "has no column 'output_tokens'"),
        (",".join(COLUMNS) + "\n0,1,1,0,x,0\n", "log.csv:2: ttft_s is 'x'"),
        ("# a source\n" + ",".join(COLUMNS) + "\n0,1,1,0,x,0\n", "log.csv:3: ttft_s is 'x'"),
        (",".join(COLUMNS) + "\n0,1,1,0,-1,0\n", "ttft_s is '-1'"),
        (",".join(COLUMNS) + "\n1,1,1,0,1,0\n0,1,1,0,1,0\n", "sort the file"),
        (",".join(COLUMNS) + "\n0,1,1,0,1,0\n", "holds 1 requests"),
    ],
)
def test_a_log_that_means_nothing_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_log(file)
    assert message in str(caught.value)
