"""Parts of a model whose layers are priced alone, beside those written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.models.model import parse_mesh
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.cutting import cut_of
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions, ReportOptions
from hespas.prediction.part_costs import layers_alone
from hespas.prediction.staged import predict_pipeline
from hespas.sources.options import ModelOptions
from small_pipelines import SMALL, options

NOTE = "layers: those of a stage take what each kind of them takes alone"
WINDOWS = {"layers": "12", "vocabulary": "4096", "mlp": "2048", "embedding": "1024"}


def of_layers(*, scan: bool | None, settings: dict[str, str] | None = None) -> PredictOptions:
    model = ModelOptions(sequence=1024, settings=settings or SMALL, scan=scan)
    return options("pipe=2,fsdp=2,tp=2", model=model)


def of_windows(*, scan: bool | None) -> PredictOptions:
    asked = of_layers(scan=scan, settings=WINDOWS)
    return replace(asked, program=replace(asked.program, file=Path("gemma3-12b")))


def test_all_of_the_programs_of_libraries_is_in_the_step_and_in_its_tables() -> None:
    """Casts of weights behind the update have no phase in their names."""
    asked = replace(of_layers(scan=None), compile=CompileChoice(fidelity=Fidelity.LIBRARY))
    report = run_report(predict_pipeline(asked))
    for rows in (report.kinds, report.phases, report.layers):
        assert sum(row.time_s for row in rows) == pytest.approx(report.compute_s, rel=1e-6)
    exposed_s = report.bound.exposed_communication * report.step_time_s
    assert exposed_s == pytest.approx(report.exposed_communication_s, rel=1e-6)
    by_operation = sum(row.time_s for row in report.per_op.values())
    assert by_operation == pytest.approx(report.compute_s, rel=1e-6)
    assert any(row.path == "sums of gradients" for row in report.layers)


@pytest.mark.parametrize("asked", [of_layers, of_windows])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_layers_priced_alone_take_what_those_written_out_take(
    asked: Callable[..., PredictOptions], schedule: str
) -> None:
    alone, written = (_predicted(asked(scan=scan), schedule) for scan in (None, False))
    assert alone.step_time_s == pytest.approx(written.step_time_s, rel=0.01)
    for part, cost in alone.costs.items():
        own, theirs = cost.footprint, written.costs[part].footprint
        assert own.weight_bytes == theirs.weight_bytes
        assert own.peak_bytes == pytest.approx(theirs.peak_bytes, rel=0.02)
    first, other = run_report(alone), run_report(written)
    assert first.flops == pytest.approx(other.flops, rel=0.001)


def _predicted(asked: PredictOptions, schedule: str) -> PipelinePrediction:
    return predict_pipeline(replace(asked, pipeline=replace(asked.pipeline, schedule=schedule)))


def test_each_kind_of_layer_is_priced_once_and_said() -> None:
    prediction = predict_pipeline(of_layers(scan=None))
    assert any(text.startswith(NOTE) for text in prediction.assumptions)
    first, last = (prediction.costs[part].programs for part in prediction.cut.parts)
    assert [program.times for program in first] == [program.times for program in last] == [1, 3]
    assert first[1].passes is last[1].passes
    written = predict_pipeline(of_layers(scan=False))
    assert not any(text.startswith(NOTE) for text in written.assumptions)
    assert [len(cost.programs) for cost in written.costs.values()] == [1, 1]


def test_layers_of_two_kinds_are_two_parts() -> None:
    cut = cut_of(of_windows(scan=None))
    for part in cut.parts:
        alone = layers_alone(cut, part)
        assert sum(alone.values()) == part.layers
        assert len({each.first for each in alone}) == 2
        assert sum(each.is_first for each in alone) == part.is_first
        assert sum(each.is_last for each in alone) == part.is_last


def test_routed_layers_and_those_to_be_told_apart_are_written_out() -> None:
    asked = of_layers(scan=None)
    routed = replace(
        asked,
        program=replace(
            asked.program,
            file=Path("mixtral-8x7b"),
            model=replace(
                asked.program.model,
                mesh=parse_mesh("pipe=2,expert=4"),
                settings={"layers": "8", "vocabulary": "4096", "mlp": "512"},
            ),
        ),
    )
    apart = replace(asked, report=ReportOptions(each_layer=True))
    for whole in (routed, apart):
        cut = cut_of(whole)
        assert [layers_alone(cut, part) for part in cut.parts] == [{part: 1} for part in cut.parts]
