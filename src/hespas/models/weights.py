"""The weights of a decoder, with named dimensions.

They are said once: steps are built from them, and `hespas.models.parameters` counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from hespas.models.architecture import LayerKind, Routing, Style
from hespas.models.language import LanguageModel
from hespas.models.quantization import ModelPart

Shapes = dict[str, tuple[str, ...]]
Rows = Iterable[tuple[object, str, str]]
"""Whether a model has a weight, its name, and the names of its dimensions."""
SHARED = "shared_"
"""What the names of weights of shared experts begin with."""
MERGED = "query_key_value"
BESIDE = ("after_dense_norm", "before_experts_norm", "after_experts_norm")
"""The norms of experts that stand beside a dense layer."""
MTP_NORMS = ("mtp_row_norm", "mtp_token_norm", "norm")
"""The norms of what goes into a layer that predicts a further token, and of what comes out."""
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
_FED = ("up", "down", "gate", "gate_up")
_DENSE = {*_FED, *(f"{SHARED}{name}" for name in _FED), "latent_in", "latent_out"}
_STATES = {
    "state_space": "state_heads state_head_size state_size",
    "delta": "delta_heads delta_key_size delta_value_size",
}
"""The dimensions of the state that mixers without attention keep of a sequence."""
CONVOLVED: Mapping[str, Mapping[str, str]] = {
    "state_space": {
        "state_input": "state_heads state_head_size",
        "state_key": "state_groups state_size",
        "state_query": "state_groups state_size",
    },
    "delta": {
        "delta_query": "delta_key_heads delta_key_size",
        "delta_key": "delta_key_heads delta_key_size",
        "delta_value": "delta_heads delta_value_size",
    },
}
"""What each of them convolves, with its dimensions."""


def shaped(rows: Rows) -> Shapes:
    """Return the dimensions of the weights that a model has, by name."""
    return {name: tuple(dimensions.split()) for is_there, name, dimensions in rows if is_there}


def layer_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    """Return the dimensions of a layer's weights, by name."""
    shapes = _norms(model.style, kind) | _mixer_weights(model, kind)
    if kind.feeds_forward:
        shapes |= _fed_weights(model, kind)
    return shapes | adapter_weights(model, shapes)


def adapter_weights(model: LanguageModel, shapes: Shapes) -> Shapes:
    """Return the dimensions of the adapters of a layer.

    Beside a frozen product of ``n`` by ``m`` stand one of ``n`` by the rank and one of the rank by
    ``m``. Experts of a layer share theirs, as Megatron-Bridge has it by default. Sources: E. Hu et
    al., LoRA, 2021, section 4.1; Megatron-Bridge 0.6.2, ``share_expert_adapters`` of peft/lora.py.
    """
    adapters: Shapes = {}
    for module in model.lora_modules:
        # Of latent attention what makes heads has other names.
        is_other = module == "linear_qkv" and model.latent is not None
        for name in () if is_other else _ADAPTED[module]:
            if name in shapes:
                own = shapes[name][1:] if name.startswith("experts_") else shapes[name]
                inputs = 2 if name == "output" else 1
                adapters[f"{name}{LOW}"] = (*own[:inputs], "lora_rank")
                adapters[f"{name}{HIGH}"] = ("lora_rank", *own[inputs:])
    return adapters


def is_adapter(name: str) -> bool:
    """Return whether a name is that of an adapter's matrix."""
    return name.endswith((LOW, HIGH))


def _norms(style: Style, kind: LayerKind) -> Shapes:
    """Return the dimensions of a layer's norms, scale and own input."""
    has_mlp_norm = style.norms_before and style.before_mlp != "same_norm"
    rows = (
        (style.norms_before and kind.mixer != "none", "attention_norm", "norm"),
        (kind.feeds_forward and has_mlp_norm, "mlp_norm", "norm"),
        (style.norms_after, "after_attention_norm", "norm"),
        (style.norms_after, "after_mlp_norm", "norm"),
        (style.layer_input, "after_input_norm", "norm"),
    )
    others = (
        (style.scales_layers, "layer_scale", "one"),
        (style.layer_input, "input_gate", "embedding layer_input"),
        (style.layer_input, "input_output", "layer_input embedding"),
    )
    return norm_weights(style, shaped(rows)) | shaped(others)


def _mixer_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    match kind.mixer:
        case "attention":
            return (_grouped_weights if model.latent is None else _latent_weights)(model, kind)
        case "none":
            return {}
        case mixer:
            space = model.state_space
            convolved = CONVOLVED[mixer].items()
            has_biases = mixer == "state_space" and (space is None or space.convolution_biases)
            rows = [(True, name, f"embedding {shape}") for name, shape in convolved]
            rows += [(True, f"{name}_filter", f"convolution {shape}") for name, shape in convolved]
            rows += [(has_biases, f"{name}_filter_bias", shape) for name, shape in convolved]
            return shaped(rows) | shaped(_RECURRENT[mixer])


_RECURRENT: Mapping[str, Rows] = {
    "state_space": (
        (True, "state_gate", "embedding state_heads state_head_size"),
        (True, "state_step", "embedding state_heads"),
        (True, "state_decay", "state_heads"),
        (True, "state_step_bias", "state_heads"),
        (True, "state_skip_scale", "state_heads"),
        (True, "state_norm", "state_heads state_head_size"),
        (True, "state_output", "state_heads state_head_size embedding"),
    ),
    "delta": (
        (True, "delta_gate", "embedding delta_heads delta_value_size"),
        (True, "delta_rate", "embedding delta_heads"),
        (True, "delta_step", "embedding delta_heads"),
        (True, "delta_decay", "delta_heads"),
        (True, "delta_step_bias", "delta_heads"),
        (True, "delta_norm", "delta_value_size"),
        (True, "delta_output", "delta_heads delta_value_size embedding"),
    ),
}
"""What mixers without attention have beside what they convolve."""


def _grouped_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    style, has_keys = model.style, kind.keys != "shared"
    has_values = has_keys and not kind.value_is_key
    is_merged = model.merges_products and has_values and not style.output_gate
    has_biases = style.attention_biases != "none"
    of_queries, of_keys = "", ""
    if style.norms_of_rows:
        of_queries, of_keys = "heads ", "kv_heads "
    has_norms = style.norms_of_heads or style.norms_of_rows
    return shaped(
        (
            (True, "output", "heads head_size embedding"),
            (is_merged, MERGED, "embedding kv_heads heads_of_kv_head head_size"),
            (not is_merged, "query", "embedding heads head_size"),
            (not is_merged and has_keys, "key", "embedding kv_heads head_size"),
            (not is_merged and has_values, "value", "embedding kv_heads head_size"),
            (style.output_gate, "query_gate", "embedding heads head_size"),
            (has_biases, "query_bias", "heads head_size"),
            (has_biases and has_keys, "key_bias", "kv_heads head_size"),
            (has_biases and has_keys, "value_bias", "kv_heads head_size"),
            (style.attention_biases == "all", "output_bias", "norm"),
            (has_norms, "query_norm", f"{of_queries}head_size"),
            (has_norms and has_keys, "key_norm", f"{of_keys}head_size"),
            (style.sinks, "sinks_bias", "heads"),
        )
    )


RATING = ("index_query", "index_share")
"""The weights that rate tokens; the others of an index make keys for the cache."""


def _latent_weights(model: LanguageModel, _: LayerKind) -> Shapes:
    latent = model.latent
    has_rank = latent is not None and latent.query_rank
    has_index = latent is not None and latent.indexed_tokens
    norms = ((has_rank, "query_norm", "query_norm"), (True, "latent_norm", "latent_norm"))
    low = "query_rank" if has_rank else "embedding"
    return norm_weights(model.style, shaped(norms)) | shaped(
        (
            (has_rank, "query_down", "embedding query_rank"),
            (True, "query_up", f"{low} heads query_size"),
            (True, "latent_down", "embedding latent"),
            (True, "key_up", "kv_rank heads head_size"),
            (True, "value_up", "kv_rank heads value_size"),
            (True, "output", "heads value_size embedding"),
            (has_index, "index_query", "query_rank index_heads index_size"),
            (has_index, "index_key", "embedding index_size"),
            (has_index, "index_norm", "index_size"),
            (has_index, "index_norm_bias", "index_size"),
            (has_index, "index_share", "embedding index_heads"),
        )
    )


def _fed_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    """Return the dimensions of a dense layer, of experts, or of both."""
    style, routing, merged = model.style, model.routing, model.merges_products
    dense = feed_forward_weights(style, "mlp", merged=merged)
    if not kind.is_routed or routing is None:
        return dense
    shapes = routing_weights(style, routing)
    if routing.shared_width:
        shapes |= feed_forward_weights(style, "shared_mlp", SHARED, merged=merged)
    shapes |= shaped(
        (
            (routing.style.shared_gate, "shared_router", "embedding one"),
            (routing.latent_size, "latent_in", "embedding expert_row"),
            (routing.latent_size, "latent_out", "expert_row embedding"),
            (routing.style.beside_dense, "router_scale_norm", "norm"),
        )
    )
    if not routing.style.beside_dense:
        return shapes
    return shapes | norm_weights(style, dict.fromkeys(BESIDE, ("norm",))) | dense


def feed_forward_weights(style: Style, width: str, prefix: str = "", *, merged: bool) -> Shapes:
    """Return the dimensions of a dense layer's weights.

    Where products are ``merged``, the gate and what it multiplies are one.
    """
    is_merged, biases = style.gated and merged, style.mlp_biases
    inner = (
        (is_merged, "gate_up", f"two {width}"),
        (not is_merged, "up", width),
        (style.gated and not is_merged, "gate", width),
    )
    rows: list[tuple[object, str, str]] = [(True, f"{prefix}down", f"{width} embedding")]
    rows += [(is_there, f"{prefix}{name}", f"embedding {own}") for is_there, name, own in inner]
    rows += [(is_there and biases, f"{prefix}{name}_bias", own) for is_there, name, own in inner]
    rows += [(biases, f"{prefix}down_bias", "norm")]
    return shaped(rows)


def routing_weights(style: Style, routing: Routing) -> Shapes:
    """Return the dimensions of the router's and experts' weights."""
    row, own = "expert_row" if routing.latent_size else "embedding", routing.style
    return shaped(
        (
            (True, "router", "embedding choices"),
            (own.corrected, "router_bias", "choices"),
            (own.logit_biases, "router_logit_bias", "choices"),
            (own.beside_dense, "router_expert_scales", "choices"),
            (style.gated, "experts_gate", f"experts {row} expert_mlp"),
            (True, "experts_up", f"experts {row} expert_mlp"),
            (True, "experts_down", f"experts expert_mlp {row}"),
            (own.biases and style.gated, "experts_gate_bias", "experts expert_mlp"),
            (own.biases, "experts_up_bias", "experts expert_mlp"),
            (own.biases, "experts_down_bias", "experts norm"),
        )
    )


def outer_weights(model: LanguageModel) -> Shapes:
    """Return the dimensions of the weights outside of layers."""
    style = model.style
    norms = (
        (True, "norm", "norm"),
        (style.norms_embedding, "embedding_norm", "norm"),
        (style.layer_input, "input_norm", "input_norm"),
    )
    return norm_weights(style, shaped(norms)) | shaped(
        (
            (True, "embedding", "vocabulary embedding"),
            (not style.tied, "head", "embedding vocabulary"),
            (style.head_biases, "head_bias", "vocabulary"),
            (style.learned_positions, "positions", "positions embedding"),
            (style.layer_input, "input_table", "input_vocabulary layers layer_input"),
            (style.layer_input, "input_projection", "embedding layers layer_input"),
        )
    )


def mtp_weights(model: LanguageModel, kind: LayerKind) -> Shapes:
    """Return the dimensions of a multi-token-prediction layer's weights.

    Its input is a product of the row before and of the next token's embedding, each with a norm;
    the head is the model's, behind a norm of its own. Source: DeepSeek-AI, DeepSeek-V3 Technical
    Report, 2024, section 2.2.
    """
    norms = norm_weights(model.style, dict.fromkeys(MTP_NORMS, ("norm",)))
    return layer_weights(model, kind) | norms | {"mtp_join": ("embedding", "two", "row")}


def norm_weights(style: Style, norms: Shapes) -> Shapes:
    """Return the dimensions of norms' weights, with biases if they have them."""
    if not style.norm_weights:
        return {}
    is_biased = style.norm == "layer" and style.norm_biases
    return norms | {f"{name}_bias": shape for name, shape in norms.items() if is_biased}


def state_shapes(mixer: str) -> Shapes:
    """Return the dimensions of a mixer's state."""
    convolved = CONVOLVED[mixer].items()
    rows = [(True, f"{name}_rows", f"batch earlier_rows {shape}") for name, shape in convolved]
    return shaped([*rows, (True, "states", f"batch {_STATES[mixer]}")])


def state_elements(model: LanguageModel, kind: LayerKind) -> int:
    """Return how many numbers a layer's state has."""
    return elements_of(model.sizes, _STATES[kind.mixer].split()) if kind.mixer in _STATES else 0


def is_product(name: str) -> bool:
    """Return whether a named weight multiplies rows."""
    return not any(part in name for part in ("norm", "bias", "filter", "decay", "scale"))


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


def elements_of(sizes: Mapping[str, int], shape: Iterable[str]) -> int:
    """Return the elements of an array with named dimensions."""
    return prod(sizes[name] for name in shape)
