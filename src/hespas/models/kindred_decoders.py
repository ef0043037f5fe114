"""Readers of families a few facts away from Llama, Qwen, DeepSeek or Granite.

Source: the configuration and modelling files of transformers 5.24, by ``model_type``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from hespas.errors import ConfigError
from hespas.models.architecture import LayerKind, Routing, RoutingStyle, Sizes
from hespas.models.decoder_parts import (
    Description,
    activation_named,
    alike,
    biases_by,
    by_mlp_type,
    described,
    experts_of,
    experts_of_deepseek,
    granite_style,
    rotating_layers,
    sizes_of,
    windowed,
)
from hespas.models.fields import Fields

_Biases = Literal["none", "inputs", "all"]


def _plain(fields: Fields, *, kinds: tuple[LayerKind, ...] = (), **facts: Any) -> Description:
    """Return layers as Llama's but for windows, and facts of their style."""
    kinds = kinds or windowed(fields, sizes_of(fields))
    return described(fields, kinds=kinds, **facts)


def _gemma(fields: Fields) -> Description:
    fields.one_of("use_bidirectional_attention", ())
    return _plain(
        fields,
        activation="gelu",
        tied=fields.flag("tie_word_embeddings", default=True),
        embedding_scale=fields.size("hidden_size") ** 0.5,
    )


def _arcee(fields: Fields) -> Description:
    return _plain(fields, gated=False)


def _ernie(fields: Fields, kinds: tuple[LayerKind, ...] = ()) -> Description:
    tied = fields.flag("tie_word_embeddings", default=True)
    return _plain(fields, kinds=kinds, tied=tied, **biases_by(fields, "use_bias"))


def _ernie_moe(fields: Fields) -> Description:
    layers = fields.layers("num_hidden_layers")
    first = fields.size("moe_layer_start_index", default=1, least=0)
    last = fields.number("moe_layer_end_index", default=-1)
    every = fields.size("moe_layer_interval", default=1)
    end = layers - 1 if last < 0 else int(last)
    kinds = tuple(
        LayerKind(is_routed=(index + 1) % every == 0 and first <= index <= end)
        for index in range(layers)
    )
    fields.known("moe_norm_min", "moe_capacity", "moe_use_aux_free")
    routing = Routing(
        experts=fields.size("moe_num_experts"),
        chosen=fields.size("moe_k"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_experts=fields.size("moe_num_shared_experts", default=0, least=0),
        style=RoutingStyle(corrected=True),
    )
    return replace(_ernie(fields, kinds), routing=routing)


def _exaone4(fields: Fields) -> Description:
    kinds = _unrotated_where_full(fields, sizes_of(fields))
    return _plain(fields, kinds=kinds, norms_before=False, norms_after=True, norms_of_heads=True)


def _unrotated_where_full(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Return the layers; beside windowed ones, those that see all tokens have no positions."""
    # Some say it as letters, and list the types of layers besides.
    every = fields.given("sliding_window_pattern", "layer_switch")
    kinds = windowed(fields, sizes, every=every if isinstance(every, int) else 0)
    has_windows = any(kind.window for kind in kinds)
    return tuple(replace(kind, rotates=bool(kind.window) or not has_windows) for kind in kinds)


def _exaone_moe(fields: Fields) -> Description:
    kinds = by_mlp_type(fields, _unrotated_where_full(fields, sizes_of(fields)))
    return described(fields, kinds=kinds, routing=_sigmoid_experts(fields), norms_of_heads=True)


def _sigmoid_experts(fields: Fields) -> Routing:
    return experts_of_deepseek(fields, "sigmoid", corrected=True, normalised=True)


def _glm(fields: Fields, *, norms_after: bool = False) -> Description:
    biases = "inputs" if fields.flag("attention_bias") else "none"
    return _plain(fields, attention_biases=biases, norms_after=norms_after)


def _solar(fields: Fields) -> Description:
    # No layer is dense: experts' width stands for that of dense ones.
    fields.known("first_k_dense_replace", "intermediate_size")
    width = fields.size("moe_intermediate_size")
    kinds = alike(sizes_of(fields), is_routed=True)
    found = _plain(fields, kinds=kinds)
    return replace(found, sizes=replace(found.sizes, mlp=width), routing=_sigmoid_experts(fields))


def _olmo_moe(fields: Fields, *, norms_before: bool) -> Description:
    fields.one_of("clip_qkv", ())
    sizes = sizes_of(fields)
    routing = Routing(
        experts=fields.size("num_experts", default=64),
        chosen=fields.size("num_experts_per_tok", default=8),
        expert_mlp=sizes.mlp,
        style=RoutingStyle(normalised=fields.flag("norm_topk_prob")),
    )
    return described(
        fields,
        kinds=alike(sizes, is_routed=True),
        routing=routing,
        norms_before=norms_before,
        norms_after=not norms_before,
        norms_of_rows=True,
    )


def _olmo(fields: Fields, *, every: int = 0) -> Description:
    kinds = windowed(fields, sizes_of(fields), every=every)
    return _plain(fields, kinds=kinds, norms_before=False, norms_after=True, norms_of_rows=True)


def _seed(fields: Fields) -> Description:
    return _plain(fields, attention_biases=_biases(fields, "attention_bias", "attention_out_bias"))


def _biases(fields: Fields, of_inputs: str, of_outputs: str) -> _Biases:
    """Return which products of attention have biases; `ConfigError` for those of outputs alone."""
    inputs, outputs = fields.flag(of_inputs), fields.flag(of_outputs)
    if outputs and not inputs:
        raise ConfigError(
            f"{of_outputs} is true and {of_inputs} is not, which is not known",
            location=fields.location,
        )
    return "all" if outputs else "inputs" if inputs else "none"


def _smollm3(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    rotates = rotating_layers(fields, sizes)
    used = fields.flag("use_sliding_window")
    fields.known("max_window_layers")
    if not used:
        fields.known("sliding_window", "layer_types")
    windows = windowed(fields, sizes) if used else alike(sizes)
    kinds = tuple(replace(kind, rotates=bool(rotates[index])) for index, kind in enumerate(windows))
    return _plain(fields, kinds=kinds, tied=fields.flag("tie_word_embeddings", default=True))


def _starcoder2(fields: Fields) -> Description:
    fields.one_of("mlp_type", ("default",))
    fields.one_of("norm_type", ("layer_norm",))
    return _plain(
        fields,
        norm="layer",
        epsilon=fields.number("norm_epsilon", default=1e-5),
        gated=False,
        tied=fields.flag("tie_word_embeddings", default=True),
        **biases_by(fields, "use_bias", default=True),
    )


def _stablelm(fields: Fields) -> Description:
    for name in ("qk_layernorm", "use_parallel_residual"):
        fields.one_of(name, (False,))
    return _plain(
        fields,
        norm="layer",
        attention_biases="inputs" if fields.flag("use_qkv_bias") else "none",
    )


def _internlm3(fields: Fields) -> Description:
    return _plain(
        fields,
        attention_biases=_biases(fields, "qkv_bias", "bias"),
        mlp_biases=fields.flag("bias"),
    )


def _jais2(fields: Fields) -> Description:
    return _plain(fields, norm="layer", gated=False)


def _granite_moe(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    routing = experts_of(
        fields,
        sizes,
        shared_mlp=fields.size("shared_intermediate_size", default=0, least=0),
    )
    kinds = alike(sizes, is_routed=True)
    return Description(sizes=sizes, style=granite_style(fields), kinds=kinds, routing=routing)


def _cohere(fields: Fields) -> Description:
    fields.one_of("use_qk_norm", (False,))
    for name in ("use_gated_activation", "use_parallel_block"):
        fields.one_of(name, (True,))
    fields.one_of("position_embedding_type", ("rope_gptj",))
    fields.one_of("order_of_interleaved_layers", ("local_attn_first",))
    fields.one_of("rotary_pct", (1.0,))
    fields.known("use_parallel_embedding")
    return _plain(
        fields,
        kinds=_unrotated_where_full(fields, sizes_of(fields)),
        norm="layer",
        norm_biases=False,
        before_mlp="same_norm",
        tied=fields.flag("tie_word_embeddings", "use_embedding_sharing", default=True),
        logit_scale=fields.number("logit_scale", default=1.0),
    )


def _gpt_neox(fields: Fields) -> Description:
    is_beside = fields.flag("use_parallel_residual", default=True)
    # Versions before 5 of transformers name the share of a head that turns otherwise.
    share = fields.number("rotary_pct", default=1.0)
    fields.known("rotary_emb_base", "rotary_pct", "hidden_dropout", "classifier_dropout")
    found = _plain(
        fields,
        norm="layer",
        before_mlp="own_norm" if is_beside else "yes",
        gated=False,
        attention_biases="all" if fields.flag("attention_bias", default=True) else "none",
        mlp_biases=True,
    )
    turning = found.style.rotary_size or int(found.sizes.head_size * share)
    return replace(found, style=replace(found.style, rotary_size=turning))


def _falcon(fields: Fields) -> Description:
    is_new = fields.flag("new_decoder_architecture")
    is_beside = fields.flag("parallel_attn", default=True) or is_new
    norms = fields.size("num_ln_in_parallel_attn", default=2 if is_new else 1)
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_kv_heads", default=heads)
    is_shared = fields.flag("multi_query", default=True)
    if not is_new:
        kv_heads = 1 if is_shared else heads
    embedding = fields.size("hidden_size")
    mlp = fields.size("ffn_hidden_size", default=4 * embedding)
    before = "own_norm" if norms == 2 else "same_norm"
    return described(
        fields,
        sizes=sizes_of(fields, kv_heads=kv_heads, mlp=mlp),
        norm="layer",
        before_mlp=before if is_beside else "yes",
        activation=activation_named(fields, "activation", default="gelu"),
        gated=False,
        alibi=fields.flag("alibi"),
        tied=fields.flag("tie_word_embeddings", default=True),
        **biases_by(fields, "bias"),
    )


def _opt(fields: Fields) -> Description:
    embedding = fields.size("hidden_size")
    fields.one_of("do_layer_norm_before", (True,))
    fields.one_of("word_embed_proj_dim", (embedding,))
    fields.one_of("layer_norm_elementwise_affine", (True,))
    fields.known("_remove_final_layer_norm", "layerdrop")
    return described(
        fields,
        sizes=sizes_of(fields, rope_theta=0, mlp=fields.size("ffn_dim")),
        norm="layer",
        activation=activation_named(fields, "activation_function", default="relu"),
        gated=False,
        tied=fields.flag("tie_word_embeddings", default=True),
        # Two stand before the first token's.
        learned_positions=fields.size("max_position_embeddings", default=2048) + 2,
        **biases_by(fields, "enable_bias", default=True),
    )


def _nemotron(fields: Fields) -> Description:
    return _plain(fields, norm="layer", gated=False)


def _hunyuan(fields: Fields) -> Description:
    fields.known("enable_moe_fp32_combine")
    routing = _sigmoid_experts(fields)
    scale = fields.number("router_scaling_factor", default=routing.style.scale)
    return described(
        fields,
        kinds=by_mlp_type(fields, alike(sizes_of(fields))),
        routing=replace(routing, style=replace(routing.style, scale=scale)),
        norms_of_heads=True,
    )


KINDRED: dict[str, Callable[[Fields], Description]] = {
    "arcee": _arcee,
    "cohere": _cohere,
    "cohere2": _cohere,
    "cwm": _plain,
    "ernie4_5": _ernie,
    "ernie4_5_moe": _ernie_moe,
    "exaone": _plain,
    "exaone4": _exaone4,
    "exaone_moe": _exaone_moe,
    "falcon": _falcon,
    "flex_olmo": lambda fields: _olmo_moe(fields, norms_before=False),
    "gemma": _gemma,
    "glm": _glm,
    "glm4": lambda fields: _glm(fields, norms_after=True),
    "glm4v": lambda fields: _glm(fields, norms_after=True),
    "gpt_neox": _gpt_neox,
    "granitemoe": _granite_moe,
    "granitemoeshared": _granite_moe,
    "helium": _plain,
    "hy_v3": _hunyuan,
    "internlm3": _internlm3,
    "jais2": _jais2,
    "ministral3": _plain,
    "nemotron": _nemotron,
    "olmo2": _olmo,
    "olmo3": lambda fields: _olmo(fields, every=4),
    "olmoe": lambda fields: _olmo_moe(fields, norms_before=True),
    "opt": _opt,
    "seed_oss": _seed,
    "smollm3": _smollm3,
    "solar_open": _solar,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
"""What reads the configuration of each ``model_type``."""
