"""The weights of a language model by name, and the dimensions of each.

Importing this does not import JAX.
"""

from __future__ import annotations

from collections.abc import Iterator

from hespas.models.language import LanguageModel, LayerKind, Routing, Style

Shapes = dict[str, tuple[str, ...]]
MERGED, SHARED_EXPERTS = "query_key_value", "shared_"
"""The product of queries, keys and values in one; what weights of shared experts begin with."""


def layer_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    """Return the dimensions of a layer's weights."""
    style, routing, merged = model.style, model.routing, model.merges_products
    names = ["attention_norm", "mlp_norm"]
    if style.norms_after:
        names += ["after_attention_norm", "after_mlp_norm"]
    shapes: Shapes = {}
    for name in names:
        shapes |= _norm(style, name)
    shapes |= _latent(model) if model.latent is not None else _grouped(model)
    if not kind.is_routed or routing is None:
        return shapes | _feed_forward(style, "mlp", merged=merged)
    shapes |= routing_weights(routing)
    if routing.shared_experts:
        shapes |= _feed_forward(style, "shared_mlp", SHARED_EXPERTS, merged=merged)
    return shapes


def outer_weights(model: LanguageModel) -> Shapes:
    """Return the dimensions of the weights before and behind the layers."""
    shapes: Shapes = {"embedding": ("vocabulary", "embedding"), **_norm(model.style, "norm")}
    if not model.style.tied:
        shapes["head"] = ("embedding", "vocabulary")
    if model.style.learned_positions:
        shapes["positions"] = ("positions", "embedding")
    return shapes


def all_weights(model: LanguageModel) -> Iterator[tuple[str, ...]]:
    """Yield the dimensions of every weight."""
    yield from outer_weights(model).values()
    of_kinds = {kind: tuple(layer_weights(model, kind).values()) for kind in set(model.kinds)}
    for kind in model.kinds:
        yield from of_kinds[kind]


def routing_weights(routing: Routing) -> Shapes:
    """Return the dimensions of the router's weights and of the experts'."""
    bias: Shapes = {"router_bias": ("choices",)} if routing.gate == "sigmoid" else {}
    return {
        "router": ("embedding", "choices"),
        **bias,
        "experts_gate": ("experts", "embedding", "expert_mlp"),
        "experts_up": ("experts", "embedding", "expert_mlp"),
        "experts_down": ("experts", "expert_mlp", "embedding"),
    }


def _norm(style: Style, name: str, dimension: str = "norm") -> Shapes:
    bias: Shapes = {f"{name}_bias": (dimension,)} if style.norm == "layer" else {}
    return {name: (dimension,), **bias}


def _grouped(model: LanguageModel) -> Shapes:
    shapes: Shapes = {"output": ("heads", "head_size", "embedding")}
    if model.merges_products:
        shapes |= {MERGED: ("embedding", "kv_heads", "heads_of_kv_head", "head_size")}
    else:
        shapes |= {
            "query": ("embedding", "heads", "head_size"),
            "key": ("embedding", "kv_heads", "head_size"),
            "value": ("embedding", "kv_heads", "head_size"),
        }
    if model.style.biases:
        shapes |= {
            "query_bias": ("heads", "head_size"),
            "key_bias": ("kv_heads", "head_size"),
            "value_bias": ("kv_heads", "head_size"),
            "output_bias": ("norm",),
        }
    if model.style.norms_of_heads:
        shapes |= {"query_norm": ("head_size",), "key_norm": ("head_size",)}
    return shapes


def _latent(model: LanguageModel) -> Shapes:
    return {
        "query_down": ("embedding", "query_rank"),
        **_norm(model.style, "query_norm", "query_norm"),
        "query_up": ("query_rank", "heads", "query_size"),
        "latent_down": ("embedding", "latent"),
        **_norm(model.style, "latent_norm", "latent_norm"),
        "key_up": ("kv_rank", "heads", "head_size"),
        "value_up": ("kv_rank", "heads", "value_size"),
        "output": ("heads", "value_size", "embedding"),
    }


def _feed_forward(style: Style, width: str, prefix: str = "", *, merged: bool) -> Shapes:
    """Return the dimensions of a dense layer's weights; ``width`` names the inner dimension.

    Where products are ``merged``, the gate and what it multiplies are one.
    """
    shapes: Shapes = {f"{prefix}down": (width, "embedding")}
    if style.gated and merged:
        shapes[f"{prefix}gate_up"] = ("embedding", "two", width)
    else:
        shapes[f"{prefix}up"] = ("embedding", width)
        if style.gated:
            shapes[f"{prefix}gate"] = ("embedding", width)
    if style.biases:
        shapes |= {f"{prefix}up_bias": (width,), f"{prefix}down_bias": ("norm",)}
    return shapes
