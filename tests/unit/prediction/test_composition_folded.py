"""What is predicted with loops folded is what is predicted with every round of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hespas.prediction import composition
from hespas.prediction.composition import predict_folded
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.prediction.result import Prediction
from hespas.simulate.timeline import Timeline
from hespas.study.space import candidate_of

LLAMA: dict[str, Any] = {"model": "llama3-100m", "cluster": "8xH100_80GB", "sequence": 512}
STEPS: dict[str, dict[str, Any]] = {
    "rounds of loops over layers": {
        **LLAMA,
        "cluster": "6xH100_80GB",
        "mesh": {"fsdp": 2, "tp": 3},
        "global_batch": 32,
        "micro_batch": 1,
        "set": {"scan": "true", "layers": 3},
    },
    "layers without a loop": {**LLAMA, "mesh": {"fsdp": 8}, "set": {"layers": 2}},
    "experts": {
        "model": "mixtral-8x7b",
        "cluster": "8xH100_80GB",
        "mesh": {"fsdp": 4, "expert": 2},
        "sequence": 512,
        "set": {"layers": 3, "scan": "true"},
    },
}


SHARDED: dict[str, Any] = {"mesh": {"fsdp": 8}, "set": {"layers": 3, "scan": "true"}}
COUNTED: dict[str, tuple[int | None, dict[str, Any]]] = {
    "micro-batches of layers in a loop": (8, {**LLAMA, **SHARDED}),
    "micro-batches of layers without a loop": (8, {**LLAMA, **SHARDED, "set": {"layers": 2}}),
    "micro-batches, data parallel across": (
        8,
        {**LLAMA, "mesh": {"data": 2, "fsdp": 4}, "set": {"layers": 2, "scan": "true"}},
    ),
    "micro-batches on shared links": (8, {**LLAMA, **SHARDED, "network_model": "hespas"}),
    "layers": (None, {**LLAMA, **SHARDED}),
    "layers of experts": (None, STEPS["experts"]),
}
"""Parts of a global batch, or None where layers are counted, and a step."""


def sums(timeline: Timeline) -> list[tuple[object, ...]]:
    """Return all that a timeline adds up, by class, in ps."""
    return [
        (
            one.devices,
            one.finish_ps,
            one.compute_ps,
            one.communication_ps,
            one.overlap_ps,
            sum(one.exposed_ps.values()),
        )
        for one in timeline.classes
    ]


def options(given: dict[str, Any], fidelity: Fidelity) -> PredictOptions:
    found = candidate_of(given).options()
    return replace(found, compile=CompileChoice(fidelity=fidelity))


def figures(prediction: Prediction) -> dict[str, Any]:
    report = run_report(prediction, with_tables=False)
    names = set(report.__struct_fields__) - {"per_op"}
    return {name: getattr(report, name) for name in names} | {
        "goodput": prediction.memory.peak_bytes
    }


@pytest.mark.parametrize("name", STEPS)
def test_the_figures_are_the_same(name: str) -> None:
    asked = options(STEPS[name], Fidelity.FUSED)
    folded, whole = predict_folded(asked), composition.predict(asked)
    assert figures(folded) == figures(whole)


@pytest.mark.parametrize(
    "count", [9, *(pytest.param(count, marks=pytest.mark.rest) for count in (4, 6))]
)
@pytest.mark.parametrize("name", COUNTED)
def test_any_number_of_rounds_is_what_all_of_them_are(name: str, count: int) -> None:
    parts, given = COUNTED[name]
    sizes = {"layers": count} if parts is None else {}
    batch = {} if parts is None else {"global_batch": parts * count, "micro_batch": 1}
    merged = {**given, **batch, "set": {**given["set"], **sizes}}
    asked = options(merged, Fidelity.FUSED)
    folded, whole = predict_folded(asked), composition.predict(asked)
    assert folded.timeline is not None
    assert whole.timeline is not None
    assert sums(folded.timeline) == sums(whole.timeline)
    assert figures(folded) == figures(whole)
    assert sum(folded.graph.counts) == len(whole.graph.regions)
    # Some of the micro-batches and layers stand outside of loops.
    if count == 9:
        assert len(folded.graph.regions) < len(whole.graph.regions)


def test_many_rounds_are_a_few_where_work_goes_on_between_them() -> None:
    asked = options({**LLAMA, **SHARDED, "global_batch": 512, "micro_batch": 1}, Fidelity.FUSED)
    folded = predict_folded(asked)
    assert 8 * len(folded.graph.regions) < sum(folded.graph.counts)


def test_a_slow_device_is_predicted_with_every_round(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text("devices: [{devices: [3], compute_scale: 1.5}]\n")
    given = STEPS["rounds of loops over layers"] | {"imperfect": str(slow)}
    asked = options(given, Fidelity.FUSED)
    folded, whole = predict_folded(asked), composition.predict(asked)
    assert folded.straggler_s > 0
    assert figures(folded) == figures(whole)


def test_programs_as_exported_are_predicted_whole() -> None:
    asked = options(STEPS["rounds of loops over layers"], Fidelity.EXPORTED)
    folded, whole = predict_folded(asked), composition.predict(asked)
    assert folded.graph.counts == ()
    assert figures(folded) == figures(whole)
