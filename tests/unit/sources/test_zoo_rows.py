"""Whether rows are rounded to 4 bits is settled by the part that runs the model."""

from __future__ import annotations

import pytest

from hespas.models.catalogue import model_named
from hespas.sources.zoo import settled_rows


@pytest.mark.parametrize(
    ("target", "settled"),
    [("B200_180GB", "nvfp4"), ("H100_80GB", "same"), ("TPUv5e", "same"), (None, "same")],
)
def test_rows_are_rounded_where_a_part_multiplies_four_bits(
    target: str | None, settled: str
) -> None:
    model = model_named("llama3-8b-decode")
    settings, (note,) = settled_rows(model, {"weight_dtype": "nvfp4"}, target)
    assert settings == {"activation_dtype": settled}
    assert "NVFP4" in note


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("llama3-8b-decode", {}),
        ("llama3-8b-decode", {"weight_dtype": "nvfp4", "activation_dtype": "same"}),
        ("llama3-8b", {}),
        ("resnet50", {}),
    ],
)
def test_nothing_is_settled_where_nothing_is_open(name: str, texts: dict[str, str]) -> None:
    assert settled_rows(model_named(name), texts, "B200_180GB") == ({}, [])
