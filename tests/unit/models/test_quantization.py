"""Which parts of a model its configuration says are quantised, and what their weights take."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.configuration import SHIPPED, read_configuration
from hespas.models.fields import Fields
from hespas.models.language import LanguageModel
from hespas.models.parameters import parameters, weight_bytes, weight_bytes_by_part
from hespas.models.quantization import Precision, read_precision

NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    "ignore": ["lm_head", "model.layers.*.self_attn*", "model.layers.*.mlp.gate"],
}
PACKED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
    "ignore": ["re:.*lm_head", r"re:.*mlp\.gate$", "re:.*shared_expert.*"],
}


def read(values: dict[str, Any], *, layers: int = 4) -> tuple[Precision, tuple[str, ...]]:
    return read_precision(Fields(values=values, location="config.json"), layers=layers)


@pytest.mark.parametrize(
    ("name", "size_bytes", "error"),
    [
        # OpenAI's model card of gpt-oss, 2025, table 1: 60.8 and 12.8 GiB.
        ("openai/gpt-oss-120b", 60.8 * 2**30, 0.002),
        ("openai/gpt-oss-20b", 12.8 * 2**30, 0.002),
        # DeepSeek-V3's card: 671 B parameters in FP8, without the heads for further tokens.
        ("deepseek-ai/DeepSeek-V3", 671e9, 0.004),
    ],
)
def test_weights_take_what_checkpoints_take(name: str, size_bytes: float, error: float) -> None:
    configuration = read_configuration(SHIPPED / f"{name}.json")
    model = configuration.model
    assert isinstance(model, LanguageModel)
    counted = weight_bytes(model, configuration.precision)
    assert counted == pytest.approx(size_bytes, rel=error)
    parts = weight_bytes_by_part(model, configuration.precision)
    assert sum(parts.values()) == counted < 2 * parameters(model)


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ({}, Precision()),
        ({"quant_method": "fp8"}, Precision(attention="f8", dense="f8", experts="f8")),
        (NVFP4, Precision(attention="bf16", dense="nvfp4", experts="nvfp4", cache="f8")),
        (PACKED, Precision(attention="f8", dense="bf16", experts="f8")),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            Precision(attention="int4", dense="int4", experts="int4"),
        ),
    ],
)
def test_parts_that_are_left_out_keep_16_bits(values: dict[str, Any], precision: Precision) -> None:
    assert read(values) == (precision, ())


def test_a_part_that_few_layers_leave_out_is_noted() -> None:
    few = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    precision, notes = read({**few, "ignore": None})
    assert precision.attention == "f8"
    assert not notes  # q_proj alone is no whole module of a part
    few["modules_to_not_convert"] = ["model.layers.0.self_attn"]
    precision, (note,) = read(few)
    assert precision.attention == "f8"
    assert note.startswith("attention of 1 layers is published in 16 bits")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"quant_method": "sieve"}, "sieve"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "weight_block_size"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3"),
        ({**PACKED, "config_groups": {}}, "0 groups"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, "no regular expression"),
    ],
)
def test_what_is_not_known_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(values)
    assert said in str(caught.value)
