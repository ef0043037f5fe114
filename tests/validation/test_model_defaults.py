"""Families that are read have as many weights as transformers gives them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import model_defaults
from hespas.errors import ConfigError
from hespas.models.configuration import configured
from hespas.models.language import LanguageModel
from hespas.models.parameters import parameters

DEFAULTS: dict[str, dict[str, Any]] = json.loads(model_defaults.RESULTS.read_text())


def read(family: str, **changed: object) -> LanguageModel:
    fields = DEFAULTS[family]["config"] | changed
    found = configured(fields, location=family, name=family).model
    assert isinstance(found, LanguageModel)
    return found


def test_every_family_is_recorded() -> None:
    assert list(DEFAULTS) == list(model_defaults.FAMILIES)


@pytest.mark.parametrize("family", DEFAULTS)
def test_weights_are_as_many_as_in_transformers(family: str) -> None:
    recorded = DEFAULTS[family]
    assert parameters(read(family)) == recorded["parameters"] + recorded["correction_biases"]


def test_no_token_stands_behind_the_last_position_that_is_learned() -> None:
    model = read("gpt2")
    assert model.context <= 1024
    model.check()
    longer = replace(model, run=replace(model.run, sequence=2048))
    with pytest.raises(ConfigError, match="2048 tokens, and 1024 positions are learned"):
        longer.check()
    assert parameters(longer) == parameters(model)


def test_layers_beside_each_other_share_norms_or_not() -> None:
    falcon, neox = read("falcon"), read("gpt_neox")
    assert falcon.style.before_mlp == "same_norm"
    assert read("falcon", new_decoder_architecture=True).style.before_mlp == "own_norm"
    assert neox.style.before_mlp == "own_norm"
    behind = read("gpt_neox", use_parallel_residual=False)
    assert behind.style.before_mlp == "yes"
    assert parameters(behind) == parameters(neox)


@pytest.mark.parametrize(
    ("family", "changed", "said"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm = true"),
        ("internlm3", {"bias": True, "qkv_bias": False}, "bias is true and qkv_bias is not"),
        ("exaone_moe", {"mlp_layer_types": ["dense"]}, "mlp_layer_types has 1 layers"),
        ("falcon", {"activation": "xielu"}, "the activation 'xielu' is not known"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(
    family: str, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(family, **changed)
