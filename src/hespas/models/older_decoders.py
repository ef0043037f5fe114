"""Readers of families with unusual names of fields, or unusual layers.

Source: the configuration and modelling files of transformers 5.24, by ``model_type``; of chatglm,
baichuan, internlm2, minicpm and bailing_moe the files that come with the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hespas.errors import ConfigError
from hespas.models.architecture import LayerKind, Routing, Sizes, StateSpace
from hespas.models.decoder_parts import (
    ALL_BIASES,
    Description,
    activation_named,
    alike,
    biases_by,
    by_mlp_type,
    described,
    experts_of,
    experts_of_deepseek,
    latent_of,
    mamba_of,
    sizes_of,
    windowed,
)
from hespas.models.fields import Fields


def _ungrouped(fields: Fields) -> Sizes:
    """Return sizes with as many heads of keys as of queries."""
    sizes = sizes_of(fields)
    return replace(sizes, kv_heads=sizes.heads)


def _gptj(fields: Fields) -> Description:
    sizes = _ungrouped(fields)
    fields.known("scale_attn_weights", "rotary", "n_positions", "n_ctx")
    return described(
        fields,
        sizes=sizes,
        norm="layer",
        before_mlp="same_norm",
        activation=activation_named(fields, "activation_function", default="gelu_new"),
        gated=False,
        mlp_biases=True,
        head_biases=True,
        rotary_size=fields.size("rotary_dim", default=sizes.head_size),
    )


def _phi(fields: Fields) -> Description:
    fields.one_of("qk_layernorm", (False,))
    return described(
        fields,
        norm="layer",
        before_mlp="same_norm",
        gated=False,
        head_biases=True,
        **ALL_BIASES,
    )


def _phimoe(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    fields.known("input_jitter_noise")
    kinds = tuple(replace(kind, is_routed=True) for kind in windowed(fields, sizes))
    routing = experts_of(fields, sizes)
    is_biased = fields.flag("lm_head_bias")
    return described(
        fields, sizes=sizes, kinds=kinds, routing=routing, norm="layer", head_biases=is_biased
    )


def _bloom(fields: Fields) -> Description:
    for name in ("apply_residual_connection_post_layernorm", "slow_but_exact"):
        fields.one_of(name, (False,))
    fields.known("attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion")
    fields.known("skip_bias_add", "skip_bias_add_qkv", "offset_alibi")
    sizes = _ungrouped(fields)
    return described(
        fields,
        sizes=replace(sizes, rope_theta=0, mlp=4 * sizes.embedding),
        norm="layer",
        activation="gelu",
        gated=False,
        alibi=True,
        norms_embedding=True,
        tied=fields.flag("tie_word_embeddings", default=True),
        **ALL_BIASES,
    )


def _olmo(fields: Fields) -> Description:
    return described(
        fields, norm="layer", norm_weights=False, clip=fields.number("clip_qkv", default=0.0)
    )


def _dbrx(fields: Fields) -> Description:
    attention, experts = fields.part("attn_config"), fields.part("ffn_config")
    heads = fields.size("n_heads")
    sizes = sizes_of(
        fields,
        kv_heads=attention.size("kv_n_heads", default=heads),
        rope_theta=round(attention.number("rope_theta", default=10000.0)),
        mlp=experts.size("ffn_hidden_size"),
    )
    experts.one_of("moe_normalize_expert_weights", (1, 1.0))
    activation = experts.part("ffn_act_fn")
    activation.one_of("name", ("silu",))
    experts.known("moe_jitter_eps", "moe_loss_weight", "uniform_expert_assignment", "hidden_size")
    routing = Routing(
        experts=experts.size("moe_num_experts"),
        chosen=experts.size("moe_top_k"),
        expert_mlp=sizes.mlp,
    )
    clip = attention.number("clip_qkv", default=0.0)
    for part in (attention, experts):
        part.known("model_type")
        part.check_read()
    kinds = alike(sizes, is_routed=True)
    facts: dict[str, Any] = {"norm": "layer", "norm_biases": False, "clip": clip}
    return described(fields, sizes=sizes, kinds=kinds, routing=routing, **facts)


def _chatglm(fields: Fields) -> Description:
    for name in ("rmsnorm", "post_layer_norm", "original_rope"):
        fields.one_of(name, (True,))
    for name in ("apply_residual_connection_post_layernorm", "add_bias_linear"):
        fields.one_of(name, (False,))
    for name in ("prefix_projection", "fp32_residual_connection"):
        fields.one_of(name, (False,))
    fields.known("apply_query_key_layer_scaling", "attention_softmax_in_fp32")
    fields.known("bias_dropout_fusion", "vocab_size", "quantization_bit")
    head = fields.size("kv_channels")
    heads = fields.size("num_attention_heads")
    groups = fields.size("multi_query_group_num", default=1)
    is_shared = fields.flag("multi_query_attention")
    sizes = sizes_of(
        fields.with_values(vocab_size=fields.size("padded_vocab_size")),
        head_size=head,
        kv_heads=groups if is_shared else heads,
        mlp=fields.size("ffn_hidden_size"),
        rope_theta=round(10000 * fields.number("rope_ratio", default=1.0)),
    )
    return described(
        fields,
        sizes=sizes,
        attention_biases="inputs" if fields.flag("add_qkv_bias") else "none",
        rotary_size=head // 2,
    )


def _baichuan(fields: Fields) -> Description:
    # Models of 13 B have slopes of scores, and only a ``model_max_length``.
    alibi = fields.given("max_position_embeddings") is None
    fields.known("z_loss_weight")
    return described(fields, alibi=alibi)


def _internlm2(fields: Fields) -> Description:
    biases = "all" if fields.flag("bias", default=True) else "none"
    return described(fields, attention_biases=biases, mlp_biases=fields.flag("mlp_bias"))


def _minicpm(fields: Fields) -> Description:
    fields.one_of("sparse_config", ())
    fields.known("mup_denominator")
    sizes = sizes_of(fields)
    return described(
        fields,
        residual_scale=fields.number("scale_depth", default=1.0) / sizes.layers**0.5,
        embedding_scale=fields.number("scale_emb", default=1.0),
        logit_scale=fields.size("dim_model_base", default=sizes.embedding) / sizes.embedding,
        tied=fields.flag("tie_word_embeddings", default=True),
    )


def _minicpm3(fields: Fields) -> Description:
    # The order of what turns, and sums of sizes.
    fields.known("rope_interleave", "head_dim", "qk_head_dim")
    found = _minicpm(fields)
    return replace(
        found,
        sizes=replace(found.sizes, kv_heads=0, head_size=fields.size("qk_nope_head_dim")),
        style=replace(found.style, rotary_size=0),
        latent=latent_of(fields),
    )


def _bailing(fields: Fields) -> Description:
    fields.one_of("use_rmsnorm", (True,))
    fields.one_of("moe_layer_freq", (1,))
    fields.known("router_dtype", "norm_head", "norm_softmax", "multi_gate", "max_window_layers")
    sizes = sizes_of(fields)
    score = fields.text("score_function", default="softmax")
    if score not in {"sigmoid", "softmax"}:
        raise ConfigError(f"score_function is {score!r}", location=fields.location)
    gate = "sigmoid" if score == "sigmoid" else "softmax"
    shared = fields.size("moe_shared_expert_intermediate_size", default=0, least=0)
    routing = experts_of_deepseek(
        fields,
        gate,
        corrected=fields.flag("moe_router_enable_expert_bias"),
        normalised=True,
    )
    biases = biases_by(fields, "use_bias")
    if fields.flag("use_qkv_bias") and biases is not ALL_BIASES:
        biases = {"attention_biases": "inputs", "mlp_biases": False}
    return described(
        fields,
        sizes=sizes,
        kinds=by_mlp_type(fields, alike(sizes)),
        routing=replace(routing, shared_mlp=shared * routing.shared_experts),
        norms_of_heads=fields.flag("use_qk_norm"),
        **biases,
    )


def _for_all_layers(fields: Fields, name: str, default: int) -> int:
    """Return a size that is one number, or a list of equal ones."""
    numbers = set(fields.numbers(name) or [default])
    if len(numbers) > 1:
        raise ConfigError(
            f"{name} differs from layer to layer, which is not known",
            location=fields.location,
            hint="export your own function",
        )
    return numbers.pop()


def _hunyuan(fields: Fields) -> Description:
    for name in ("use_cla", "use_mla", "group_limited_greedy", "moe_drop_tokens"):
        fields.one_of(name, (False,))
    fields.one_of("moe_layer_num_skipped", (0,))
    fields.one_of("norm_type", ("rms",))
    fields.one_of("use_rotary_pos_emb", (True,))
    fields.known("cla_share_factor", "class_num", "dense_list", "enable_lm_head_fp32", "pool_type")
    fields.known("enable_attention_fp32_softmax", "enable_moe_fp32_combine", "org_vocab_size")
    fields.known("im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "pad_id", "eod_id")
    fields.known("text_start_id", "text_end_id", "moe_random_routing_dropped_token")
    fields.known("n_group", "topk_group", "routed_scaling_factor", "use_mixed_mlp_moe")
    is_normed = fields.flag("use_qk_norm", "qk_norm", default=True)
    found = described(
        fields,
        tied=fields.flag("tie_word_embeddings", default=True),
        norms_of_heads=is_normed,
        norms_after_rotation=is_normed,
    )
    sizes = found.sizes
    experts = _for_all_layers(fields, "num_experts", 1)
    chosen = _for_all_layers(fields, "moe_topk", 1)
    width = _for_all_layers(fields, "moe_intermediate_size", sizes.mlp)
    shared = _for_all_layers(fields, "num_shared_expert", 1)
    fields.known("norm_topk_prob")
    if experts == 1:
        return found
    routing = Routing(experts=experts, chosen=chosen, expert_mlp=width, shared_experts=shared)
    return replace(found, kinds=alike(sizes, is_routed=True), routing=routing)


def _mamba2(fields: Fields) -> Description:
    heads, head = fields.size("num_heads"), fields.size("head_dim")
    fields.one_of("use_bias", (False,))
    fields.one_of("rms_norm", (True,))
    fields.known("norm_before_gate", "intermediate_size", "expand")
    space = StateSpace(
        state_heads=heads,
        state_head_size=head,
        state_size=fields.size("state_size", default=128),
        state_groups=fields.size("n_groups", default=8),
        convolution=fields.size("conv_kernel", default=4),
        chunk=fields.size("chunk_size", default=256),
        convolution_biases=fields.flag("use_conv_bias", default=True),
    )
    embedding = fields.size("hidden_size")
    # There is no attention: heads are those of states.
    sizes = Sizes(
        embedding=embedding,
        heads=heads,
        kv_heads=heads,
        layers=fields.layers("num_hidden_layers"),
        mlp=embedding,
        vocabulary=fields.size("vocab_size"),
        head_size=head,
        rope_theta=0,
    )
    kinds = alike(sizes, mixer="state_space", feeds_forward=False)
    headed = fields.with_values(num_attention_heads=heads)
    return described(headed, sizes=sizes, kinds=kinds, state_space=space)


def _bamba(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    fields.one_of("mamba_proj_bias", (False,))
    attending = fields.numbers("attn_layer_indices")
    space = mamba_of(fields, sizes)
    types = fields.texts("layer_types")
    kinds = tuple(
        LayerKind(
            mixer="attention"
            if (types[index] in {"attention", "full_attention"} if types else index in attending)
            else "state_space"
        )
        for index in range(sizes.layers)
    )
    return described(fields, sizes=sizes, kinds=kinds, state_space=space)


OLDER: dict[str, Callable[[Fields], Description]] = {
    "baichuan": _baichuan,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "bamba": _bamba,
    "bloom": _bloom,
    "chatglm": _chatglm,
    "codegen": _gptj,
    "dbrx": _dbrx,
    "gptj": _gptj,
    "hunyuan_v1_dense": _hunyuan,
    "hunyuan_v1_moe": _hunyuan,
    "internlm2": _internlm2,
    "mamba2": _mamba2,
    "minicpm": _minicpm,
    "minicpm3": _minicpm3,
    "olmo": _olmo,
    "phi": _phi,
    "phimoe": _phimoe,
}
"""What reads the configuration of each ``model_type``."""
