"""Families of decoders: the reader of each ``model_type``.

A family is Llama's layers but for some facts; those that its file doesn't say are here. Source: the
configuration and modelling files of transformers 5.24; of baichuan, internlm2 and minicpm the files
that come with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hespas.models import decoder_experts as experts
from hespas.models import decoder_layers as layers
from hespas.models import decoder_readers as readers
from hespas.models.architecture import Sizes
from hespas.models.decoder_parts import (
    ALL_BIASES,
    TIED,
    Reader,
    activation,
    all_biases_if,
    biases_if,
    family,
    flag,
    number,
    rope_of,
    size,
    sized,
    sizes_of,
)
from hespas.models.fields import Fields

# Sizes by other names.


def _ungrouped(fields: Fields, **changed: int) -> Sizes:
    """Return sizes with a key head for each query head."""
    sizes = sizes_of(fields, **changed)
    return replace(sizes, kv_heads=sizes.heads)


def _bloom_sizes(fields: Fields) -> Sizes:
    sizes = _ungrouped(fields, rope_theta=0)
    return replace(sizes, mlp=4 * sizes.embedding)


def _gpt2_sizes(fields: Fields) -> Sizes:
    sizes = _ungrouped(fields, rope_theta=0)
    return replace(sizes, kv_heads=1) if fields.flag("multi_query") else sizes


def _opt_sizes(fields: Fields) -> Sizes:
    sizes = sizes_of(fields, rope_theta=0, mlp=fields.size("ffn_dim"))
    fields.one_of("word_embed_proj_dim", (sizes.embedding,))
    return sizes


def _hybrid_sizes(fields: Fields) -> Sizes:
    """Return the sizes, with the shared width without experts."""
    sizes = sizes_of(fields)
    shared = fields.size("shared_intermediate_size", default=0, least=0)
    return sizes if fields.given("num_local_experts") else replace(sizes, mlp=shared)


# Facts of styles.


def _biases_of(of_inputs: str, of_outputs: str) -> Callable[[Fields], str]:
    """Return a reader of which attention products have biases.

    It raises `ConfigError` for biases of outputs alone.
    """

    def read(fields: Fields) -> str:
        inputs, outputs = fields.flag(of_inputs), fields.flag(of_outputs)
        fields.refuse(
            outputs and not inputs,
            f"{of_outputs} is true and {of_inputs} is not, which is not known",
        )
        return "all" if outputs else "inputs" if inputs else "none"

    return read


def _rotary_size(fields: Fields) -> int:
    return fields.size("rotary_dim", default=sizes_of(fields).head_size)


def _neox_rotary(fields: Fields) -> int:
    # Versions before 5 of transformers name the share of a head that turns otherwise.
    share, older = rope_of(fields).share, fields.number("rotary_pct", default=1.0)
    return int(sizes_of(fields).head_size * (share if share != 1 else older))


def _neox_mlp_input(fields: Fields) -> str:
    return "own_norm" if fields.flag("use_parallel_residual", default=True) else "yes"


def _opt_positions(fields: Fields) -> int:
    # Two stand before the first token's.
    return fields.size("max_position_embeddings", default=2048) + 2


def _baichuan_slopes(fields: Fields) -> bool:
    # Models of 13 B have slopes of scores, and only a ``model_max_length``.
    return fields.given("max_position_embeddings") is None


def _chatglm_rotary(fields: Fields) -> int:
    return fields.size("kv_channels") // 2


def _bailing_biases(fields: Fields) -> str:
    inputs = "inputs" if fields.flag("use_qkv_bias") else "none"
    return "all" if fields.flag("use_bias") else inputs


def _granite_logits(fields: Fields) -> float:
    return 1 / fields.positive("logits_scaling", default=1.0)


def _minicpm_residual(fields: Fields) -> float:
    return fields.number("scale_depth", default=1.0) / sizes_of(fields).layers ** 0.5


def _minicpm_logits(fields: Fields) -> float:
    embedding = sizes_of(fields).embedding
    return fields.size("dim_model_base", default=embedding) / embedding


_Facts = Mapping[str, Any]
_INPUT_BIASES: _Facts = {"attention_biases": biases_if("attention_bias", "inputs")}
_NORMS_BEHIND: _Facts = {"norms_before": False, "norms_after": True}
_QWEN2: _Facts = {"attention_biases": "inputs"}
_QWEN3: _Facts = {"norms_of_heads": True}
_QWEN_DELTA: _Facts = {
    **_QWEN3,
    "delta": experts.qwen_delta,
    "output_gate": True,
}
_GRANITE: _Facts = {
    "embedding_scale": number("embedding_multiplier"),
    "residual_scale": number("residual_multiplier"),
    "query_scale": number("attention_multiplier", default=0.0),
    "logit_scale": _granite_logits,
}
_MINICPM: _Facts = {
    "residual_scale": _minicpm_residual,
    "embedding_scale": number("scale_emb"),
    "logit_scale": _minicpm_logits,
    "tied": TIED,
}

_qwen2 = family(layers=layers.qwen_layers, **_QWEN2)
_qwen3 = family(layers=layers.qwen_layers, **_QWEN3)
_qwen2_moe = family(
    layers=partial(layers.qwen_sparse, layers=layers.qwen_layers),
    experts=experts.QWEN_EXPERTS,
    **_QWEN2,
)
_qwen3_moe = family(
    layers=partial(layers.qwen_sparse, layers=layers.qwen_layers),
    experts=experts.QWEN_EXPERTS,
    **_QWEN3,
)
_qwen_delta = family(layers=layers.qwen_delta_layers, **_QWEN_DELTA)
_qwen_delta_moe = family(
    layers=partial(layers.qwen_sparse, layers=layers.qwen_delta_layers),
    experts=experts.QWEN_EXPERTS,
    **_QWEN_DELTA,
)
_glm4 = family(norms_after=True, **_INPUT_BIASES)
_glm4_moe = family(
    layers=layers.behind_dense,
    experts=experts.deepseek_experts(),
    norms_of_heads=flag("use_qk_norm"),
    **_INPUT_BIASES,
)
_cohere = family(
    layers=layers.unrotated_where_full,
    norm="layer",
    norm_biases=False,
    before_mlp="same_norm",
    tied=flag("tie_word_embeddings", "use_embedding_sharing", default=True),
    logit_scale=number("logit_scale"),
)
_granite_moe = family(layers=layers.ROUTED, experts=experts.GRANITE_EXPERTS, **_GRANITE)
_gpt2 = family(
    sizes=_gpt2_sizes,
    layers=layers.alike,
    norm="layer",
    activation=activation("activation_function", default="gelu_new"),
    gated=False,
    tied=True,
    learned_positions=size("n_positions", default=1024),
    **ALL_BIASES,
)
_gptj = family(
    sizes=_ungrouped,
    layers=layers.alike,
    norm="layer",
    before_mlp="same_norm",
    activation=activation("activation_function", default="gelu_new"),
    gated=False,
    mlp_biases=True,
    head_biases=True,
    rotary_size=_rotary_size,
)
_bailing = family(
    layers=layers.behind_dense,
    experts=experts.bailing_experts,
    norms_of_heads=flag("use_qk_norm"),
    attention_biases=_bailing_biases,
    mlp_biases=flag("use_bias"),
)

DECODERS: dict[str, Reader] = {
    "llama": family(layers=layers.alike),
    "ministral": family(),
    "mistral": family(),
    "mistral4": readers.latent_family("softmax"),
    "mixtral": family(layers=layers.routed(layers.windowed), experts=experts.experts()),
    "qwen2": _qwen2,
    "mimo": _qwen2,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_omni": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_vl": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe": _qwen3_moe,
    "qwen3_omni_moe": _qwen3_moe,
    "qwen3_next": _qwen_delta_moe,
    "qwen3_5": _qwen_delta,
    "qwen3_5_moe": _qwen_delta_moe,
    "deepseek": family(
        layers=layers.behind_dense,
        experts=experts.deepseek_experts("softmax"),
    ),
    "deepseek_v2": readers.latent_family("softmax"),
    "deepseek_v3": readers.latent_family("sigmoid"),
    "deepseek_v32": readers.latent_family("sigmoid", indexed=True),
    "glm4_moe_lite": readers.latent_family("sigmoid"),
    "glm_moe_dsa": readers.latent_family("sigmoid", indexed=True),
    "kimi_k2": readers.latent_family("sigmoid"),
    "glm4_moe": _glm4_moe,
    "glm4v_moe": _glm4_moe,
    "minimax_m2": family(
        layers=layers.minimax_layers,
        experts=experts.MINIMAX_EXPERTS,
        norms_of_rows=flag("use_qk_norm", default=True),
        rotary_size=_rotary_size,
    ),
    "gpt_oss": family(
        layers=layers.routed(partial(layers.windowed, every=2)),
        experts=experts.GPT_OSS_EXPERTS,
        activation="clipped_silu",
        attention_biases="all",
        sinks=True,
    ),
    "gemma2": readers.gemma2,
    "gemma3": readers.gemma3,
    "gemma4": readers.gemma4,
    "phi3": family(),
    "phi3_v": family(),
    "phi4mm": family(),
    "granite": family(layers=layers.alike, **_GRANITE),
    "granitemoehybrid": family(
        sizes=_hybrid_sizes,
        layers=layers.granite_layers,
        experts=experts.where_given(("num_local_experts",), experts.GRANITE_EXPERTS),
        state_space=experts.mamba_of,
        **_GRANITE,
    ),
    "nemotron_h": readers.nemotron_h,
    "llama4": readers.llama4,
    "mpt": readers.mpt,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "dots1": family(
        layers=layers.behind_dense,
        experts=experts.deepseek_experts(),
        norms_of_heads=flag("use_qk_norm", default=True),
        **_INPUT_BIASES,
    ),
    "youtu": readers.latent_family("softmax"),
    "sarvam_mla": readers.latent_family("sigmoid"),
    "arcee": family(gated=False),
    "cohere": _cohere,
    "cohere2": _cohere,
    "cwm": family(),
    "ernie4_5": family(tied=TIED, **all_biases_if("use_bias")),
    "ernie4_5_moe": family(
        layers=layers.ernie_layers,
        experts=experts.ERNIE_EXPERTS,
        tied=TIED,
        **all_biases_if("use_bias"),
    ),
    "exaone": family(),
    "exaone4": family(layers=layers.unrotated_where_full, norms_of_heads=True, **_NORMS_BEHIND),
    "exaone_moe": family(
        layers=partial(layers.behind_dense, layers=layers.unrotated_where_full),
        experts=experts.deepseek_experts(),
        norms_of_heads=True,
    ),
    "falcon": readers.falcon,
    "flex_olmo": family(
        layers=layers.ROUTED, experts=experts.OLMO_EXPERTS, norms_of_rows=True, **_NORMS_BEHIND
    ),
    "gemma": family(activation="gelu", tied=TIED, embedding_scale=readers.embedding_root),
    "glm": family(**_INPUT_BIASES),
    "glm4": _glm4,
    "glm4v": _glm4,
    "gpt_neox": family(
        norm="layer",
        before_mlp=_neox_mlp_input,
        gated=False,
        attention_biases=biases_if("attention_bias", default=True),
        mlp_biases=True,
        rotary_size=_neox_rotary,
    ),
    "granitemoe": _granite_moe,
    "granitemoeshared": _granite_moe,
    "helium": family(),
    "hy_v3": family(
        layers=layers.behind_dense,
        experts=experts.deepseek_experts(
            scale=number("router_scaling_factor", "routed_scaling_factor")
        ),
        norms_of_heads=True,
    ),
    "internlm3": family(attention_biases=_biases_of("qkv_bias", "bias"), mlp_biases=flag("bias")),
    "jais2": family(norm="layer", gated=False),
    "ministral3": family(),
    "nemotron": family(norm="layer", gated=False),
    "olmo2": family(norms_of_rows=True, **_NORMS_BEHIND),
    "olmo3": family(layers=partial(layers.windowed, every=4), norms_of_rows=True, **_NORMS_BEHIND),
    "olmoe": family(layers=layers.ROUTED, experts=experts.OLMO_EXPERTS, norms_of_rows=True),
    "opt": family(
        sizes=_opt_sizes,
        layers=layers.alike,
        norm="layer",
        activation=activation("activation_function", default="relu"),
        gated=False,
        tied=TIED,
        learned_positions=_opt_positions,
        **all_biases_if("enable_bias", default=True),
    ),
    "seed_oss": family(attention_biases=_biases_of("attention_bias", "attention_out_bias")),
    "smollm3": family(layers=layers.smollm_layers, tied=TIED),
    "solar_open": family(
        # No layer is dense: experts' width stands for that of dense ones.
        sizes=sized(mlp=size("moe_intermediate_size")),
        layers=layers.ROUTED,
        experts=experts.deepseek_experts(),
    ),
    "stablelm": family(norm="layer", attention_biases=biases_if("use_qkv_bias", "inputs")),
    "starcoder2": family(
        norm="layer",
        epsilon=number("norm_epsilon", default=1e-5),
        gated=False,
        tied=TIED,
        **all_biases_if("use_bias", default=True),
    ),
    "baichuan": family(layers=layers.alike, alibi=_baichuan_slopes),
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "bamba": family(layers=layers.bamba_layers, state_space=experts.mamba_of),
    "bloom": family(
        sizes=_bloom_sizes,
        layers=layers.alike,
        norm="layer",
        activation="gelu",
        gated=False,
        alibi=True,
        norms_embedding=True,
        tied=TIED,
        **ALL_BIASES,
    ),
    "chatglm": family(
        sizes=readers.chatglm_sizes,
        layers=layers.alike,
        attention_biases=biases_if("add_qkv_bias", "inputs"),
        rotary_size=_chatglm_rotary,
    ),
    "codegen": _gptj,
    "dbrx": readers.dbrx,
    "gptj": _gptj,
    "hunyuan_v1_dense": readers.hunyuan,
    "hunyuan_v1_moe": readers.hunyuan,
    "internlm2": family(layers=layers.alike, attention_biases=biases_if("bias", default=True)),
    "mamba2": readers.mamba2,
    "minicpm": family(layers=layers.alike, **_MINICPM),
    "minicpm3": family(
        sizes=readers.latent_sizes,
        layers=layers.alike,
        latent=experts.latent_of,
        rotary_size=0,
        **_MINICPM,
    ),
    "olmo": family(
        layers=layers.alike, norm="layer", norm_weights=False, clip=number("clip_qkv", default=0.0)
    ),
    "phi": family(
        layers=layers.alike,
        norm="layer",
        before_mlp="same_norm",
        gated=False,
        head_biases=True,
        **ALL_BIASES,
    ),
    "phimoe": family(
        layers=layers.routed(layers.windowed),
        experts=experts.experts(),
        norm="layer",
        head_biases=flag("lm_head_bias"),
    ),
}
"""The reader of each ``model_type``."""
