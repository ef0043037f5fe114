"""The weights of a decoder, with named dimensions.

They are said once: steps are built from them, and parameters, FLOPs and memory counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod

from hespas.models.architecture import Latent, LayerKind, Routing, StateSpace, Style
from hespas.models.language import LanguageModel
from hespas.models.model import TYPE_BYTES
from hespas.models.precision import PARTS, ModelPart, Precision
from hespas.models.runs import Training

Shapes = dict[str, tuple[str, ...]]
Arrays = tuple[tuple[str, ...], ...]
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
    """Return the dimensions of the adapters of a layer's weights, by name.

    Beside a frozen product of ``n`` by ``m`` stand one of ``n`` by the rank and one of the rank by
    ``m``. Experts of a layer share theirs, as Megatron-Bridge has it by default. Sources: E. Hu et
    al., LoRA, 2021, section 4.1; Megatron-Bridge 0.6.2, ``share_expert_adapters`` of peft/lora.py.
    """
    if not model.lora_modules:
        return {}
    names = {name for module in model.lora_modules for name in _of_module(model, module)}
    made: Shapes = {}
    for name in shapes:
        if name not in names:
            continue
        own = shapes[name][1:] if name.startswith("experts_") else shapes[name]
        inputs = 2 if name == "output" else 1
        made[f"{name}{LOW}"] = (*own[:inputs], "lora_rank")
        made[f"{name}{HIGH}"] = ("lora_rank", *own[inputs:])
    return made


def _of_module(model: LanguageModel, module: str) -> tuple[str, ...]:
    """Return the weights of a module; latent vectors have products of other names."""
    is_other = module == "linear_qkv" and model.latent is not None
    return () if is_other else _ADAPTED[module]


def is_adapter(name: str) -> bool:
    """Return whether the weights of a name are those of an adapter."""
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
    """Return the dimensions of the weights before and behind the layers, by name."""
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
    """Return the dimensions of the weights of a layer that predicts a further token.

    Its input is a product of the row before and of the next token's embedding, each with a norm;
    the head is the model's, behind a norm of its own. Source: DeepSeek-AI, DeepSeek-V3 Technical
    Report, 2024, section 2.2.
    """
    shapes = layer_weights(model, kind) | {"mtp_join": ("embedding", "two", "row")}
    for name in MTP_NORMS:
        shapes |= norm_weights(model.style, name)
    return shapes


def feed_forward_weights(style: Style, width: str, prefix: str = "", *, merged: bool) -> Shapes:
    """Return the dimensions of the weights; ``width`` names the inner dimension.

    Where products are ``merged``, the gate and what it multiplies are one.
    """
    weights: Shapes = {f"{prefix}down": (width, "embedding")}
    if style.gated and merged:
        weights[f"{prefix}gate_up"] = ("embedding", "two", width)
    else:
        weights[f"{prefix}up"] = ("embedding", width)
        if style.gated:
            weights[f"{prefix}gate"] = ("embedding", width)
    if style.mlp_biases:
        weights |= {f"{prefix}up_bias": (width,), f"{prefix}down_bias": ("norm",)}
    return weights


def routing_weights(style: Style, routing: Routing) -> Shapes:
    """Return the dimensions of the router's weights and of the experts'."""
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
    """Return the products that a mixer convolves, and each channel's filters."""
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
    """Return the dimensions of what a mixer keeps of a sequence, by name."""
    earlier: Shapes = {
        f"{name}_rows": ("batch", "earlier_rows", *dimensions)
        for name, dimensions in CONVOLVED[mixer].items()
    }
    return {**earlier, "states": ("batch", *_STATES[mixer])}


def state_elements(model: LanguageModel, kind: LayerKind) -> int:
    """Return how many numbers a layer's state of a sequence has."""
    return _elements(model.sizes, _STATES[kind.mixer]) if kind.mixer in _STATES else 0


def parameters(model: LanguageModel) -> int:
    """Return how many weights a model has.

    >>> from hespas.models.catalogue import model_named
    >>> parameters(model_named("llama3-8b-decode").settings)
    8030261248
    """
    outer = sum(_elements(model.sizes, shape) for shape in outer_weights(model).values())
    return outer + _in_layers(model, lambda _: True)


def active_parameters(model: LanguageModel) -> int:
    """Return how many weights one token meets, chosen experts included."""
    routing, experts = model.routing, expert_parameters(model)
    resting = 0 if routing is None else experts - experts * routing.chosen // routing.experts
    return parameters(model) - resting


def expert_parameters(model: LanguageModel) -> int:
    """Return how many of the weights are those of experts that tokens choose."""
    return _in_layers(model, lambda name: name.startswith("experts_") and not is_adapter(name))


def trained_parameters(model: LanguageModel) -> int:
    """Return how many weights a step of training changes: those of adapters alone, or all.

    >>> from hespas.models.catalogue import model_named
    >>> llama = model_named("llama3-8b").with_options({"lora_rank": "16"})
    >>> per_layer = 4096 + 4096 + 2 * (4096 + 1024) + 4096 + 4096 + 3 * (4096 + 14336)
    >>> trained_parameters(llama) == 32 * 16 * per_layer
    True
    """
    return _in_layers(model, is_adapter) if model.lora_modules else parameters(model)


def _in_layers(model: LanguageModel, counts: Callable[[str], bool]) -> int:
    """Return how many weights the layers have whose names ``counts`` accepts."""
    layers = Counter((kind, layer_weights) for kind in model.kinds)
    layers.update((kind, mtp_weights) for kind in model.mtp_kinds)
    total = 0
    for (kind, weights), count in layers.items():
        sizes = {**model.sizes, **model.sizes_of(kind)}
        shapes = weights(model, kind).items()
        own = sum(_elements(sizes, shape) for name, shape in shapes if counts(name))
        total += count * own
    return total


def layer_products(
    model: LanguageModel, kind: LayerKind, *, of_adapters_alone: bool = False
) -> int:
    """Return how many weights a token meets in a layer, chosen experts included."""
    sizes, routing = {**model.sizes, **model.sizes_of(kind)}, model.routing
    total = 0
    for name, shape in layer_weights(model, kind).items():
        if of_adapters_alone and not is_adapter(name):
            continue
        elements = _elements(sizes, shape)
        if name.startswith("experts_") and routing is not None:
            # Each chosen expert meets the adapter that all experts share.
            among = 1 if is_adapter(name) else routing.experts
            elements = elements * routing.chosen // among
        total += elements if len(shape) > 1 and is_product(name) else 0
    return total


def is_product(name: str) -> bool:
    """Return whether the weights of a name are those of a product of rows."""
    return not any(other in name for other in ("norm", "bias", "filter", "decay", "scale"))


_FED = ("up", "down", "gate", "gate_up")
_DENSE = {*_FED, *(f"{SHARED}{name}" for name in _FED), "latent_in", "latent_out"}


def part_of(name: str) -> ModelPart:
    """Return the model part of a layer's weight, by its name.

    >>> [part_of(name) for name in ("query", "shared_up", "experts_down", "router", "mlp_norm")]
    ['attention', 'dense', 'experts', 'other', 'other']
    """
    name = name.removesuffix(LOW).removesuffix(HIGH)
    if not is_product(name) or "router" in name:
        return "other"
    if name.startswith("experts_"):
        return "experts"
    return "dense" if name in _DENSE else "attention"


def parameters_by_part(model: LanguageModel) -> dict[ModelPart, int]:
    """Return how many weights each part of a model has."""
    outer = sum(_elements(model.sizes, shape) for shape in outer_weights(model).values())
    counts: dict[ModelPart, int] = dict.fromkeys(PARTS, 0)
    counts["other"] = outer
    for kind, layers in Counter(model.kinds).items():
        sizes = {**model.sizes, **model.sizes_of(kind)}
        for name, shape in layer_weights(model, kind).items():
            counts[part_of(name)] += layers * _elements(sizes, shape)
    return counts


def weight_bytes(model: LanguageModel, precision: Precision) -> float:
    """Return the bytes of a model's weights, with their scales."""
    return sum(weight_bytes_by_part(model, precision).values())


def weight_bytes_by_part(model: LanguageModel, precision: Precision) -> dict[ModelPart, float]:
    """Return the bytes of the weights of each part, with their scales."""
    counts = parameters_by_part(model).items()
    return {part: count * precision.of(part).bits_of_weight / 8 for part, count in counts}


def local_weights(
    model: LanguageModel, axes: Mapping[str, tuple[str, ...]], *, frozen: bool = False
) -> int:
    """Return one device's elements of trained or ``frozen`` weights, which ``axes`` divide."""
    sizes = model.sizes

    def counts(name: str) -> bool:
        return (bool(model.lora_modules) and not is_adapter(name)) == frozen

    def local(shapes: Shapes, sizes: Mapping[str, int]) -> int:
        named = shapes.items()
        return sum(
            local_elements(model, shape, sizes, axes) for name, shape in named if counts(name)
        )

    total = local(outer_weights(model), sizes)
    for kind, count in Counter(model.kinds).items():
        own = {**sizes, **model.sizes_of(kind)}
        total += count * local(layer_weights(model, kind), own)
    return total


def _elements(sizes: dict[str, int], shape: tuple[str, ...]) -> int:
    return prod(sizes[name] for name in shape)


def least_kept_bytes(model: LanguageModel) -> int:
    """Return the least bytes that a layer keeps of a micro-batch per device.

    It is what goes into the layer, and what ``remat`` keeps beside: query, key, value, and the
    products before the activation. Of experts only the shared ones are counted, and of a layer that
    keeps everything, or where layers differ, nothing more than its input.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("llama3-8b").settings
    >>> least_kept_bytes(settings) == 4096 * (4096 + 6144 + 2 * 14336) * 2
    True
    """
    axes = model.axes
    sizes = model.sizes
    elements = sum(local_elements(model, names, sizes, axes) for names in _arrays(model))
    return elements * TYPE_BYTES[model.dtype]


def _arrays(model: LanguageModel) -> Arrays:
    into, run = ("batch", "norm_sequence", "row"), model.run
    is_plain = all(kind.mixer == "attention" and kind.feeds_forward for kind in model.kinds)
    is_even = not any(kind.head_size or kind.kv_heads or kind.mlp for kind in model.kinds)
    if not isinstance(run, Training) or run.remat != _KEEPS_PRODUCTS or not (is_plain and is_even):
        return (into,)
    arrays: Arrays = (into, *(_PROJECTIONS if model.latent is None else _LATENT))
    if model.routing is not None and not model.routing.shared_width:
        return arrays
    width = _WIDTH if model.routing is None else _SHARED_WIDTH
    return (*arrays, width, width) if model.style.gated else (*arrays, width)


def local_elements(
    model: LanguageModel,
    names: tuple[str, ...],
    sizes: Mapping[str, int],
    axes: Mapping[str, tuple[str, ...]],
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
    return -(-prod(sizes.get(name, 1) for name in names) // parts)
