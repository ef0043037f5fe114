"""Readers of families of decoders: from fields to a `LanguageModel`'s parts.

Facts of a family that its file doesn't say are in its reader. Source: the configuration and
modelling files of transformers 5.24, by ``model_type``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from hespas.errors import ConfigError
from hespas.models.architecture import (
    Delta,
    LayerKind,
    Routing,
    RoutingStyle,
    Sizes,
    StateSpace,
)
from hespas.models.decoder_parts import (
    ALL_BIASES,
    ATTENTION_TYPES,
    Description,
    activation_named,
    alike,
    amplitude_of,
    by_mlp_type,
    check_types,
    described,
    experts_of,
    experts_of_deepseek,
    granite_style,
    latent_of,
    mamba_of,
    rotating_layers,
    sizes_of,
    style_of,
    windowed,
)
from hespas.models.fields import Fields
from hespas.models.gemma_decoders import GEMMA
from hespas.models.kindred_decoders import KINDRED
from hespas.models.older_decoders import OLDER


def _mistral(fields: Fields) -> Description:
    return described(fields, kinds=windowed(fields, sizes_of(fields)))


def _mixtral(fields: Fields) -> Description:
    found = _mistral(fields)
    routing = experts_of(fields, found.sizes)
    kinds = tuple(replace(kind, is_routed=True) for kind in found.kinds)
    return replace(found, routing=routing, kinds=kinds)


def _qwen(fields: Fields, **facts: Any) -> Description:
    sizes = sizes_of(fields)
    types = fields.texts("layer_types")
    check_types(fields, types, ATTENTION_TYPES)
    kinds = alike(sizes)
    fields.known("sliding_window", "max_window_layers")
    if fields.flag("use_sliding_window"):
        window = fields.size("sliding_window", default=0, least=0)
        first = fields.size("max_window_layers", default=sizes.layers, least=0)
        types = types or [ATTENTION_TYPES[index >= first] for index in range(sizes.layers)]
        kinds = tuple(LayerKind(window=window * (each == ATTENTION_TYPES[1])) for each in types)
    return Description(sizes=sizes, style=style_of(fields, **facts), kinds=kinds)


def _qwen2(fields: Fields) -> Description:
    return _qwen(fields, attention_biases="inputs")


def _qwen3(fields: Fields) -> Description:
    return _qwen(fields, norms_of_heads=True)


def _qwen_experts(fields: Fields, found: Description) -> Description:
    """Return a description with the experts that Qwen's models have."""
    every = fields.size("decoder_sparse_step", default=1)
    dense = fields.numbers("mlp_only_layers")
    shared = fields.size("shared_expert_intermediate_size", default=0, least=0)
    routing = Routing(
        experts=fields.size("num_experts", "num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_mlp=shared,
        style=RoutingStyle(normalised=fields.flag("norm_topk_prob"), shared_gate=bool(shared)),
    )
    kinds = tuple(
        replace(kind, is_routed=(index + 1) % every == 0 and index not in dense)
        for index, kind in enumerate(found.kinds)
    )
    return replace(found, routing=routing, kinds=kinds)


def _qwen2_moe(fields: Fields) -> Description:
    fields.one_of("qkv_bias", (True,))
    return _qwen_experts(fields, _qwen2(fields))


def _qwen3_moe(fields: Fields) -> Description:
    fields.one_of("qkv_bias", (False,))
    fields.one_of("use_qk_norm", (True,))
    return _qwen_experts(fields, _qwen3(fields))


def _qwen_delta(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    fields.one_of("attn_output_gate", (True,))
    style = style_of(fields, norms_of_heads=True, output_gate=True)
    every = fields.size("full_attention_interval", default=4)
    types = fields.texts("layer_types") or [
        "full_attention" if (index + 1) % every == 0 else "linear_attention"
        for index in range(sizes.layers)
    ]
    check_types(fields, types, ("full_attention", "linear_attention"))
    delta = Delta(
        delta_key_heads=fields.size("linear_num_key_heads"),
        delta_heads=fields.size("linear_num_value_heads"),
        delta_key_size=fields.size("linear_key_head_dim"),
        delta_value_size=fields.size("linear_value_head_dim"),
        convolution=fields.size("linear_conv_kernel_dim", default=4),
    )
    kinds = tuple(
        LayerKind(mixer="attention" if each == "full_attention" else "delta") for each in types
    )
    return Description(sizes=sizes, style=style, kinds=kinds, delta=delta)


def _first_dense(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    fields.one_of("moe_layer_freq", (1,))
    return by_mlp_type(fields, alike(sizes))


def _deepseek(
    fields: Fields, gate: Literal["softmax", "sigmoid"], *, indexed: bool = False
) -> Description:
    sizes = sizes_of(fields, kv_heads=0, head_size=fields.size("qk_nope_head_dim"))
    fields.one_of("scoring_func", (gate,))
    # The order of what turns, and sums of sizes.
    fields.known("rope_interleave", "indexer_rope_interleave", "head_dim", "qk_head_dim")
    check_types(fields, fields.texts("layer_types"), ("full_attention", "indexed_attention"))
    check_types(fields, fields.texts("indexer_types"), ("full",))
    latent = latent_of(fields, indexed=indexed)
    style = style_of(fields, rotary_size=0)
    scaling = style.rotary_scaling
    if scaling is not None and (mscale := _mscale_of_all(fields)):
        size = sizes.head_size + latent.rope_size
        amplitude = amplitude_of(scaling.factor, mscale)
        style = replace(style, query_scale=size**-0.5 * amplitude * amplitude)
    routing = None
    if fields.given("n_routed_experts", "num_local_experts", "num_experts") is not None:
        is_sigmoid = gate == "sigmoid"
        routing = experts_of_deepseek(fields, gate, corrected=is_sigmoid, normalised=is_sigmoid)
    return Description(
        sizes=sizes,
        style=style,
        kinds=alike(sizes) if routing is None else _first_dense(fields, sizes),
        latent=latent,
        routing=routing,
    )


def _mscale_of_all(fields: Fields) -> float:
    parts = (fields.part(name) for name in ("rope_scaling", "rope_parameters"))
    return sum(part.number("mscale_all_dim", default=0.0) for part in parts)


def _glm4_moe(fields: Fields, *, norms_of_heads: bool = False) -> Description:
    return described(
        fields,
        kinds=_first_dense(fields, sizes_of(fields)),
        routing=experts_of_deepseek(fields, "sigmoid", corrected=True, normalised=True),
        attention_biases="inputs" if fields.flag("attention_bias") else "none",
        norms_of_heads=fields.flag("use_qk_norm", default=norms_of_heads),
    )


def _deepseek_moe(fields: Fields) -> Description:
    fields.one_of("scoring_func", ("softmax",))
    return described(
        fields,
        kinds=_first_dense(fields, sizes_of(fields)),
        routing=experts_of_deepseek(fields, "softmax", corrected=False, normalised=False),
    )


def _minimax_m2(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    fields.one_of("scoring_func", ("sigmoid",))
    fields.one_of("qk_norm_type", ("per_layer",))
    fields.one_of("shared_intermediate_size", (0,))
    fields.one_of("attn_type_list", ([1] * sizes.layers,))
    routing = experts_of(
        fields,
        sizes,
        gate="sigmoid",
        style=RoutingStyle(corrected=fields.flag("use_routing_bias", default=True)),
    )
    return described(
        fields,
        kinds=alike(sizes, is_routed=True),
        routing=routing,
        norms_of_rows=fields.flag("use_qk_norm", default=True),
        rotary_size=fields.size("rotary_dim", default=sizes.head_size),
    )


def _gpt_oss(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    routing = experts_of(
        fields,
        sizes,
        style=RoutingStyle(logit_biases=True, biases=True),
    )
    kinds = tuple(replace(kind, is_routed=True) for kind in windowed(fields, sizes, every=2))
    facts: dict[str, Any] = {"activation": "clipped_silu", "attention_biases": "all", "sinks": True}
    return described(fields, kinds=kinds, routing=routing, **facts)


def _granite(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    return Description(sizes=sizes, style=granite_style(fields), kinds=alike(sizes))


def _granite_hybrid(fields: Fields) -> Description:
    experts = fields.size("num_local_experts", default=0, least=0)
    shared = fields.size("shared_intermediate_size", default=0, least=0)
    sizes = sizes_of(fields)
    fields.one_of("normalization_function", ("rmsnorm",))
    fields.one_of("mamba_proj_bias", (False,))
    rotates = fields.text("position_embedding_type", default="nope") == "rope"
    space = mamba_of(fields, sizes)
    types = fields.texts("layer_types", "layers_block_type")
    check_types(fields, types, ("mamba", "linear_attention", "attention", "full_attention"))
    kinds = tuple(
        LayerKind(
            mixer="attention" if "mamba" not in each and "linear" not in each else "state_space",
            is_routed=experts > 0,
            rotates=rotates,
        )
        for each in types
    )
    routing = None
    chosen = fields.size("num_experts_per_tok", default=0, least=0)
    if experts:
        routing = Routing(experts=experts, chosen=chosen, expert_mlp=sizes.mlp, shared_mlp=shared)
    else:
        sizes = replace(sizes, mlp=shared)
    return Description(
        sizes=sizes,
        style=granite_style(fields),
        kinds=kinds,
        routing=routing,
        state_space=space,
    )


_NEMOTRON_LAYERS = {
    "M": LayerKind(mixer="state_space", feeds_forward=False),
    "*": LayerKind(feeds_forward=False, rotates=False),
    "-": LayerKind(mixer="none"),
    "E": LayerKind(mixer="none", is_routed=True),
}
_NEMOTRON_NAMES = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _nemotron_h(fields: Fields) -> Description:
    pattern = fields.text("hybrid_override_pattern")
    types = fields.texts("layers_block_type", "layer_types")
    check_types(fields, types, tuple(_NEMOTRON_NAMES))
    letters = [_NEMOTRON_NAMES[each] for each in types] or list(pattern)
    check_types(fields, letters, tuple(_NEMOTRON_LAYERS))
    kinds = tuple(_NEMOTRON_LAYERS[each] for each in letters)
    for name in ("use_bias", "mamba_proj_bias"):
        fields.one_of(name, (False,))
    fields.known("sliding_window")
    fields.one_of("mamba_hidden_act", ("silu",))
    layers = fields.size("num_hidden_layers", default=len(kinds))
    if layers != len(kinds):
        raise ConfigError(
            f"num_hidden_layers is {layers}, and {len(kinds)} layers are described",
            location=fields.location,
        )
    sizes = sizes_of(fields.with_values(num_hidden_layers=layers))
    space = StateSpace(
        state_heads=fields.size("mamba_num_heads"),
        state_head_size=fields.size("mamba_head_dim"),
        state_size=fields.size("ssm_state_size", default=128),
        state_groups=fields.size("n_groups", "mamba_n_groups", default=8),
        convolution=fields.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=fields.size("chunk_size", "mamba_chunk_size", default=128),
        convolution_biases=fields.flag("use_conv_bias", default=True),
    )
    routing = None
    names = (
        "n_group",
        "topk_group",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "moe_latent_size",
        "routed_scaling_factor",
        "norm_topk_prob",
    )
    fields.known(*names)
    if any(kind.is_routed for kind in kinds):
        routing = replace(
            experts_of_deepseek(fields, "sigmoid", corrected=True, normalised=True),
            shared_mlp=fields.size("moe_shared_expert_intermediate_size"),
            latent_size=fields.size("moe_latent_size", default=0, least=0),
        )
    facts: dict[str, Any] = {"activation": "relu_squared", "gated": False, "rotary_size": 0}
    return described(fields, sizes=sizes, kinds=kinds, routing=routing, state_space=space, **facts)


def _llama4(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    every = fields.size("interleave_moe_layer_step", default=1)
    chunk = fields.size("attention_chunk_size", default=0, least=0)
    rotates = rotating_layers(fields, sizes)
    routed = fields.numbers("moe_layers") or range(every - 1, sizes.layers, every)
    width = fields.size("intermediate_size_mlp")
    types = fields.texts("layer_types")
    check_types(fields, types, ("full_attention", "chunked_attention"))
    kinds = tuple(
        LayerKind(
            rotates=bool(rotates[index]),
            chunk=chunk if rotates[index] else 0,
            is_routed=index in routed,
        )
        for index in range(sizes.layers)
    )
    routing = experts_of(
        fields,
        sizes,
        shared_experts=1,
        gate="sigmoid",
        style=RoutingStyle(normalised=False, scales_inputs=True),
    )
    return described(
        fields,
        sizes=replace(sizes, mlp=width),
        kinds=kinds,
        routing=routing,
        norms_after_rotation=fields.flag("use_qk_norm", default=True),
    )


def _mpt(fields: Fields) -> Description:
    attention = fields.part("attn_config")
    alibi = attention.flag("alibi")
    attention.one_of("attn_type", ("multihead_attention",))
    for name in ("clip_qkv", "softmax_scale"):
        attention.one_of(name, ())
    attention.one_of("qk_ln", (False,))
    attention.known(
        "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "prefix_lm", "alibi_bias_max"
    )
    attention.check_read()
    fields.one_of("no_bias", (True,))
    fields.one_of("embedding_fraction", (1.0,))
    fields.one_of("norm_type", ("low_precision_layernorm", "layernorm"))
    fields.one_of("logit_scale", ())
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    sizes = sizes_of(fields, rope_theta=0)
    sizes = replace(sizes, mlp=sizes.embedding * fields.size("expansion_ratio", default=4))
    return described(
        fields,
        sizes=sizes,
        norm="layer",
        norm_biases=False,
        activation="exact_gelu",
        gated=False,
        tied=True,
        alibi=alibi,
        learned_positions=fields.size("max_seq_len", default=2048) if learned else 0,
    )


def _gpt2(fields: Fields) -> Description:
    sizes = sizes_of(fields, rope_theta=0)
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        fields.one_of(name, (False,))
    fields.known("scale_attn_weights", "n_ctx", "scale_attention_softmax_in_fp32")
    fields.known("attention_softmax_in_fp32", "num_key_value_heads")
    is_shared = fields.flag("multi_query")
    sizes = replace(sizes, kv_heads=1 if is_shared else sizes.heads)
    return described(
        fields,
        sizes=sizes,
        norm="layer",
        activation=activation_named(fields, "activation_function", default="gelu_new"),
        gated=False,
        tied=True,
        learned_positions=fields.size("n_positions", default=1024),
        **ALL_BIASES,
    )


DECODERS: dict[str, Callable[[Fields], Description]] = {
    "llama": described,
    "ministral": _mistral,
    "mistral": _mistral,
    "mistral4": lambda fields: _deepseek(fields, "softmax"),
    "mixtral": _mixtral,
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
    "qwen3_next": lambda fields: _qwen_experts(fields, _qwen_delta(fields)),
    "qwen3_5": _qwen_delta,
    "qwen3_5_moe": lambda fields: _qwen_experts(fields, _qwen_delta(fields)),
    "deepseek": _deepseek_moe,
    "deepseek_v2": lambda fields: _deepseek(fields, "softmax"),
    "deepseek_v3": lambda fields: _deepseek(fields, "sigmoid"),
    "deepseek_v32": lambda fields: _deepseek(fields, "sigmoid", indexed=True),
    "glm4_moe_lite": lambda fields: _deepseek(fields, "sigmoid"),
    "glm_moe_dsa": lambda fields: _deepseek(fields, "sigmoid", indexed=True),
    "kimi_k2": lambda fields: _deepseek(fields, "sigmoid"),
    "glm4_moe": _glm4_moe,
    "glm4v_moe": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "gpt_oss": _gpt_oss,
    **GEMMA,
    "phi3": _mistral,
    "phi3_v": _mistral,
    "phi4mm": _mistral,
    "granite": _granite,
    "granitemoehybrid": _granite_hybrid,
    "nemotron_h": _nemotron_h,
    "llama4": _llama4,
    "mpt": _mpt,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "dots1": lambda fields: _glm4_moe(fields, norms_of_heads=True),
    "youtu": lambda fields: _deepseek(fields, "softmax"),
    "sarvam_mla": lambda fields: _deepseek(fields, "sigmoid"),
    **KINDRED,
    **OLDER,
}
"""What reads the configuration of each ``model_type``."""
