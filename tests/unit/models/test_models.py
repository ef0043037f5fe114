"""Every family of the zoo, in small."""

from __future__ import annotations

from collections import Counter

import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named, models
from hespas.program.program import Program, is_communication_op
from hespas.sources.exported import Exported, partitioned
from hespas.sources.function import export_model
from hespas.stages import estimate, split


def exported(name: str, **options: str) -> Program:
    made: Exported = partitioned(export_model(name, options))
    return load_source(made.content, name=name)


def counted(program: Program) -> Counter[str]:
    return Counter(op.kind for op in program.main.body.operations)


def communication(program: Program) -> Counter[str]:
    return Counter(op.kind for op in program.main.body.operations if is_communication_op(op))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemm", {}),
        ("gemm-rows", {}),
        ("gemm-columns", {"all_gather": 1}),
        ("gemm-contracting", {"all_reduce": 1}),
        ("gemm-scattered", {"reduce_scatter": 1}),
        ("moe", {"all_to_all": 2}),
    ],
)
def test_what_is_communicated(name: str, expected: dict[str, int]) -> None:
    assert communication(exported(name)) == expected


def test_a_product_has_the_shape_asked_for() -> None:
    program = exported("gemm", m="128", k="256", n="512", dtype="f32")
    assert [str(value.type) for value in program.main.body.arguments] == [
        "tensor<128x256xf32>",
        "tensor<256x512xf32>",
    ]


def test_a_residual_network_communicates_as_published() -> None:
    # 62 gradients, 20 batch normalisations forward, backward and their statistics (2), the loss
    # and the accuracy; XLA computes 3 gradients once that are equal by construction.
    small = exported("resnet18", batch="2", image="32")
    assert communication(small) == {"all_reduce": 62 + 20 * 4 + 2 - 3}


def test_a_residual_network_computes_as_published() -> None:
    # Counted in the MIT-licensed training step of ResNet-50 that others published as StableHLO.
    published = {
        "convolution": 158,
        "reduce_window": 1,
        "select_and_scatter": 1,
        "rsqrt": 53,
        "concatenate": 53,
        "pad": 107,
    }
    ours = counted(exported("resnet50", batch="2", image="32"))
    assert {name: ours[name] for name in published} == published


def test_inference_does_not_communicate() -> None:
    counts = counted(exported("resnet50-inference", batch="2", image="32"))
    assert counts["convolution"] == 53
    assert counts["all_reduce"] == 0


def test_a_network_in_nodes_reduces_gradients_in_two_steps() -> None:
    text = partitioned(
        export_model("llama2-7b", {"layers": "1", "sequence": "256", "vocabulary": "1024"})
    ).content.decode()
    assert "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>" in text  # in each node, before the slice
    assert "dense<[[0, 4], [1, 5], [2, 6], [3, 7]]>" in text  # across nodes, of each shard


def test_documents_of_steps_like_those_of_maxtext_may_be_short() -> None:
    options = {"mesh": "fsdp=1", "layers": "1", "sequence": "128", "vocabulary": "256"}
    text = export_model(
        "llama3-100m", {**options, "attention": "unfused", "document_length": "64"}
    ).content.decode()
    assert "x64x64xbf16" in text
    assert "x128x128xbf16" not in text


_DECODER = {
    "embedding": "64",
    "heads": "2",
    "head_size": "32",
    "layers": "1",
    "mlp": "128",
    "sequence": "64",
    "vocabulary": "256",
}
_ROUTED = {"experts": "8", "expert_mlp": "64"}
_LATENT = {"query_rank": "32", "kv_rank": "16", "rope_size": "8", "value_size": "16"}
_SMALL = {
    "LanguageModel": {
        **_DECODER,
        **_ROUTED,
        **_LATENT,
        "kv_heads": "2",
        "layers": "4",
        "context": "64",
        "attention": "unfused",
        "mesh": "data=1",
    },
    "ResNet": {"stages": "1-1-1-1", "batch": "2", "image": "32"},
    "Gemm": {"m": "64", "k": "64", "n": "64"},
    "Experts": {"embedding": "64", "mlp": "128", "sequence": "64"},
}
"""Sizes for models of each kind, by the type of their settings."""


def _small(name: str) -> dict[str, str]:
    sizes, known = _SMALL[type(models()[name].settings).__name__], models()[name].options()
    return {key: value for key, value in sizes.items() if key in known}


def _different_when_small() -> list[str]:
    """Return one of all the models that differ in nothing but what is made small."""
    left: dict[str, str] = {}
    for name, model in models().items():
        kept = {key: value for key, value in model.options().items() if key not in _small(name)}
        left.setdefault(f"{type(model.settings).__name__} {kept}", name)
    return list(left.values())


@pytest.mark.parametrize("name", _different_when_small())
def test_every_model_can_be_priced_as_exported(name: str) -> None:
    program = exported(name, **_small(name))
    assert estimate(split(program), "H100_80GB").total.time_s > 0


def test_names_are_unique_and_all_models_have_a_summary() -> None:
    assert len(models()) == 93
    assert all(model.summary for model in models().values())


def test_an_unknown_model_is_named_with_its_neighbours() -> None:
    with pytest.raises(ConfigError, match="did you mean 'resnet50'"):
        model_named("resnet5O")
