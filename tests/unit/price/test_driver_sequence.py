"""A region's operations in order: they add up to its estimate."""

from __future__ import annotations

import pytest

from hespas.prediction import machines
from hespas.prediction.options import EstimateOptions, PredictOptions
from hespas.price.driver import OperationMethod, Priced, Rounds, Step, priced_steps
from hespas.program.program import Program
from hespas.split.regions import Compute
from hespas.stages import load, split
from scheduled import kernel, loop, scheduled

EXAMPLES = ("attention_block", "llama3_100m_fsdp4")


def method_of(program: Program, name: str | None = None) -> OperationMethod:
    options = PredictOptions(estimate=EstimateOptions(node="H100_80GB", method=name))
    method = machines.estimator_of(program, options)
    assert isinstance(method, OperationMethod)
    return method


def steps_of(region: Compute, program: Program, name: str | None = None) -> tuple[Step, ...]:
    return priced_steps(method_of(program, name), region, program, custom_calls={})


@pytest.mark.parametrize("example", EXAMPLES)
def test_steps_add_up_to_the_estimate_of_their_region(example: str) -> None:
    program = load(f"examples/{example}.mlir")
    options = PredictOptions(estimate=EstimateOptions(node="H100_80GB"))
    estimator = machines.estimator_of(program, options)

    for region in split(program).compute_regions:
        steps = steps_of(region, program)
        expected = estimator.estimate(region, program)
        assert sum(step.duration_ps for step in steps) == expected.duration_ps
        costs = [step.cost for step in steps if isinstance(step, Priced)]
        assert sum(cost.flops for cost in costs) == pytest.approx(expected.total.flops)
        assert sum(cost.bound.known_s for cost in costs) == pytest.approx(
            expected.total.bound.known_s
        )


@pytest.mark.parametrize("method", ["roofline", "measured", "kernel"])
def test_a_loop_stands_once_with_what_a_round_runs(method: str) -> None:
    function, lines = loop("r", "k", kernel("u", "v"), kernel("w", "u"), count=20)
    program = scheduled(kernel("k", "a"), *lines, kernel("last", "r"), functions=function)
    options = PredictOptions(estimate=EstimateOptions(node="H100_80GB", method=method))
    estimator = machines.estimator_of(program, options)

    for region in split(program).compute_regions:
        (step,) = steps_of(region, program, method)
        assert step.duration_ps == estimator.estimate(region, program).duration_ps
        if isinstance(step, Rounds):
            assert step.count == 20
            assert step.op.instruction == "out_r"
            names = [each.op.instruction for each in step.body if each.duration_ps]
            assert names[-2:] == ["u", "w"]
