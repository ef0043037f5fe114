"""Reports separate the collectives of each axis of the zoo; combined ones are named for both."""

from __future__ import annotations

import pytest

import hespas

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


@pytest.mark.parametrize(("model", "mesh", "more", "expected"), CASES, ids=str)
def test_each_axis_has_rows_of_its_own(
    model: str, mesh: str, more: dict[str, str], expected: tuple[tuple[str, str], ...]
) -> None:
    prediction = hespas.predict(
        model,
        cluster="4xH100_80GB",
        mesh=mesh,
        sequence=1024,
        attention="cudnn" if "context" in mesh else "unfused",
        settings=SMALL | more,
        fidelity="fused",
    )
    rows = {(str(row["kind"]), str(row["axis"])) for row in prediction.rows("communication")}
    assert {*expected, *SHARDED} <= rows
    axes = {axis.partition("=")[0] for axis in mesh.split(",")}
    named = {axis for kind, named in rows if kind != "idle" for axis in named.split("+")}
    assert named <= axes
