"""The weights of a language model by name, what its layers keep, and the dimensions of each.

Importing this does not import JAX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from hespas.models.language import LanguageModel, LayerKind, Routing, Style, Training
from hespas.models.model import TYPE_BYTES

Shapes = dict[str, tuple[str, ...]]
Arrays = tuple[tuple[str, ...], ...]
MERGED, SHARED_EXPERTS = "query_key_value", "shared_"
"""The product of queries, keys and values in one; what weights of shared experts begin with."""
_KEEPS_PRODUCTS = "minimal_with_context"
_PROJECTIONS = (
    ("batch", "sequence", "heads", "head_size"),
    ("batch", "sequence", "kv_heads", "head_size"),
    ("batch", "sequence", "kv_heads", "head_size"),
)
_LATENT = (
    ("batch", "sequence", "heads", "query_size"),
    ("batch", "sequence", "heads", "query_size"),
    ("batch", "sequence", "heads", "value_size"),
)
_WIDTH = ("batch", "sequence", "mlp")
_SHARED_WIDTH = ("batch", "sequence", "shared_mlp")


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


def least_kept_bytes(model: LanguageModel) -> int:
    """Return the bytes of one device that a layer holds at least of a micro-batch.

    It is what goes into the layer, and what ``remat`` keeps beside: query, key, value, and the
    products before the activation. Of experts only the shared ones are counted, and of a layer that
    keeps everything nothing more than its input.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("llama3-8b").settings
    >>> least_kept_bytes(settings) == 4096 * (4096 + 6144 + 2 * 14336) * 2
    True
    """
    axes = model.axes
    elements = sum(local_elements(model, names, axes) for names in _arrays(model))
    return elements * TYPE_BYTES[model.dtype]


def _arrays(model: LanguageModel) -> Arrays:
    into, run = ("batch", "norm_sequence", "row"), model.run
    if not isinstance(run, Training) or run.remat != _KEEPS_PRODUCTS:
        return (into,)
    arrays: Arrays = (into, *(_PROJECTIONS if model.latent is None else _LATENT))
    if model.routing is not None and not model.routing.shared_experts:
        return arrays
    width = _WIDTH if model.routing is None else _SHARED_WIDTH
    return (*arrays, width, width) if model.style.gated else (*arrays, width)


def local_elements(
    model: LanguageModel, names: tuple[str, ...], axes: Mapping[str, tuple[str, ...]]
) -> int:
    """Return how many elements of an array with these dimensions one device has.

    ``axes`` of the mesh divide dimensions, each one only of an array, the first that it can.
    """
    divided: set[str] = set()
    parts = 1
    for name in names:
        for axis in axes.get(name, ()):
            if axis not in divided:
                divided.add(axis)
                parts *= model.mesh.size(axis)
    sizes = model.sizes
    return -(-prod(sizes.get(name, 1) for name in names) // parts)
