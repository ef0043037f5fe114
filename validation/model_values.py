"""Compare the values of small models with those of transformers and diffusers.

    python validation/model_values.py [NAME ...]

Each case of `CASES` takes a published configuration with all its features and makes it narrow and
two blocks deep, or as many as its kinds of blocks need. In the interpreter of
requirements/models.txt it is built on the CPU in float32, with weights drawn at random
(`model_weights.draw`), and run. The same weights and tokens then pass through hespas' own program
of that configuration. validation/measurements/model_values.json has each case's configuration, the
names and shapes of its tensors, the logits of the last token of a sequence, and the largest
difference of any logit; tests repeat the comparison from that. What a program computes otherwise
on purpose, at the same cost, is taken out of both, and named.
"""

# PyTorch's and transformers' types are not installed where types are checked.
# pyright: basic
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from hespas.models.network_readers import NETWORKS
from model_judge import ROOT, build, configuration
from model_weights import Array, draw, logits
from network_weights import outputs

RESULTS = ROOT / "validation" / "measurements" / "model_values.json"
TOKENS, VOCABULARY = 24, 160
NARROW: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}
HEADS: dict[str, Any] = {**NARROW, "head_dim": 16}
LLAMA3_ROPE: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}
"""Of a context so short that the frequencies of few tokens change."""
YARN: dict[str, Any] = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
MLA: dict[str, Any] = {
    **NARROW,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 64,
}
V3_ROPE: dict[str, Any] = {**YARN, "type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0}
QWEN_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
WINDOW = {"sliding_window": 8}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}
MAMBA: dict[str, Any] = {
    **HEADS,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
}
GRANITE: dict[str, Any] = {
    **NARROW,
    "shared_intermediate_size": 48,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_chunk_size": 8,
    "layer_types": ["mamba", "attention"],
}
GEMMA4: dict[str, Any] = {**HEADS, **WINDOW, **ALTERNATING, "global_head_dim": 32}
SIGHT_LAYERS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SIGHT: dict[str, Any] = {
    **SIGHT_LAYERS,
    "image_size": 32,
    "patch_size": 8,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("meta-llama/Llama-2-7b-hf", NARROW),
    "llama3.1": ("meta-llama/Llama-3.1-8B", {**NARROW, "rope_scaling": LLAMA3_ROPE}),
    "llama3.2": ("meta-llama/Llama-3.2-1B", {**HEADS, "rope_scaling": LLAMA3_ROPE}),
    "llama4-scout": (
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        {
            **HEADS,
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 80,
            "num_local_experts": 8,
            "attention_chunk_size": 8,
            "floor_scale": 4,
            "rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 2.0},
        },
    ),
    "llama4-maverick": (
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        {
            **HEADS,
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 80,
            "num_local_experts": 8,
            "attention_chunk_size": 8,
            "floor_scale": 4,
        },
    ),
    "qwen2.5": ("Qwen/Qwen2.5-7B", NARROW),
    "qwen3": ("Qwen/Qwen3-8B", HEADS),
    "qwen3-moe": ("Qwen/Qwen3-30B-A3B", {**HEADS, **QWEN_EXPERTS}),
    "qwen3-next": (
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        {
            **HEADS,
            **QWEN_EXPERTS,
            "full_attention_interval": 2,
            "shared_expert_intermediate_size": 40,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "mistral": ("mistralai/Mistral-7B-v0.1", {**NARROW, **WINDOW}),
    "mistral-small": ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", HEADS),
    "mixtral": ("mistralai/Mixtral-8x7B-v0.1", {**NARROW, "num_local_experts": 4}),
    "deepseek-v2": (
        "deepseek-ai/DeepSeek-V2",
        {**MLA, "rope_scaling": {**YARN, "type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek-v2-lite": (
        "deepseek-ai/DeepSeek-V2-Lite",
        {
            **MLA,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "rope_scaling": {**YARN, "type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", {**MLA, "rope_scaling": V3_ROPE}),
    "deepseek-v3.2": (
        "deepseek-ai/DeepSeek-V3.2",
        {
            **MLA,
            "rope_scaling": V3_ROPE,
            "index_topk": 8,
            "index_n_heads": 4,
            "index_head_dim": 16,
        },
    ),
    "kimi-k2": (
        "moonshotai/Kimi-K2-Instruct",
        {
            **MLA,
            "n_group": 1,
            "topk_group": 1,
            "rope_scaling": {**V3_ROPE, "beta_fast": 1.0},
        },
    ),
    "gpt-oss": (
        "openai/gpt-oss-20b",
        {
            **HEADS,
            **WINDOW,
            **ALTERNATING,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "experts_per_token": 3,
            "rope_scaling": {**YARN, "rope_type": "yarn", "truncate": False},
        },
    ),
    "gemma2": ("google/gemma-2-9b", {**HEADS, **WINDOW}),
    "gemma3": ("google/gemma-3-27b-it", {**HEADS, **WINDOW, "sliding_window_pattern": 2}),
    "gemma3-1b": ("google/gemma-3-1b-it", {**HEADS, **WINDOW, "sliding_window_pattern": 2}),
    "gemma4-moe": (
        "google/gemma-4-26B-A4B",
        {
            **GEMMA4,
            "num_global_key_value_heads": 1,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "gemma4-dense": ("google/gemma-4-31B", {**GEMMA4, "num_global_key_value_heads": 1}),
    "gemma4-per-layer": (
        "google/gemma-4-E2B",
        {
            **GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": ALTERNATING["layer_types"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCABULARY,
        },
    ),
    "phi4": ("microsoft/phi-4", NARROW),
    "glm4.5": (
        "zai-org/GLM-4.5",
        {
            **HEADS,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
        },
    ),
    "minimax-m2": (
        "MiniMaxAI/MiniMax-M2",
        {**HEADS, "rotary_dim": 8, "num_local_experts": 8, "num_experts_per_tok": 3},
    ),
    "nemotron-h": (
        "nvidia/Nemotron-H-56B-Base-8K",
        {
            **MAMBA,
            "num_hidden_layers": 4,
            "hybrid_override_pattern": "M-*-",
            "attention_head_dim": 16,
        },
    ),
    "nemotron-nano": (
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        {**MAMBA, "num_hidden_layers": 4, "hybrid_override_pattern": "ME*E"},
    ),
    "nemotron-super": (
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        {
            **MAMBA,
            "num_hidden_layers": 4,
            "hybrid_override_pattern": "ME*E",
            "moe_latent_size": 20,
            "num_nextn_predict_layers": 0,
        },
    ),
    "olmo2": ("allenai/OLMo-2-0325-32B", NARROW),
    "granite4": (
        "ibm-granite/granite-4.0-h-tiny",
        {**GRANITE, "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24},
    ),
    "granite4-dense": ("ibm-granite/granite-4.0-h-micro", GRANITE),
    "mpt": (
        "mosaicml/mpt-7b",
        {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": VOCABULARY, "max_seq_len": 64},
    ),
    "t5": (
        "google-t5/t5-base",
        {
            "d_model": 64,
            "d_kv": 12,
            "d_ff": 96,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
        },
    ),
    "bert": (
        "google-bert/bert-large-uncased",
        {**SIGHT_LAYERS, "vocab_size": VOCABULARY, "max_position_embeddings": 64},
    ),
    "vit": ("google/vit-large-patch16-224", {**SIGHT, "num_labels": 10}),
    "t5-gated": (
        "google/t5-v1_1-xxl",
        {
            "d_model": 64,
            "d_kv": 12,
            "d_ff": 96,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": True,
        },
    ),
    "siglip": (
        "google/siglip-base-patch16-224",
        {
            "text_config": {
                **SIGHT_LAYERS,
                "model_type": "siglip_text_model",
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
                "max_position_embeddings": 16,
                "vocab_size": VOCABULARY,
            },
            "vision_config": {
                **SIGHT,
                "model_type": "siglip_vision_model",
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
                "num_channels": 3,
            },
        },
    ),
    "whisper": (
        "openai/whisper-large-v3",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 96,
            "vocab_size": VOCABULARY,
            "num_mel_bins": 16,
            "max_source_positions": 40,
            "max_target_positions": 32,
        },
    ),
    "resnet": (
        "microsoft/resnet-50",
        {"hidden_sizes": [256, 512, 1024], "depths": [2, 1, 1], "num_labels": 10},
    ),
    "resnet-basic": (
        "microsoft/resnet-18",
        {"hidden_sizes": [64, 128, 256], "depths": [2, 1, 1], "num_labels": 10},
    ),
    "flux": (
        "black-forest-labs/FLUX.1-dev",
        {
            "in_channels": 16,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 24,
            "axes_dims_rope": [4, 6, 6],
        },
    ),
    "unet": (
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
        {
            "block_out_channels": [16, 32],
            "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
            "norm_num_groups": 8,
            "attention_head_dim": 4,
            "cross_attention_dim": 24,
            "sample_size": 8,
        },
    ),
    "unet-xl": (
        "stabilityai/stable-diffusion-xl-base-1.0",
        {
            "block_out_channels": [16, 32],
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
            "transformer_layers_per_block": [1, 2],
            "norm_num_groups": 8,
            "attention_head_dim": [2, 4],
            "cross_attention_dim": 24,
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 72,
            "sample_size": 8,
        },
    ),
    "dit": (
        "facebook/DiT-XL-2-256",
        {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8},
    ),
}

EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "mlp_layer_types": ["dense", "sparse"],
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
OLMO_EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False}
HALF_WINDOWED: dict[str, Any] = {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
SCALED: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 8.0,
}
KINDRED: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("Arcee", {"hidden_act": "relu2"}),
    "bamba": (
        "Bamba",
        {
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_chunk_size": 8,
            "attn_layer_indices": [1],
            "partial_rotary_factor": 0.5,
        },
    ),
    "bloom": (
        "Bloom",
        {"n_layer": 2, "n_head": 4, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    ),
    "cohere": ("Cohere", {"logit_scale": 0.0625}),
    "cohere2": ("Cohere2", {**HALF_WINDOWED, "head_dim": 16, "logit_scale": 0.25}),
    "dots1": ("Dots1", {**EXPERTS, "head_dim": 16, "first_k_dense_replace": 1}),
    "ernie4_5": ("Ernie4_5", {"use_bias": False, "head_dim": 16}),
    "exaone4": ("Exaone4", {**HALF_WINDOWED, "head_dim": 16}),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "glm": ("Glm", {"head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5}),
    "glm4_moe_lite": ("Glm4MoeLite", {**MLA, **EXPERTS}),
    "gptj": (
        "GPTJ",
        {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "rotary_dim": 8,
            "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new",
            "n_inner": 96,
        },
    ),
    "granitemoe": ("GraniteMoe", {**SCALED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "helium": ("Helium", {"head_dim": 16}),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {"head_dim": 16}),
    "hy_v3": (
        "HYV3",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1,
            "moe_intermediate_size": 24,
            "mlp_layer_types": ["dense", "sparse"],
            "router_scaling_factor": 2.5,
        },
    ),
    "mamba2": (
        "Mamba2",
        {
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 2,
            "chunk_size": 8,
            "expand": 2,
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("num_attention_heads", "num_key_value_heads")),
        },
    ),
    "minicpm3": (
        "MiniCPM3",
        {
            **{key: MLA[key] for key in MLA if "rank" in key or "head_dim" in key},
            "num_key_value_heads": 4,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 16,
        },
    ),
    "olmo": ("Olmo", {"clip_qkv": 0.5}),
    "olmo3": (
        "Olmo3",
        {
            **HALF_WINDOWED,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 10000.0}
                for kind in HALF_WINDOWED["layer_types"]
            },
        },
    ),
    "olmoe": ("Olmoe", OLMO_EXPERTS),
    "phi": (
        "Phi",
        {"hidden_act": "gelu_new", "partial_rotary_factor": 0.5, "num_key_value_heads": 4},
    ),
    "qwen3_5": (
        "Qwen3_5",
        {
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "seed_oss": ("SeedOss", {"attention_bias": True, "attention_out_bias": False, "head_dim": 16}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "solar_open": (
        "SolarOpen",
        {**{key: value for key, value in EXPERTS.items() if "types" not in key}, "head_dim": 16},
    ),
}
"""Families like others, by ``model_type``: the class, and what differs from `NARROW` layers."""
TEXT_TYPES = {"qwen3_5": "qwen3_5_text"}


def _kindred(kind: str, name: str, more: dict[str, Any]) -> dict[str, Any]:
    fields = dict(more)
    own = {"model_type": TEXT_TYPES.get(kind, kind), "architectures": [f"{name}ForCausalLM"]}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    share = fields.pop("partial_rotary_factor", None)
    rope |= {} if share is None else {"partial_rotary_factor": share}
    norms = {"rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5}
    every = {"max_position_embeddings": 64, "rope_parameters": rope, **norms}
    return {**NARROW, **every, "tie_word_embeddings": False, **own, **fields}


CASES |= {kind: ("", _kindred(kind, *parts)) for kind, parts in KINDRED.items()}


LEFT_OUT: dict[str, tuple[dict[str, Any], str]] = {
    "deepseek-v2": ({"n_group": 1, "topk_group": 1, "topk_method": "greedy"}, "groups of experts"),
    "deepseek-v3": ({"n_group": 1, "topk_group": 1}, "groups of experts"),
    "deepseek-v3.2": (
        {"n_group": 1, "topk_group": 1, "index_topk": TOKENS},
        "groups of experts; tokens that an index leaves out",
    ),
    "llama4-scout": ({"attn_temperature_tuning": False}, "temperature by position"),
    "llama4-maverick": ({"attn_temperature_tuning": False}, "temperature by position"),
}
"""What hespas' programs don't compute, by case: choices that change which, and not how many."""


def small(name: str) -> dict[str, Any]:
    """Return the configuration of a case: of the language model alone where there are others."""
    published, changes = CASES[name]
    fields = configuration(published) if published else {}
    if "text_config" in fields and fields["model_type"] != "siglip":
        kind = fields["architectures"][0].removesuffix("ForConditionalGeneration")
        kind = {"Mistral3": "Mistral"}.get(kind, kind)
        fields = {**fields["text_config"], "architectures": [f"{kind}ForCausalLM"]}
    fields.pop("quantization_config", None)
    return fields | changes | LEFT_OUT.get(name, ({}, ""))[0]


def inputs(fields: dict[str, Any]) -> dict[str, Array]:  # noqa: C901, PLR0911 - one for each kind
    """Draw what a forward takes, by the library's names."""
    random = np.random.default_rng(0)

    def ids(batch: int = 2) -> Array:
        return random.integers(3, VOCABULARY, (batch, TOKENS))

    def values(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    match fields.get("model_type", fields.get("_class_name")):
        case "t5":
            return {"input_ids": ids(), "decoder_input_ids": ids()}
        case "whisper":
            sound = values(2, fields["num_mel_bins"], 2 * fields["max_source_positions"])
            return {"input_features": sound, "decoder_input_ids": ids()}
        case "vit" | "resnet":
            # Where sides are odd, padding is as much on both.
            side = fields.get("image_size", 33)
            return {"pixel_values": values(2, 3, side, side)}
        case "FluxTransformer2DModel":
            sides = np.stack(np.meshgrid(range(4), range(4), indexing="ij"), -1).reshape(-1, 2)
            return {
                "hidden_states": values(2, 16, fields["in_channels"]),
                "encoder_hidden_states": values(2, 8, fields["joint_attention_dim"]),
                "pooled_projections": values(2, fields["pooled_projection_dim"]),
                "timestep": np.array([0.3, 0.7], np.float32),
                "guidance": np.array([3.5, 3.5], np.float32),
                "img_ids": np.pad(sides, ((0, 0), (1, 0))).astype(np.float32),
                "txt_ids": np.zeros((8, 3), np.float32),
            }
        case "DiTTransformer2DModel":
            side = fields["sample_size"]
            return {
                "hidden_states": values(2, fields["in_channels"], side, side),
                "timestep": np.array([10, 500]),
                "class_labels": np.array([3, 7]),
            }
        case "UNet2DConditionModel":
            side = fields["sample_size"]
            drawn_inputs: dict[str, Any] = {
                "sample": values(2, fields["in_channels"], side, side),
                "timestep": np.array([10, 500]),
                "encoder_hidden_states": values(2, 7, fields["cross_attention_dim"]),
            }
            if "addition_embed_type" in fields:
                added = {"text_embeds": values(2, 24), "time_ids": values(2, 6)}
                drawn_inputs["added_cond_kwargs"] = added
            return drawn_inputs
        case "siglip":
            side, longest = (
                fields["vision_config"]["image_size"],
                fields["text_config"]["max_position_embeddings"],
            )
            return {"pixel_values": values(2, 3, side, side), "input_ids": ids()[:, :longest]}
        case _:
            return {"input_ids": ids()}


def _tensors(given: dict[str, Any]) -> dict[str, Any]:
    """Return arrays as PyTorch's."""
    import torch

    return {
        key: _tensors(value) if isinstance(value, dict) else torch.from_numpy(value)
        for key, value in given.items()
    }


def drawn(model: Any) -> dict[str, Array]:
    """Replace a model's weights, and return them by name, shared ones once."""
    import torch

    weights: dict[str, Array] = {}
    places = set[int]()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and tensor.data_ptr() not in places:
                places.add(tensor.data_ptr())
                weights[name] = draw(name, tuple(tensor.shape))
                tensor.copy_(torch.from_numpy(weights[name]))
    return weights


def _values(output: Any) -> Any:
    """Return what a model makes, by the name that its class gives it."""
    names = ("sample", "logits", "logits_per_text")
    return next(getattr(output, name) for name in names if hasattr(output, name))


def made_of(fields: dict[str, Any], weights: dict[str, Array], given: dict[str, Array]) -> Array:
    """Return what hespas' program of a configuration makes."""
    if fields.get("model_type", fields.get("_class_name")) in NETWORKS:
        return outputs(fields, weights, given)
    return logits(fields, weights, given["input_ids"])


def record(name: str) -> dict[str, Any]:
    """Run a case in its own library and in hespas; return what is recorded of it."""
    import torch

    fields = small(name)
    torch.manual_seed(0)
    model, library = build({**fields, "pad_token_id": None}, "cpu", experts="eager")
    weights = drawn(model.float())
    given = inputs(fields)
    with torch.no_grad():
        output = model(**_tensors(given))
    values = _values(output).numpy()
    if not np.isfinite(values).all():
        raise ValueError(f"{name}: its values are not finite")
    found: dict[str, Any] = {
        "configuration": CASES[name][0],
        "library": library,
        "class": type(model).__name__,
        "left_out": LEFT_OUT.get(name, ({}, ""))[1],
        "config": fields,
        "tensors": {key: list(weight.shape) for key, weight in weights.items()},
        "largest": float(f"{np.abs(values).max():.3g}"),
    }
    last = [round(float(value), 6) for value in values[0].reshape(-1, values.shape[-1])[-1]]
    try:
        own = made_of(fields, weights, given)
    except Exception as problem:  # noqa: BLE001 - what one case is refused for is recorded
        return found | {"refused": str(problem).splitlines()[0].removeprefix("config.json: ")}
    return found | {"logits": last, "difference": float(f"{np.abs(own - values).max():.1e}")}


def main(names: list[str]) -> None:
    """Compare cases, all unless some are named, and record them."""
    records: dict[str, Any] = json.loads(RESULTS.read_text()) if names else {}
    for name in names or CASES:
        records[name] = record(name)
        found = records[name]
        print(name, found.get("difference", found.get("refused")), flush=True)
    lines = (
        f"{json.dumps(name)}: {json.dumps(records[name])}" for name in CASES if name in records
    )
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
