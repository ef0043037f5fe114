"""The kinds of a decoder's layers, experts and states, as configurations say them.

Source: the configuration and modelling files of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from hespas.errors import ConfigError
from hespas.models.architecture import (
    Delta,
    Latent,
    LayerKind,
    Routing,
    RoutingStyle,
    Sizes,
    StateSpace,
)
from hespas.models.fields import Fields

Layers = Callable[[Fields, Sizes], tuple[LayerKind, ...]]
"""What reads the kind of each layer."""


def alike(_: Fields, sizes: Sizes, **kind: Any) -> tuple[LayerKind, ...]:
    """Return layers that are all of one kind."""
    return (LayerKind(**kind),) * sizes.layers


ROUTED = partial(alike, is_routed=True)
"""Layers that all have experts."""


def routed(layers: Layers) -> Layers:
    """Return what reads the same layers, all with experts."""
    return lambda fields, sizes: tuple(
        replace(kind, is_routed=True) for kind in layers(fields, sizes)
    )


def _by_type(fields: Fields, sizes: Sizes, *, window: int, every: int) -> list[str]:
    """Return the type of each layer: as listed, or all ``every``-th ones full."""
    types = fields.texts("layer_types", "layers_block_type")
    if types and len(types) != sizes.layers:
        raise ConfigError(
            f"layer_types has {len(types)} layers, and num_hidden_layers is {sizes.layers}",
            location=fields.location,
        )
    if types:
        return types
    if not every:
        return ["sliding_attention" if window else "full_attention"] * sizes.layers
    return [
        "full_attention" if (index + 1) % every == 0 else "sliding_attention"
        for index in range(sizes.layers)
    ]


def check_types(fields: Fields, types: Sequence[str], known: Sequence[str]) -> None:
    """Raise `ConfigError` for a type of layers that is not known."""
    for each in types:
        if each not in known:
            raise ConfigError(
                f"a layer of the type {each!r} is not known",
                location=fields.location,
                hint=f"known: {', '.join(known)}",
            )


ATTENTION_TYPES = ("full_attention", "sliding_attention")


def windowed(fields: Fields, sizes: Sizes, *, every: int = 0) -> tuple[LayerKind, ...]:
    """Return the kind of each layer; some attend to a window alone."""
    window = fields.size("sliding_window", default=0, least=0)
    types = _by_type(fields, sizes, window=window, every=every)
    check_types(fields, types, ATTENTION_TYPES)
    return tuple(LayerKind(window=window if each == ATTENTION_TYPES[1] else 0) for each in types)


def behind_dense(fields: Fields, sizes: Sizes, layers: Layers = alike) -> tuple[LayerKind, ...]:
    """Return layers with experts by their types, or after dense ones."""
    fields.one_of("moe_layer_freq", (1,))
    dense = fields.size("first_k_dense_replace", default=0, least=0)
    types, kinds = fields.texts("mlp_layer_types"), layers(fields, sizes)
    if types and len(types) != len(kinds):
        raise ConfigError(
            f"mlp_layer_types has {len(types)} layers, and num_hidden_layers is {len(kinds)}",
            location=fields.location,
        )
    return tuple(
        replace(kind, is_routed=types[index] == "sparse" if types else index >= dense)
        for index, kind in enumerate(kinds)
    )


def rotating(fields: Fields, sizes: Sizes) -> list[int]:
    """Return whether each layer's positions are rotary: as listed, or not each fourth."""
    every = fields.size("no_rope_layer_interval", default=4)
    return fields.numbers("no_rope_layers") or [
        int((index + 1) % every != 0) for index in range(sizes.layers)
    ]


def unrotated_where_full(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Drop the positions of full layers beside windowed ones."""
    # Some say it as letters, and list the types of layers besides.
    every = fields.given("sliding_window_pattern", "layer_switch")
    kinds = windowed(fields, sizes, every=every if isinstance(every, int) else 0)
    has_windows = any(kind.window for kind in kinds)
    return tuple(replace(kind, rotates=bool(kind.window) or not has_windows) for kind in kinds)


def smollm_layers(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Return SmolLM's layers: with windows where these are used, some without positions."""
    fields.known("max_window_layers")
    rotates = rotating(fields, sizes)
    used = fields.flag("use_sliding_window")
    if not used:
        fields.known("sliding_window", "layer_types")
    kinds = windowed(fields, sizes) if used else alike(fields, sizes)
    return tuple(replace(kind, rotates=bool(rotates[index])) for index, kind in enumerate(kinds))


def qwen_layers(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Return Qwen's layers: full ones first, then windowed ones."""
    types = fields.texts("layer_types")
    check_types(fields, types, ATTENTION_TYPES)
    if not fields.flag("use_sliding_window"):
        fields.known("sliding_window", "max_window_layers")
        return alike(fields, sizes)
    window = fields.size("sliding_window", default=0, least=0)
    first = fields.size("max_window_layers", default=sizes.layers, least=0)
    types = types or [ATTENTION_TYPES[index >= first] for index in range(sizes.layers)]
    return tuple(LayerKind(window=window * (each == ATTENTION_TYPES[1])) for each in types)


def qwen_delta_layers(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Return layers with gated delta rules, and every fourth or so with attention."""
    every = fields.size("full_attention_interval", default=4)
    types = fields.texts("layer_types") or [
        "full_attention" if (index + 1) % every == 0 else "linear_attention"
        for index in range(sizes.layers)
    ]
    check_types(fields, types, ("full_attention", "linear_attention"))
    return tuple(
        LayerKind(mixer="attention" if each == "full_attention" else "delta") for each in types
    )


def qwen_sparse(fields: Fields, sizes: Sizes, *, layers: Layers) -> tuple[LayerKind, ...]:
    """Give experts to every n-th layer that isn't listed as dense."""
    every = fields.size("decoder_sparse_step", default=1)
    dense = fields.numbers("mlp_only_layers")
    return tuple(
        replace(kind, is_routed=(index + 1) % every == 0 and index not in dense)
        for index, kind in enumerate(layers(fields, sizes))
    )


def ernie_layers(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Return Ernie's layers; those between two indices have experts at an interval."""
    first = fields.size("moe_layer_start_index", default=1, least=0)
    last = fields.number("moe_layer_end_index", default=-1)
    every = fields.size("moe_layer_interval", default=1)
    end = sizes.layers - 1 if last < 0 else int(last)
    return tuple(
        LayerKind(is_routed=(index + 1) % every == 0 and first <= index <= end)
        for index in range(sizes.layers)
    )


def bamba_layers(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    """Return Bamba's layers: states, and attention in those that are listed."""
    attending, types = fields.numbers("attn_layer_indices"), fields.texts("layer_types")
    attends = (
        types[index] in {"attention", "full_attention"} if types else index in attending
        for index in range(sizes.layers)
    )
    return tuple(LayerKind(mixer="attention" if each else "state_space") for each in attends)


def granite_layers(fields: Fields, _: Sizes) -> tuple[LayerKind, ...]:
    """Return Granite's layers of attention and of states, all with experts or none."""
    experts = fields.size("num_local_experts", default=0, least=0)
    rotates = fields.text("position_embedding_type", default="nope") == "rope"
    types = fields.texts("layer_types", "layers_block_type")
    check_types(fields, types, ("mamba", "linear_attention", "attention", "full_attention"))
    return tuple(
        LayerKind(
            mixer="state_space" if each in {"mamba", "linear_attention"} else "attention",
            is_routed=experts > 0,
            rotates=rotates,
        )
        for each in types
    )


# Experts.


def experts_of(fields: Fields, sizes: Sizes, **facts: Any) -> Routing:
    """Return experts as wide as the dense layers of other models."""
    return Routing(
        experts=fields.size("num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok", "experts_per_token"),
        expert_mlp=sizes.mlp,
        **facts,
    )


def latent_of(fields: Fields, _: Sizes, *, indexed: bool = False) -> Latent:
    """Return the latent vectors of keys and values, as in DeepSeek's models."""
    embedding, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    return Latent(
        query_rank=fields.size("q_lora_rank", default=0, least=0),
        kv_rank=fields.size("kv_lora_rank"),
        rope_size=fields.size("qk_rope_head_dim"),
        value_size=fields.size("v_head_dim", default=embedding // heads),
        indexed_tokens=fields.size("index_topk") if indexed else 0,
        index_heads=fields.size("index_n_heads") if indexed else 0,
        index_size=fields.size("index_head_dim") if indexed else 0,
    )


def mamba_of(fields: Fields, sizes: Sizes) -> StateSpace:
    """Return the states of Mamba-2's layers, as Granite and Bamba name their sizes."""
    heads = fields.size("mamba_n_heads", default=128)
    inner = fields.size("mamba_expand", default=2) * sizes.embedding
    head = inner // heads
    if fields.given("mamba_d_head") != "auto":
        head = fields.size("mamba_d_head", default=head)
    return states_of(fields, heads, head, state=256, groups=1, chunk=256)


def states_of(
    fields: Fields, heads: int, head_size: int, *, state: int = 128, groups: int = 8, chunk: int
) -> StateSpace:
    """Return the states of Mamba-2's layers; ``state``, ``groups`` and ``chunk`` are defaults."""
    return StateSpace(
        state_heads=heads,
        state_head_size=head_size,
        state_size=fields.size("state_size", "ssm_state_size", "mamba_d_state", default=state),
        state_groups=fields.size("n_groups", "mamba_n_groups", default=groups),
        convolution=fields.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=fields.size("chunk_size", "mamba_chunk_size", default=chunk),
        convolution_biases=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
    )


def experts_of_deepseek(
    fields: Fields, _: Sizes, *, gate: Literal["softmax", "sigmoid"] = "sigmoid"
) -> Routing:
    """Return the experts that DeepSeek's models have, and those that follow them.

    A token's choice of groups first changes which experts it takes, and not how many.
    """
    fields.known("n_group", "topk_group", "topk_method")
    is_sigmoid = gate == "sigmoid"
    return Routing(
        experts=fields.size("n_routed_experts", "num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_experts=fields.size("n_shared_experts", "num_shared_experts", default=0, least=0),
        gate=gate,
        style=RoutingStyle(
            corrected=is_sigmoid,
            normalised=fields.flag("norm_topk_prob", default=is_sigmoid),
            scale=fields.number("routed_scaling_factor", default=1.0),
        ),
    )


def qwen_experts(fields: Fields, _: Sizes) -> Routing:
    """Return the experts of Qwen's models.

    A gate, the row's product with a vector, multiplies the shared ones.
    """
    shared = fields.size("shared_expert_intermediate_size", default=0, least=0)
    return Routing(
        experts=fields.size("num_experts", "num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_mlp=shared,
        style=RoutingStyle(normalised=fields.flag("norm_topk_prob"), shared_gate=bool(shared)),
    )


def qwen_delta(fields: Fields, _: Sizes) -> Delta:
    """Return the gated delta rules of Qwen's models."""
    return Delta(
        delta_key_heads=fields.size("linear_num_key_heads"),
        delta_heads=fields.size("linear_num_value_heads"),
        delta_key_size=fields.size("linear_key_head_dim"),
        delta_value_size=fields.size("linear_value_head_dim"),
        convolution=fields.size("linear_conv_kernel_dim", default=4),
    )


def olmo_experts(fields: Fields, sizes: Sizes) -> Routing:
    """Return the experts of OLMo's models."""
    return Routing(
        experts=fields.size("num_experts", default=64),
        chosen=fields.size("num_experts_per_tok", default=8),
        expert_mlp=sizes.mlp,
        style=RoutingStyle(normalised=fields.flag("norm_topk_prob")),
    )


def ernie_experts(fields: Fields, _: Sizes) -> Routing:
    """Return the experts of Ernie's models."""
    fields.known("moe_norm_min", "moe_capacity", "moe_use_aux_free")
    return Routing(
        experts=fields.size("moe_num_experts"),
        chosen=fields.size("moe_k"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_experts=fields.size("moe_num_shared_experts", default=0, least=0),
        style=RoutingStyle(corrected=True),
    )


def granite_experts(fields: Fields, sizes: Sizes) -> Routing:
    """Return the experts of Granite's models."""
    shared = fields.size("shared_intermediate_size", default=0, least=0)
    return experts_of(fields, sizes, shared_mlp=shared)


def hybrid_experts(fields: Fields, sizes: Sizes) -> Routing | None:
    """Return the experts of Granite's models with states; None without."""
    fields.known("num_experts_per_tok")
    has_experts = fields.size("num_local_experts", default=0, least=0)
    return granite_experts(fields, sizes) if has_experts else None


def minimax_experts(fields: Fields, sizes: Sizes) -> Routing:
    """Return the experts of MiniMax M2."""
    fields.one_of("attn_type_list", ([1] * sizes.layers,))
    corrected = fields.flag("use_routing_bias", default=True)
    return experts_of(fields, sizes, gate="sigmoid", style=RoutingStyle(corrected=corrected))


def hunyuan_experts(fields: Fields, sizes: Sizes) -> Routing:
    """Return the experts of Hunyuan 3."""
    fields.known("enable_moe_fp32_combine")
    routing = experts_of_deepseek(fields, sizes)
    scale = fields.number("router_scaling_factor", default=routing.style.scale)
    return replace(routing, style=replace(routing.style, scale=scale))
