"""The parts of a decoder that most families' configurations say alike.

Source: the configuration and modelling files of transformers 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, cast

from hespas.errors import ConfigError
from hespas.models.architecture import (
    Activation,
    Delta,
    Latent,
    LayerKind,
    RotaryScaling,
    Routing,
    RoutingStyle,
    Sizes,
    StateSpace,
    Style,
)
from hespas.models.fields import Fields

_ROPE_TYPES = (
    *("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "su"),
    # Images have rows and columns; tokens of text turn as by default.
    "mrope",
)
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a family's reader finds: the parts of a `LanguageModel`."""

    sizes: Sizes
    style: Style
    kinds: tuple[LayerKind, ...]
    routing: Routing | None = None
    latent: Latent | None = None
    state_space: StateSpace | None = None
    delta: Delta | None = None


def described(
    fields: Fields,
    *,
    sizes: Sizes | None = None,
    kinds: tuple[LayerKind, ...] = (),
    routing: Routing | None = None,
    state_space: StateSpace | None = None,
    **facts: Any,
) -> Description:
    """Return Llama's layers but for some parts, and facts of their style."""
    sizes = sizes or sizes_of(fields)
    return Description(
        sizes=sizes,
        style=style_of(fields, **facts),
        kinds=kinds or alike(sizes),
        routing=routing,
        state_space=state_space,
    )


ALL_BIASES: Mapping[str, Any] = MappingProxyType({"attention_biases": "all", "mlp_biases": True})
"""The facts of products that all have biases."""


def biases_by(fields: Fields, name: str, *, default: bool = False) -> Mapping[str, Any]:
    """Return the facts of biases everywhere if a field says so, else none."""
    if fields.flag(name, default=default):
        return ALL_BIASES
    return {"attention_biases": "none", "mlp_biases": False}


def experts_of(fields: Fields, sizes: Sizes, **facts: Any) -> Routing:
    """Return experts as wide as the dense layers of other models."""
    return Routing(
        experts=fields.size("num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok", "experts_per_token"),
        expert_mlp=sizes.mlp,
        **facts,
    )


def sizes_of(fields: Fields, **changed: int) -> Sizes:
    """Return the sizes that most families name alike."""
    embedding = fields.size("hidden_size", "n_embd", "n_embed", "d_model")
    heads = fields.size("num_attention_heads", "n_head", "n_heads")
    head_size = fields.size("head_dim", "attention_head_dim", default=embedding // heads)
    is_given = "head_size" in changed or fields.given("head_dim") is not None
    if not is_given and embedding % heads and heads > 1:
        raise ConfigError(
            f"hidden_size = {embedding} is not divided by num_attention_heads = {heads}",
            location=fields.location,
            hint="give head_dim",
        )
    found = {
        "embedding": embedding,
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", default=heads),
        "layers": fields.layers("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
        "mlp": fields.size("intermediate_size", "n_inner", default=4 * embedding),
        "vocabulary": fields.size("vocab_size"),
        "head_size": head_size,
        "rope_theta": rope_of(fields).theta,
    }
    return Sizes(**(found | changed))


def style_of(fields: Fields, **facts: Any) -> Style:
    """Return the style that most families share, with a family's own facts."""
    names = ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function")
    epsilons = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layernorm_epsilon")
    epsilon = fields.number(*epsilons, "layer_norm_epsilon", default=1e-5)
    rope = rope_of(fields)
    found: dict[str, Any] = {
        "activation": activation_named(fields, *names, default="silu"),
        "epsilon": epsilon,
        "tied": fields.flag("tie_word_embeddings"),
        "rotary_scaling": rope.scaling,
        "attention_biases": "all" if fields.flag("attention_bias") else "none",
        "mlp_biases": fields.flag("mlp_bias"),
    }
    if rope.share != 1:
        sizes = sizes_of(fields)
        head = sizes.head_size
        found["rotary_size"] = int(head * rope.share)
    return Style(**(found | facts))


def activation_named(fields: Fields, *names: str, default: str) -> Activation:
    """Return the activation that a field names; `ConfigError` for one that is not known."""
    activation = fields.text(*names, default=default)
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"the activation {activation!r} is not known",
            location=fields.location,
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[activation]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rope:
    """Rotary positions: base, share of a head, scaling."""

    theta: int
    share: float
    scaling: RotaryScaling | None


def rope_of(fields: Fields, of: str = "") -> _Rope:
    """Return the rotary positions; in ``rope_parameters`` types ``of`` layers have their own."""
    share = fields.number("partial_rotary_factor", default=1.0)
    theta = fields.number("rope_theta", default=10000.0)
    scaling: RotaryScaling | None = None
    for name in ("rope_scaling", "rope_parameters"):
        part = fields.part(name)
        if of in part.values:
            part = part.part(of)
        if not part.values or isinstance(next(iter(part.values.values())), dict):
            continue
        theta = part.number("rope_theta", default=theta)
        share = part.number("partial_rotary_factor", default=share)
        scaling = _scaling(fields, part)
    return _Rope(theta=round(theta), share=share, scaling=scaling)


def _scaling(fields: Fields, part: Fields) -> RotaryScaling | None:
    """Return how rotary positions are scaled; None where nothing of short sequences is."""
    kind = part.text("rope_type", "type", default="default")
    if kind not in _ROPE_TYPES:
        raise ConfigError(
            f"rotary positions of the type {kind!r} are not known",
            location=part.location,
            hint=f"known: {', '.join(_ROPE_TYPES)}",
        )
    if kind not in {"linear", "llama3", "yarn"}:
        return None
    longest = fields.size("max_position_embeddings", default=4096)
    factor = part.number("factor")
    slow, fast = ("low_freq_factor", "high_freq_factor")
    if kind == "yarn":
        slow, fast = ("beta_slow", "beta_fast")
    amplitude = part.number("attention_factor", default=0.0)
    if kind == "yarn" and not amplitude:
        both = part.number("mscale", default=0.0), part.number("mscale_all_dim", default=0.0)
        amplitude = (
            amplitude_of(factor, both[0]) / amplitude_of(factor, both[1]) if all(both) else 0.0
        )
        amplitude = amplitude or amplitude_of(factor, 1.0)
    return RotaryScaling(
        kind=cast("Any", kind),
        factor=factor,
        original=part.size("original_max_position_embeddings", default=longest),
        slow=part.number(slow, default=1.0),
        fast=part.number(fast, default=4.0 if kind == "llama3" else 32.0),
        amplitude=amplitude or 1.0,
        is_truncated=part.flag("truncate", default=True),
    )


def amplitude_of(factor: float, scale: float) -> float:
    """Return what YaRN multiplies queries and keys by."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def alike(sizes: Sizes, **kind: Any) -> tuple[LayerKind, ...]:
    """Return layers that are all of one kind."""
    return (LayerKind(**kind),) * sizes.layers


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


def by_mlp_type(fields: Fields, kinds: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """Mark layers with experts by their types, or behind the dense ones."""
    dense = fields.size("first_k_dense_replace", default=0, least=0)
    types = fields.texts("mlp_layer_types")
    if types and len(types) != len(kinds):
        raise ConfigError(
            f"mlp_layer_types has {len(types)} layers, and num_hidden_layers is {len(kinds)}",
            location=fields.location,
        )
    return tuple(
        replace(kind, is_routed=types[index] == "sparse" if types else index >= dense)
        for index, kind in enumerate(kinds)
    )


def granite_style(fields: Fields) -> Style:
    """Return the style of Granite, whose sums and products have factors of their own."""
    return style_of(
        fields,
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        query_scale=fields.number("attention_multiplier", default=0.0),
        logit_scale=1 / fields.number("logits_scaling", default=1.0),
    )


def latent_of(fields: Fields, *, indexed: bool = False) -> Latent:
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
    head = fields.given("mamba_d_head")
    return StateSpace(
        state_heads=heads,
        state_head_size=inner // heads if head in {None, "auto"} else head,
        state_size=fields.size("mamba_d_state", default=256),
        state_groups=fields.size("mamba_n_groups", default=1),
        convolution=fields.size("mamba_d_conv", default=4),
        chunk=fields.size("mamba_chunk_size", default=256),
        convolution_biases=fields.flag("mamba_conv_bias", default=True),
    )


def experts_of_deepseek(
    fields: Fields, gate: Literal["softmax", "sigmoid"], *, corrected: bool, normalised: bool
) -> Routing:
    """Return the experts that DeepSeek's models have, and those that follow them."""
    # A token's choice of groups first changes which experts it takes, and not how many.
    fields.known("n_group", "topk_group", "topk_method")
    return Routing(
        experts=fields.size("n_routed_experts", "num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_experts=fields.size("n_shared_experts", "num_shared_experts", default=0, least=0),
        gate=gate,
        style=RoutingStyle(
            corrected=corrected,
            normalised=fields.flag("norm_topk_prob", default=normalised),
            scale=fields.number("routed_scaling_factor", default=1.0),
        ),
    )


def rotating_layers(fields: Fields, sizes: Sizes) -> list[int]:
    """Return whether each layer's positions are rotary: as listed, or not each fourth."""
    every = fields.size("no_rope_layer_interval", default=4)
    return fields.numbers("no_rope_layers") or [
        int((index + 1) % every != 0) for index in range(sizes.layers)
    ]
