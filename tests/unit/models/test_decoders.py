"""Families that name their fields otherwise are the published models."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.configuration import configured
from hespas.models.language import LanguageModel
from hespas.models.parameters import active_parameters, parameters

PLAIN = {"num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32064}
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "phi-2": (
        2_779_683_840,
        {
            **PLAIN,
            "model_type": "phi",
            "hidden_act": "gelu_new",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_key_value_heads": 32,
            "vocab_size": 51200,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "layer_norm_eps": 1e-5,
        },
    ),
    "Phi-3.5-MoE": (
        41_873_153_344,
        {
            **PLAIN,
            "model_type": "phimoe",
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 6400,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "gpt-j-6b": (
        6_050_882_784,
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_layer": 28,
            "n_inner": None,
            "n_positions": 2048,
            "rotary": True,
            "rotary_dim": 64,
            "vocab_size": 50400,
            "activation_function": "gelu_new",
            "tie_word_embeddings": False,
        },
    ),
    "bloom": (
        176_247_271_424,
        {
            "model_type": "bloom",
            "n_embed": 14336,
            "n_layer": 70,
            "num_attention_heads": 112,
            "vocab_size": 250880,
            "offset_alibi": 100,
            "skip_bias_add": True,
        },
    ),
    "OLMo-7B": (
        6_888_095_744,
        {
            **PLAIN,
            "model_type": "olmo",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "clip_qkv": None,
            "hidden_act": "silu",
            "vocab_size": 50304,
        },
    ),
    "chatglm3-6b": (
        6_243_584_000,
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "ffn_hidden_size": 13696,
            "kv_channels": 128,
            "num_attention_heads": 32,
            "num_layers": 28,
            "rmsnorm": True,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "add_qkv_bias": True,
            "padded_vocab_size": 65024,
            "seq_length": 8192,
            "layernorm_epsilon": 1e-5,
        },
    ),
    "dbrx": (
        131_596_523_520,
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "max_seq_len": 32768,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
    "internlm2_5-7b": (
        7_737_708_544,
        {
            **PLAIN,
            "model_type": "internlm2",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "bias": False,
            "num_key_value_heads": 8,
            "vocab_size": 92544,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
    ),
    "Mamba-Codestral-7B": (
        7_285_403_648,
        {
            "model_type": "mamba2",
            "hidden_size": 4096,
            "num_heads": 128,
            "head_dim": 64,
            "num_hidden_layers": 64,
            "n_groups": 8,
            "state_size": 128,
            "vocab_size": 32768,
            "use_bias": False,
            "rms_norm": True,
            "conv_kernel": 4,
            "chunk_size": 256,
        },
    ),
}
"""Sizes and counts of the weights: the models' files at Hugging Face."""
HUNYUAN: dict[str, Any] = {
    **PLAIN,
    "model_type": "hunyuan_v1_moe",
    "hidden_size": 4096,
    "intermediate_size": 3072,
    "num_key_value_heads": 8,
    "vocab_size": 128167,
    "num_experts": 64,
    "use_cla": False,
    "moe_topk": [8] * 32,
    "moe_intermediate_size": [3072] * 32,
    "num_shared_expert": [1] * 32,
    "n_group": False,
    "attention_head_dim": 128,
    "tie_word_embeddings": True,
}


def read(fields: dict[str, Any]) -> LanguageModel:
    model = configured(fields, location="config.json", name="small").model
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize(("count", "fields"), PUBLISHED.values(), ids=PUBLISHED)
def test_parameters_are_those_published(count: int, fields: dict[str, Any]) -> None:
    assert parameters(read(fields)) == count


def test_sizes_of_all_layers_may_be_lists_of_equal_numbers() -> None:
    model = read(HUNYUAN)
    assert parameters(model) == 80_393_183_232
    assert round(active_parameters(model) / 1e9) == 13
    with pytest.raises(ConfigError, match="moe_topk differs"):
        read({**HUNYUAN, "moe_topk": [8] * 31 + [4]})


def test_baichuan_without_a_length_has_slopes_of_scores() -> None:
    fields = {**PLAIN, "model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008}
    assert read({**fields, "model_max_length": 4096}).style.alibi
    assert not read({**fields, "max_position_embeddings": 4096}).style.alibi
