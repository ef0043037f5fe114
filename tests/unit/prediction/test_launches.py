"""A host that launches each kernel by itself, and waits for counts of tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.step import run_report
from hespas.prediction.launches import Launch, launch_of, launch_waits_ps
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.staged import predict_pipeline
from hespas.program.attrs import NO_ATTRS
from hespas.program.program import Op, Value
from hespas.program.scopes import Named, Phase
from hespas.program.types import tensor_type
from hespas.sources.options import ModelOptions

launches = st.lists(
    st.builds(
        Launch,
        duration_ps=st.integers(0, 100),
        count=st.integers(0, 5),
        waits=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(launches, st.integers(0, 50))
def test_a_sequence_takes_at_least_what_the_host_and_the_device_take(
    each: list[Launch], host_launch_ps: int
) -> None:
    waits = launch_waits_ps(each, host_launch_ps)
    busy_ps = sum(launch.duration_ps for launch in each)
    assert all(wait >= 0 for wait in waits)
    if all(launch.waits for launch in each):
        assert sum(waits) == host_launch_ps * sum(launch.count for launch in each)
    assert sum(waits) <= host_launch_ps * sum(launch.count for launch in each) + busy_ps


@given(launches)
def test_a_host_that_takes_no_time_is_never_waited_for(each: list[Launch]) -> None:
    assert not any(launch_waits_ps(each, 0))


def of(
    kind: str, *shape: int, path: tuple[str, ...], phase: Phase, element: str = "bf16"
) -> Launch:
    op = Op(
        dialect="stablehlo",
        kind=kind,
        operands=(),
        results=(Value(type=tensor_type(element, *shape)),),
        attrs=NO_ATTRS,
    )
    return launch_of(op, Named(phase=phase, path=path, operation=kind), 7)


def test_products_and_rounding_of_experts_are_a_launch_for_each() -> None:
    experts = ("layers", "mlp", "experts")
    assert of("dot_general", 16, 8, 4, path=experts, phase=Phase.BACKWARD).count == 16
    assert (
        of("convert", 16, 8, 4, element="f8E4M3FN", path=experts, phase=Phase.FORWARD).count == 16
    )
    assert of("multiply", 16, 8, 4, path=experts, phase=Phase.FORWARD).count == 1
    assert of("dot_general", 16, 8, 4, path=("layers", "attention"), phase=Phase.FORWARD).count == 1


def test_the_host_waits_for_counts_in_the_forward_pass_alone() -> None:
    dispatch = ("layers", "mlp", "dispatch")
    assert of("all_to_all", 8, 4, path=dispatch, phase=Phase.FORWARD).waits
    assert not of("all_to_all", 8, 4, path=dispatch, phase=Phase.BACKWARD).waits
    assert not of("all_to_all", 8, 4, path=("mlp", "combine"), phase=Phase.FORWARD).waits


SMALL = {"layers": "2", "vocabulary": "2048", "embedding": "512", "heads": "8", "experts": "16"}


@cache
def predicted(
    host_launch_s: float | None = None,
    *,
    cuda_graphs: bool = False,
    software: str = "megatron",
    mesh: str = "pipe=1,expert=8",
) -> PipelinePrediction:
    model = ModelOptions(
        mesh=parse_mesh(mesh),
        global_batch=16,
        micro_batch=1,
        sequence=1024,
        software=software,
        settings=SMALL,
    )
    options = PredictOptions(
        program=ProgramOptions(file=Path("mixtral-8x7b"), model=model),
        compile=CompileChoice(fidelity=Fidelity.LIBRARY),
        estimate=EstimateOptions(host_launch_s=host_launch_s, cuda_graphs=cuda_graphs),
        network=NetworkOptions(cluster="8xH100_80GB"),
    )
    return predict_pipeline(options)


def test_a_step_of_small_kernels_waits_for_its_host() -> None:
    graphs, usual, slow = predicted(cuda_graphs=True), predicted(), predicted(100e-6)
    assert graphs.launch_wait_s == 0
    assert graphs.step_time_s < usual.step_time_s < slow.step_time_s
    assert usual.compute_s == graphs.compute_s == slow.compute_s
    for prediction in (graphs, usual, slow):
        report = run_report(prediction)
        parts_s = report.compute_s + report.exposed_communication_s + report.launch_wait_s
        assert parts_s + report.stage_wait_s == pytest.approx(report.step_time_s, rel=1e-9)
        assert any("host launches: " in each for each in report.assumptions)


def test_a_host_as_slow_as_all_launches_decides_the_step() -> None:
    slow, slower = predicted(1e-3), predicted(2e-3)
    assert slower.launch_wait_s == pytest.approx(2 * slow.launch_wait_s, rel=0.1)


def test_compiled_frameworks_have_no_host_of_eager_launches() -> None:
    assert predicted(software="torchtitan").launch_wait_s == 0
    with pytest.raises(ConfigError, match=r"host_launch.* no pipeline of eager kernels"):
        predicted(1e-3, software="torchtitan")


def test_a_step_without_a_pipeline_refuses_it() -> None:
    from hespas.prediction.composition import predict  # noqa: PLC0415 - one test

    usual = predicted().options
    model = replace(usual.program.model, mesh=parse_mesh("expert=8"), micro_batch=None)
    options = replace(
        usual,
        program=replace(usual.program, model=model),
        estimate=EstimateOptions(host_launch_s=1e-3),
    )
    with pytest.raises(ConfigError, match=r"host_launch.* no pipeline of eager kernels"):
        predict(options)
