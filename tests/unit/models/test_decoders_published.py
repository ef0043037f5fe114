"""Fields that published files have beside transformers' own are understood."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.configuration import configured
from hespas.models.language import LanguageModel
from hespas.models.parameters import parameters

COMMAND: dict[str, Any] = {
    "model_type": "cohere2",
    "hidden_size": 12288,
    "intermediate_size": 36864,
    "head_dim": 128,
    "num_attention_heads": 96,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "vocab_size": 256000,
    "layer_switch": 4,
    "sliding_window": 4096,
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": True,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "scoring_func": "softmax",
    "vocab_size": 102400,
}
"""Of CohereLabs/c4ai-command-a-03-2025 and deepseek-ai/deepseek-moe-16b-base."""


def read(fields: dict[str, Any]) -> LanguageModel:
    model = configured(fields, location="config.json", name="small").model
    assert isinstance(model, LanguageModel)
    return model


def test_command_is_read_as_it_is_published() -> None:
    model = read(COMMAND)
    assert parameters(model) == 111_057_580_032
    assert [kind.window for kind in model.kinds[:4]] == [4096, 4096, 4096, 0]
    with pytest.raises(ConfigError, match="use_parallel_block"):
        read({**COMMAND, "use_parallel_block": "never"})


def test_deepseek_of_one_head_for_each_key_is_the_published_model() -> None:
    assert parameters(read(DEEPSEEK)) == 16_375_728_128
