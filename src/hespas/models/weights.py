"""The weights of a decoder, with named dimensions.

They are said once: steps are built from them, and `hespas.models.parameters` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from hespas.models.architecture import Latent, LayerKind, Routing, StateSpace, Style
from hespas.models.language import LanguageModel
from hespas.models.precision import ModelPart

Shapes = dict[str, tuple[str, ...]]
SHARED = "shared_"
"""What the names of weights of shared experts begin with."""
MERGED = "query_key_value"
BESIDE = ("after_dense_norm", "before_experts_norm", "after_experts_norm")
"""The norms of experts that stand beside a dense layer."""
MTP_NORMS = ("mtp_row_norm", "mtp_token_norm", "norm")
"""The norms of what goes into a layer that predicts a further token, and of what comes out."""
HIDDEN = ("state_heads", "state_head_size")
_GROUPS = ("state_groups", "state_size")
_KEYS = ("delta_key_heads", "delta_key_size")
VALUES = ("delta_heads", "delta_value_size")
CONVOLVED: dict[str, Shapes] = {
    "state_space": {"state_input": HIDDEN, "state_key": _GROUPS, "state_query": _GROUPS},
    "delta": {"delta_query": _KEYS, "delta_key": _KEYS, "delta_value": VALUES},
}
"""What each mixer without attention convolves, with its dimensions."""
_STATES = {
    "state_space": (*HIDDEN, "state_size"),
    "delta": ("delta_heads", "delta_key_size", "delta_value_size"),
}
"""The dimensions of the state that each of them keeps of a sequence."""


def layer_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    """Return the dimensions of a layer's weights, by name."""
    shapes = _own_weights(model, kind)
    return shapes | adapter_weights(model, shapes)


LOW, HIGH = "_lora_a", "_lora_b"
"""What the names of an adapter's matrices end with, behind that of the weight beside which they
stand."""
_ADAPTED: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": (MERGED, "query", "key", "value", "query_gate"),
    "linear_proj": ("output",),
    "linear_fc1": tuple(
        f"{prefix}{name}"
        for prefix in ("", SHARED, "experts_")
        for name in ("gate_up", "gate", "up")
    ),
    "linear_fc2": ("down", f"{SHARED}down", "experts_down"),
}
"""The weights of each module that can have adapters."""


def adapter_weights(model: LanguageModel, shapes: Shapes) -> Shapes:
    """Return the dimensions of the adapters of a layer.

    Beside a frozen product of ``n`` by ``m`` stand one of ``n`` by the rank and one of the rank by
    ``m``. Experts of a layer share theirs, as Megatron-Bridge has it by default. Sources: E. Hu et
    al., LoRA, 2021, section 4.1; Megatron-Bridge 0.6.2, ``share_expert_adapters`` of peft/lora.py.
    """
    if not model.lora_modules:
        return {}
    names = {name for module in model.lora_modules for name in _module_weights(model, module)}
    adapters: Shapes = {}
    for name in shapes:
        if name not in names:
            continue
        own = shapes[name][1:] if name.startswith("experts_") else shapes[name]
        inputs = 2 if name == "output" else 1
        adapters[f"{name}{LOW}"] = (*own[:inputs], "lora_rank")
        adapters[f"{name}{HIGH}"] = ("lora_rank", *own[inputs:])
    return adapters


def _module_weights(model: LanguageModel, module: str) -> tuple[str, ...]:
    """Return the weights of a module."""
    is_other = module == "linear_qkv" and model.latent is not None
    return () if is_other else _ADAPTED[module]


def is_adapter(name: str) -> bool:
    """Return whether a name is that of an adapter's matrix."""
    return name.endswith((LOW, HIGH))


def _own_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    style, routing = model.style, model.routing
    norms = [
        *(["attention_norm"] if style.norms_before and kind.mixer != "none" else []),
        *(["mlp_norm"] if kind.feeds_forward and _has_mlp_norm(style) else []),
        *(["after_attention_norm", "after_mlp_norm"] if style.norms_after else []),
    ]
    shapes: Shapes = {}
    for name in norms:
        shapes |= norm_weights(style, name)
    if style.scales_layers:
        shapes["layer_scale"] = ("one",)
    if style.layer_input:
        shapes["input_gate"] = ("embedding", "layer_input")
        shapes["input_output"] = ("layer_input", "embedding")
        shapes |= norm_weights(style, "after_input_norm")
    shapes |= _mixer_weights(model, kind)
    if not kind.feeds_forward:
        return shapes
    if kind.is_routed and routing is not None:
        shapes |= _routed_weights(model, routing)
        if not routing.style.beside_dense:
            return shapes
    return shapes | feed_forward_weights(style, "mlp", merged=model.merges_products)


def _has_mlp_norm(style: Style) -> bool:
    return style.norms_before and style.before_mlp != "same_norm"


def _mixer_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    match kind.mixer:
        case "attention" if model.latent is not None:
            return _latent_weights(model.style, model.latent)
        case "attention":
            return _grouped_weights(model, kind)
        case "state_space":
            return _state_space_weights(model.state_space)
        case "delta":
            return _DELTA_WEIGHTS
        case "none":
            return {}


def _routed_weights(model: LanguageModel, routing: Routing) -> Shapes:
    style = model.style
    shapes = routing_weights(style, routing)
    if routing.shared_width:
        merged = model.merges_products
        shapes |= feed_forward_weights(style, "shared_mlp", SHARED, merged=merged)
    if routing.style.shared_gate:
        shapes["shared_router"] = ("embedding", "one")
    if routing.latent_size:
        shapes |= {
            "latent_in": ("embedding", "expert_row"),
            "latent_out": ("expert_row", "embedding"),
        }
    if routing.style.beside_dense:
        for name in BESIDE:
            shapes |= norm_weights(style, name)
        shapes["router_scale_norm"] = ("norm",)
    return shapes


def _grouped_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    style = model.style
    shapes: Shapes = {"output": ("heads", "head_size", "embedding")}
    is_shared = kind.keys == "shared"
    if model.merges_products and not is_shared and not style.output_gate and not kind.value_is_key:
        shapes |= {MERGED: ("embedding", "kv_heads", "heads_of_kv_head", "head_size")}
    else:
        shapes |= {
            "query": ("embedding", "heads", "head_size"),
            "key": ("embedding", "kv_heads", "head_size"),
        }
        if not kind.value_is_key:
            shapes["value"] = ("embedding", "kv_heads", "head_size")
    if style.output_gate:
        shapes["query_gate"] = ("embedding", "heads", "head_size")
    if style.attention_biases != "none":
        shapes |= {
            "query_bias": ("heads", "head_size"),
            "key_bias": ("kv_heads", "head_size"),
            "value_bias": ("kv_heads", "head_size"),
        }
    if style.attention_biases == "all":
        shapes["output_bias"] = ("norm",)
    if style.norms_of_heads:
        shapes |= {"query_norm": ("head_size",), "key_norm": ("head_size",)}
    if style.norms_of_rows:
        shapes |= {"query_norm": ("heads", "head_size"), "key_norm": ("kv_heads", "head_size")}
    if style.sinks:
        shapes["sinks_bias"] = ("heads",)
    own = ("key", "value") if is_shared else ()
    return {name: shape for name, shape in shapes.items() if not name.startswith(own)}


def outer_weights(model: LanguageModel) -> Shapes:
    """Return the dimensions of the weights outside of layers."""
    shapes: Shapes = {"embedding": ("vocabulary", "embedding"), **norm_weights(model.style, "norm")}
    if not model.style.tied:
        shapes["head"] = ("embedding", "vocabulary")
    if model.style.head_biases:
        shapes["head_bias"] = ("vocabulary",)
    if model.style.norms_embedding:
        shapes |= norm_weights(model.style, "embedding_norm")
    if model.style.learned_positions:
        shapes["positions"] = ("positions", "embedding")
    if model.style.layer_input:
        shapes["input_table"] = ("input_vocabulary", "layers", "layer_input")
        shapes["input_projection"] = ("embedding", "layers", "layer_input")
        shapes |= norm_weights(model.style, "input_norm", "input_norm")
    return shapes


def mtp_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    """Return the dimensions of a multi-token-prediction layer's weights.

    Its input is a product of the row before and of the next token's embedding, each with a norm;
    the head is the model's, behind a norm of its own. Source: DeepSeek-AI, DeepSeek-V3 Technical
    Report, 2024, section 2.2.
    """
    shapes = layer_weights(model, kind) | {"mtp_join": ("embedding", "two", "row")}
    for name in MTP_NORMS:
        shapes |= norm_weights(model.style, name)
    return shapes


def feed_forward_weights(style: Style, width: str, prefix: str = "", *, merged: bool) -> Shapes:
    """Return the dimensions of a dense layer's weights.

    Where products are ``merged``, the gate and what it multiplies are one.
    """
    inner: Shapes = {"up": (width,)}
    if style.gated:
        inner = {"gate_up": ("two", width)} if merged else {**inner, "gate": (width,)}
    weights: Shapes = {f"{prefix}down": (width, "embedding")}
    weights |= {f"{prefix}{name}": ("embedding", *shape) for name, shape in inner.items()}
    if style.mlp_biases:
        weights |= {f"{prefix}{name}_bias": shape for name, shape in inner.items()}
        weights[f"{prefix}down_bias"] = ("norm",)
    return weights


def routing_weights(style: Style, routing: Routing) -> Shapes:
    """Return the dimensions of the router's and experts' weights."""
    row = "expert_row" if routing.latent_size else "embedding"
    shapes: Shapes = {"router": ("embedding", "choices")}
    if routing.style.corrected:
        shapes["router_bias"] = ("choices",)
    if routing.style.logit_biases:
        shapes["router_logit_bias"] = ("choices",)
    if routing.style.beside_dense:
        shapes["router_expert_scales"] = ("choices",)
    inputs = ("experts_gate", "experts_up") if style.gated else ("experts_up",)
    shapes |= dict.fromkeys(inputs, ("experts", row, "expert_mlp"))
    shapes["experts_down"] = ("experts", "expert_mlp", row)
    if routing.style.biases:
        shapes |= {f"{name}_bias": ("experts", "expert_mlp") for name in inputs}
        shapes["experts_down_bias"] = ("experts", "norm")
    return shapes


def _latent_weights(style: Style, latent: Latent) -> Shapes:
    queries: Shapes = {"query_up": ("embedding", "heads", "query_size")}
    if latent.query_rank:
        queries = {
            "query_down": ("embedding", "query_rank"),
            **norm_weights(style, "query_norm", "query_norm"),
            "query_up": ("query_rank", "heads", "query_size"),
        }
    indexer: Shapes = {}
    if latent.indexed_tokens:
        indexer = {
            "index_query": ("query_rank", "index_heads", "index_size"),
            "index_key": ("embedding", "index_size"),
            "index_norm": ("index_size",),
            "index_norm_bias": ("index_size",),
            "index_share": ("embedding", "index_heads"),
        }
    return {
        **queries,
        "latent_down": ("embedding", "latent"),
        **norm_weights(style, "latent_norm", "latent_norm"),
        "key_up": ("kv_rank", "heads", "head_size"),
        "value_up": ("kv_rank", "heads", "value_size"),
        "output": ("heads", "value_size", "embedding"),
        **indexer,
    }


def norm_weights(style: Style, name: str, dimension: str = "norm") -> Shapes:
    """Return the dimensions of a norm's weights."""
    if not style.norm_weights:
        return {}
    is_biased = style.norm == "layer" and style.norm_biases
    bias: Shapes = {f"{name}_bias": (dimension,)} if is_biased else {}
    return {name: (dimension,), **bias}


def _state_space_weights(space: StateSpace | None) -> Shapes:
    has_biases = space is None or space.convolution_biases
    return {
        "state_gate": ("embedding", *HIDDEN),
        **_convolved_weights("state_space"),
        "state_step": ("embedding", "state_heads"),
        **{
            f"{name}_filter_bias": dimensions
            for name, dimensions in CONVOLVED["state_space"].items()
            if has_biases
        },
        "state_decay": ("state_heads",),
        "state_step_bias": ("state_heads",),
        "state_skip_scale": ("state_heads",),
        "state_norm": HIDDEN,
        "state_output": (*HIDDEN, "embedding"),
    }


def _convolved_weights(mixer: str) -> Shapes:
    """Return the dimensions of convolved products, and their filters."""
    convolved = CONVOLVED[mixer].items()
    return {name: ("embedding", *dimensions) for name, dimensions in convolved} | {
        f"{name}_filter": ("convolution", *dimensions) for name, dimensions in convolved
    }


_DELTA_WEIGHTS: Shapes = {
    **_convolved_weights("delta"),
    "delta_gate": ("embedding", *VALUES),
    "delta_rate": ("embedding", "delta_heads"),
    "delta_step": ("embedding", "delta_heads"),
    "delta_decay": ("delta_heads",),
    "delta_step_bias": ("delta_heads",),
    "delta_norm": ("delta_value_size",),
    "delta_output": (*VALUES, "embedding"),
}


def state_shapes(mixer: str) -> Shapes:
    """Return the dimensions of a mixer's state."""
    earlier: Shapes = {
        f"{name}_rows": ("batch", "earlier_rows", *dimensions)
        for name, dimensions in CONVOLVED[mixer].items()
    }
    return {**earlier, "states": ("batch", *_STATES[mixer])}


def state_elements(model: LanguageModel, kind: LayerKind) -> int:
    """Return how many numbers a layer's state has."""
    return elements_of(model.sizes, _STATES[kind.mixer]) if kind.mixer in _STATES else 0


def is_product(name: str) -> bool:
    """Return whether a named weight multiplies rows."""
    return not any(part in name for part in ("norm", "bias", "filter", "decay", "scale"))


_FED = ("up", "down", "gate", "gate_up")
_DENSE = {*_FED, *(f"{SHARED}{name}" for name in _FED), "latent_in", "latent_out"}


def part_of(name: str) -> ModelPart:
    """Return the model part of a layer's weight.

    >>> [part_of(name) for name in ("query", "shared_up", "experts_down", "router", "mlp_norm")]
    ['attention', 'dense', 'experts', 'other', 'other']
    """
    name = name.removesuffix(LOW).removesuffix(HIGH)
    if not is_product(name) or "router" in name:
        return "other"
    if name.startswith("experts_"):
        return "experts"
    return "dense" if name in _DENSE else "attention"


def elements_of(sizes: dict[str, int], shape: tuple[str, ...]) -> int:
    """Return the elements of an array with named dimensions."""
    return prod(sizes[name] for name in shape)
