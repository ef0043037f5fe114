"""Reports separate the collectives of each axis of the zoo; combined ones are named for both."""

from __future__ import annotations

import pytest

import hespas
from compilers import needs_gpu
from hespas.prediction.explain.changes import main_changes
from hespas.prediction.figures.communication import communication_rows
from hespas.report.answers import Answer
from hespas.report.stages import explain_text

SMALL = {
    "layers": "2",
    "vocabulary": "1024",
    "embedding": "512",
    "heads": "8",
    "kv_heads": "4",
    "head_size": "64",
    "mlp": "1024",
}
SHARDED = {("all_gather", "fsdp"), ("reduce_scatter", "fsdp"), ("all_reduce", "fsdp")}
CASES: list[tuple[str, str, dict[str, str], tuple[tuple[str, str], ...]]] = [
    (
        "llama2-70b",
        "data=2,fsdp=2",
        {},
        (
            ("all_reduce", "data"),
            ("all_reduce", "data+fsdp"),
        ),
    ),
    (
        "llama2-70b",
        "fsdp=2,tp=2",
        {},
        (
            ("all_reduce", "tp"),
            ("all_gather", "tp"),
        ),
    ),
    (
        "llama2-70b",
        "fsdp=2,context=2",
        {},
        (
            ("all_gather", "context"),
            ("all_reduce", "context"),
        ),
    ),
    (
        "llama2-70b",
        "fsdp=2,context=2",
        {"context_attention": "ring"},
        (("collective_permute", "context"),),
    ),
    ("llama2-70b", "fsdp=2,sequence=2", {}, (("all_to_all", "sequence"),)),
    (
        "mixtral-8x7b",
        "fsdp=2,expert=2",
        {"expert_mlp": "512"},
        (
            ("all_to_all", "expert"),
            ("all_reduce", "fsdp+expert"),
        ),
    ),
]


def predicted(model: str, mesh: str, more: dict[str, str], fidelity: str) -> Answer:
    return hespas.predict(
        model,
        cluster="4xH100_80GB",
        mesh=mesh,
        sequence=1024,
        attention="cudnn" if "context" in mesh else "unfused",
        settings=SMALL | more,
        fidelity=fidelity,
    )


@pytest.mark.parametrize(("model", "mesh", "more", "expected"), CASES, ids=str)
def test_each_axis_has_rows_of_its_own(
    model: str, mesh: str, more: dict[str, str], expected: tuple[tuple[str, str], ...]
) -> None:
    prediction = predicted(model, mesh, more, "fused")
    rows = {(str(row["kind"]), str(row["axis"])) for row in prediction.rows("communication")}
    assert {*expected, *SHARDED} <= rows
    assert named(prediction) <= axes_of(mesh)
    check_explained(prediction)


@needs_gpu
@pytest.mark.finds_compilers
@pytest.mark.parametrize(("model", "mesh", "more", "expected"), CASES, ids=str)
def test_each_axis_of_a_compiled_program_has_rows_of_its_own(
    model: str, mesh: str, more: dict[str, str], expected: tuple[tuple[str, str], ...]
) -> None:
    prediction = predicted(model, mesh, more, "compiled")
    assert prediction.fidelity == "compiled"
    # Which collectives a compiler makes of others is its own; along which axes is not.
    assert {axis for _, axis in expected if "+" not in axis} <= named(prediction)
    assert named(prediction) == axes_of(mesh)
    rows = communication_rows(prediction)
    exposed_s = sum(row.exposed_s for row in rows)
    assert exposed_s == pytest.approx(prediction.exposed_communication_s, abs=1e-12)
    check_explained(prediction)


def axes_of(mesh: str) -> set[str]:
    return {axis.partition("=")[0] for axis in mesh.split(",")}


def named(prediction: Answer) -> set[str]:
    """Return the axes that rows of communication name, alone or with others."""
    rows = communication_rows(prediction)
    return {axis for row in rows if row.axis for axis in row.axis.split("+")}


def check_explained(prediction: Answer) -> None:
    """Require that an explanation has the table of axes that the report of a run has."""
    text = explain_text(prediction, main_changes(prediction))
    table = text.partition("Communication, by axis")[2]
    shown = communication_rows(prediction)[:8]
    assert table
    assert all(f"  {row.kind} {row.axis}".rstrip() in table for row in shown)
