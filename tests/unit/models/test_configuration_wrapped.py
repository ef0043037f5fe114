"""The language model inside of configurations that also take in images or sound."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.models.configuration import LEFT_OUT, Configuration, configured
from hespas.models.language import LanguageModel
from hespas.models.parameters import parameters

QWEN: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
}
VISION = {"vision_config": {"hidden_size": 1152, "depth": 27}}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
"""As google/gemma-3-4b-it has it: what is as in transformers' class is not there."""


def read(fields: dict[str, Any]) -> Configuration:
    return configured(fields, location="config.json", name="small")


def size(found: Configuration) -> int:
    assert isinstance(found.model, LanguageModel)
    return parameters(found.model)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "qwen3_vl", "text_config": {**QWEN, "model_type": "qwen3_vl_text"}},
        {"model_type": "internvl_chat", "llm_config": QWEN},
        {"model_type": "deepseek_vl", "language_config": QWEN},
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {"model_type": "thinker", "text_config": QWEN, **VISION},
            "talker_config": {"hidden_size": 896},
        },
    ],
)
def test_the_language_model_is_read_and_what_is_left_out_is_said(fields: dict[str, Any]) -> None:
    found = read({**fields, **VISION})
    assert found.model == read(QWEN).model
    assert found.notes == (LEFT_OUT,)


def test_parts_beside_a_language_model_are_said_where_it_is_not_apart() -> None:
    fields = {**QWEN, "model_type": "qwen2_5_vl", **VISION}
    rope = {"type": "mrope", "mrope_section": [16, 24, 24]}
    assert read({**fields, "rope_scaling": rope}).notes == (LEFT_OUT,)


def test_what_a_part_does_not_have_is_as_in_the_class_and_said() -> None:
    found = read({"model_type": "gemma3", "text_config": GEMMA})
    assert size(found) == 3_880_263_168
    assert "num_attention_heads = 8" in found.notes[1]
    assert "vocab_size = 262208" in found.notes[1]
    assert isinstance(found.model, LanguageModel)
    assert found.model.sizes_of_layers.rope_theta == 1_000_000
    assert {kind.rope_theta for kind in found.model.kinds} == {0, 10_000}


def test_null_is_not_the_default_of_a_class() -> None:
    fields = {**QWEN, "model_type": "mistral", "sliding_window": None}
    found = read({"model_type": "llava", "text_config": fields})
    assert isinstance(found.model, LanguageModel)
    assert not found.model.is_windowed
    del fields["sliding_window"]
    windowed = read({"model_type": "llava", "text_config": fields}).model
    assert isinstance(windowed, LanguageModel)
    assert windowed.is_windowed


def test_a_whole_file_has_no_defaults() -> None:
    with pytest.raises(Exception, match="num_attention_heads is missing"):
        read(GEMMA)


def test_the_wrapping_class_says_what_is_tied_and_quantised() -> None:
    apart = size(read({"model_type": "qwen3_vl", "text_config": QWEN}))
    outer = {"model_type": "qwen3_vl", "text_config": QWEN, "tie_word_embeddings": True}
    assert size(read(outer)) == apart - 151936 * 4096
    other = {"model_type": "internvl_chat", "llm_config": QWEN, "tie_word_embeddings": True}
    assert size(read(other)) == apart
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for fields in (
        {"model_type": "qwen3_vl", "text_config": QWEN, "quantization_config": blocks},
        {"model_type": "qwen3_vl", "text_config": {**QWEN, "quantization_config": blocks}},
    ):
        assert read(fields).precision.dense == "f8"
