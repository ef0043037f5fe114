"""Put the weights of published models, by transformers' names, into hespas' own programs.

`logits` is what a language model of a configuration makes of tokens, in f32 on this computer:
the forward pass of the training step that hespas predicts. Its experts drop no tokens.
"""

# JAX's own types are only partly known.
# pyright: basic
# ruff: noqa: PLC0415

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SHIFTED_NORMS = {"gemma", "gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text"}
"""Types whose norms multiply by 1 more than their weights."""
INTERLEAVED = {
    *("llama4_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite"),
    *("cohere", "cohere2", "ernie4_5", "glm", "glm4", "gptj", "helium"),
}
"""Types whose rotary positions turn neighbours, where hespas pairs halves."""
RENAMED = (
    ("transformer.wte", "model.embed_tokens"),
    ("transformer.word_embeddings.", "model.embed_tokens."),
    ("transformer.ln_f", "model.norm"),
    ("model.final_layernorm", "model.norm"),
    ("transformer.h.", "model.layers."),
    ("backbone.layers.", "model.layers."),
    (".self_attention.dense.", ".self_attn.o_proj."),
    (".self_attn.dense.", ".self_attn.o_proj."),
    (".attn.out_proj.", ".self_attn.o_proj."),
    (".attn.", ".self_attn."),
    (".query_layernorm.", ".q_norm."),
    (".key_layernorm.", ".k_norm."),
    (".ln_1.", ".input_layernorm."),
    (".pre_ff_layernorm.", ".post_attention_layernorm."),
    (".feed_forward.", ".mlp."),
    *((f".mlp.{name}.", ".mlp.up_proj.") for name in ("fc1", "fc_in", "dense_h_to_4h")),
    *((f".mlp.{name}.", ".mlp.down_proj.") for name in ("fc2", "fc_out", "dense_4h_to_h")),
)
"""Parts of names of older models, and what newer ones call them."""
NORMS = {
    "attention_norm": ("input_layernorm", "norm", "norm_1"),
    "after_attention_norm": ("post_self_attn_layernorm", "post_attention_layernorm"),
    "mlp_norm": ("pre_feedforward_layernorm", "post_attention_layernorm", "norm", "norm_2"),
    "after_mlp_norm": ("post_feedforward_layernorm", "post_mlp_layernorm"),
    "after_dense_norm": ("post_feedforward_layernorm_1",),
    "before_experts_norm": ("pre_feedforward_layernorm_2",),
    "after_experts_norm": ("post_feedforward_layernorm_2",),
    "after_input_norm": ("post_per_layer_input_norm",),
}
"""The names of norms in a layer: the first that there is."""


_ONES = re.compile(
    r"(norm\w*\.weight|norm_\d\.weight|layer_scalar|scale|\.D|running_var)$", re.IGNORECASE
)
"""Names of tensors that multiply what passes."""


def draw(name: str, shape: tuple[int, ...]) -> Array:
    """Draw a tensor by its name: matrices of variance 1 / fan-in, vectors near 0 or 1."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.standard_normal(shape)
    if name.endswith("A_log"):
        values = np.log1p(15 * random.random(shape))
    elif len(shape) > 1:
        values /= (prod(shape[1:]) if len(shape) == 4 else shape[-1]) ** 0.5
    elif not name.endswith("dt_bias"):
        values = 0.1 * values + (1 if _ONES.search(name) else 0)
    return values.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The tensors of one layer, by the end of their names, and the sizes of its dimensions."""

    kind: str
    tensors: Mapping[str, Array]
    sizes: Mapping[str, int]

    def first(self, *names: str) -> Array | None:
        """Return the first tensor that there is."""
        return next((self.tensors[name] for name in names if name in self.tensors), None)

    def one(self, *names: str) -> Array:
        """Return the only tensor whose name ends like this; `LookupError` where there is none."""
        for name in names:
            for key, tensor in self.tensors.items():
                if key == name or key.endswith(f".{name}"):
                    return tensor
        raise LookupError(f"no tensor {names[0]} among {', '.join(self.tensors)}")

    def norm(self, *names: str) -> Array:
        """Return a norm's weights."""
        weight = self.one(*names)
        return weight + 1 if self.kind in SHIFTED_NORMS else weight


def _turned(rows: Array, kind: str, turning: int = 0) -> Array:
    """Order the rows of a head, its second last dimension, for halves that are paired.

    Gemma 4 pairs the halves of a whole head, of which only the first rows of each turn.
    """
    size, half = rows.shape[-2], turning // 2
    if kind in INTERLEAVED:
        turned, still = np.split(rows, (turning or size,), -2)
        return np.concatenate((turned[..., ::2, :], turned[..., 1::2, :], still), -2)
    if kind != "gemma4_text" or not 0 < turning < size:
        return rows
    first, second = (np.split(half_rows, (half,), -2) for half_rows in np.split(rows, 2, -2))
    return np.concatenate((first[0], second[0], first[1], second[1]), -2)


def renamed(tensors: Mapping[str, Array], heads: int) -> dict[str, Array]:
    """Return tensors by the names of newer models, with queries, keys and values apart."""
    made: dict[str, Array] = {}
    for key, tensor in tensors.items():
        name = key
        for old, new in RENAMED:
            name = name.replace(old, new)
        if ".self_attention.query_key_value." not in name:
            made[name] = tensor
            continue
        # Of each head a query, a key and a value stand one behind the other.
        parts = np.split(tensor.reshape(heads, 3, -1, *tensor.shape[1:]), 3, 1)
        for letter, part in zip("qkv", parts, strict=True):
            own = name.replace("self_attention.query_key_value", f"self_attn.{letter}_proj")
            made[own] = part.reshape(-1, *tensor.shape[1:])
    return made


def _split(rows: Array, *counts: int) -> list[Array]:
    return np.split(rows, np.cumsum(counts)[:-1], 0)


def _heads(rows: Array, size: int) -> Array:
    """Return (embedding, heads, size) of (heads x size, embedding)."""
    return rows.reshape(-1, size, rows.shape[-1]).transpose(2, 0, 1)


def _attention(layer: Layer) -> dict[str, Array]:
    size, heads, turning = (layer.sizes[name] for name in ("head_size", "heads", "turning"))
    merged = layer.first("self_attn.qkv_proj.weight", "self_attn.Wqkv.weight")
    if merged is not None:
        others = layer.sizes["kv_heads"] * size
        query, key, value = _split(merged, heads * size, others, others)
    else:
        query, key = (
            layer.one("q_proj.weight"),
            layer.first(*(f"{part}.k_proj.weight" for part in ("self_attn", "mixer"))),
        )
        value = layer.first("self_attn.v_proj.weight", "mixer.v_proj.weight")
    made: dict[str, Array] = {}
    if layer.kind in {"qwen3_next", "qwen3_5_text"}:
        both = query.reshape(heads, 2, size, -1)
        query, gate = (both[:, index].reshape(heads * size, -1) for index in (0, 1))
        made["query_gate"] = _heads(gate, size)
    for name, rows in (("query", query), *([] if key is None else [("key", key)])):
        by_head = rows.reshape(-1, size, rows.shape[-1])
        made[name] = _turned(by_head, layer.kind, turning).transpose(2, 0, 1)
    output = layer.one("o_proj.weight", "out_proj.weight")
    by_head = output.reshape(len(output), heads, size).transpose(1, 2, 0)
    if value is None and key is None:
        return made | _beside(layer) | {"output": by_head}
    if value is None:
        # Values are keys, in the same order.
        return made | _beside(layer) | {"output": _turned(by_head, layer.kind, turning)}
    return made | _beside(layer) | {"output": by_head, "value": _heads(value, size)}


def _beside(layer: Layer) -> dict[str, Array]:
    """Return the biases and norms of attention, and its sinks."""
    size, turning = layer.sizes["head_size"], layer.sizes["turning"]
    made: dict[str, Array] = {}
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        bias = layer.first(f"self_attn.{letter}_proj.bias")
        if bias is not None:
            by_head = bias.reshape(-1, size, 1)
            turned = by_head if letter == "v" else _turned(by_head, layer.kind, turning)
            made[f"{name}_bias"] = turned[..., 0]
        if layer.first(f"self_attn.{letter}_norm.weight") is not None:
            norm = layer.norm(f"self_attn.{letter}_norm.weight")
            norm = norm if len(norm) == size else norm.reshape(-1, size)
            made[f"{name}_norm"] = _turned(norm[..., None], layer.kind, turning)[..., 0]
    for name, own in (("self_attn.o_proj.bias", "output_bias"), ("self_attn.sinks", "sinks_bias")):
        if name in layer.tensors:
            made[own] = layer.tensors[name]
    return made


def _latent(layer: Layer) -> dict[str, Array]:
    sizes, kind = layer.sizes, layer.kind
    heads, size, rank = sizes["heads"], sizes["head_size"], sizes["kv_rank"]

    def queries(rows: Array) -> Array:
        by_head = rows.reshape(heads, -1, rows.shape[-1])
        turned = _turned(by_head[:, size:], kind)
        return np.concatenate((by_head[:, :size], turned), 1).transpose(2, 0, 1)

    down = layer.one("kv_a_proj_with_mqa.weight")
    up = layer.one("kv_b_proj.weight").reshape(heads, -1, rank)
    output = layer.one("o_proj.weight")
    made = {
        "latent_down": np.concatenate((down[:rank], _turned(down[rank:], kind))).T,
        "latent_norm": layer.norm("kv_a_layernorm.weight"),
        "key_up": up[:, :size].transpose(2, 0, 1),
        "value_up": up[:, size:].transpose(2, 0, 1),
        "output": output.reshape(len(output), heads, -1).transpose(1, 2, 0),
    }
    if not sizes["query_rank"]:
        return made | {"query_up": queries(layer.one("q_proj.weight"))}
    made |= {
        "query_down": layer.one("q_a_proj.weight").T,
        "query_norm": layer.norm("q_a_layernorm.weight"),
        "query_up": queries(layer.one("q_b_proj.weight")),
    }
    if sizes["index_size"]:
        made |= {
            "index_query": _heads(layer.one("indexer.wq_b.weight"), sizes["index_size"]),
            "index_key": layer.one("indexer.wk.weight").T,
            "index_norm": layer.one("indexer.k_norm.weight"),
            "index_norm_bias": layer.one("indexer.k_norm.bias"),
            "index_share": layer.one("indexer.weights_proj.weight").T,
        }
    return made


def _state_space(layer: Layer) -> dict[str, Array]:
    sizes = layer.sizes
    heads, size = sizes["state_heads"], sizes["state_head_size"]
    inner, keys = heads * size, sizes["state_groups"] * sizes["state_size"]
    gate, value, key, query, step = _split(
        layer.one("in_proj.weight"), inner, inner, keys, keys, heads
    )
    output = layer.one("out_proj.weight")
    made = {
        "state_gate": _heads(gate, size),
        "state_step": step.T,
        "state_decay": layer.one("A_log"),
        "state_step_bias": layer.one("dt_bias"),
        "state_skip_scale": layer.one("D"),
        "state_norm": layer.one("mixer.norm.weight", "mamba.norm.weight").reshape(heads, size),
        "state_output": output.reshape(len(output), heads, size).transpose(1, 2, 0),
    }
    lengths = {"state_input": size, "state_key": sizes["state_size"]}
    lengths["state_query"] = lengths["state_key"]
    parts = dict(zip(lengths, (value, key, query), strict=True))
    filters = _split(layer.one("conv1d.weight")[:, 0], inner, keys, keys)
    biases = _split(layer.one("conv1d.bias"), inner, keys, keys)
    for (name, rows), taps, bias in zip(parts.items(), filters, biases, strict=True):
        made[name] = _heads(rows, lengths[name])
        made[f"{name}_filter"] = _heads(taps, lengths[name])
        made[f"{name}_filter_bias"] = bias.reshape(-1, lengths[name])
    return made


def _delta(layer: Layer) -> dict[str, Array]:
    sizes = layer.sizes
    groups, heads = sizes["delta_key_heads"], sizes["delta_heads"]
    size, length = sizes["delta_key_size"], sizes["delta_value_size"]
    values = heads // groups * length
    if "linear_attn.in_proj_qkv.weight" in layer.tensors:
        keys = groups * size
        query, key, value = _split(layer.one("in_proj_qkv.weight"), keys, keys, heads * length)
        gate, rate, step = (layer.one(f"in_proj_{letter}.weight") for letter in "zba")
    else:
        rows = layer.one("in_proj_qkvz.weight")
        of_groups = rows.reshape(groups, -1, rows.shape[-1]).swapaxes(0, 1)
        query, key, value, gate = (
            part.swapaxes(0, 1).reshape(-1, rows.shape[-1])
            for part in _split(of_groups, size, size, values, values)
        )
        both = layer.one("in_proj_ba.weight").reshape(groups, 2, heads // groups, -1)
        rate, step = (both[:, index].reshape(heads, -1) for index in (0, 1))
    output = layer.one("out_proj.weight")
    made = {
        "delta_gate": _heads(gate, length),
        "delta_rate": rate.T,
        "delta_step": step.T,
        "delta_decay": layer.one("A_log"),
        "delta_step_bias": layer.one("dt_bias"),
        "delta_norm": layer.one("linear_attn.norm.weight"),
        "delta_output": output.reshape(len(output), heads, length).transpose(1, 2, 0),
    }
    taps = _split(layer.one("conv1d.weight")[:, 0], groups * size, groups * size, heads * length)
    parts = {"query": (query, size), "key": (key, size), "value": (value, length)}
    for (name, (part, each)), tap in zip(parts.items(), taps, strict=True):
        made |= {f"delta_{name}": _heads(part, each), f"delta_{name}_filter": _heads(tap, each)}
    return made


def _dense(layer: Layer, prefix: str = "") -> dict[str, Array]:
    """Return a feed-forward: the layer's own, or the shared experts' with a prefix."""
    own = {
        key: rows
        for key, rows in layer.tensors.items()
        if "shared_exp" in key or "experts" not in key
        if ("shared_exp" in key) == bool(prefix)
    }
    part = replace(layer, tensors=own)
    if "shared_mlp.input_linear.weight" in layer.tensors:
        gate, up = np.split(layer.tensors["shared_mlp.input_linear.weight"], 2)
        down = layer.tensors["shared_mlp.output_linear.weight"]
        return {f"{prefix}gate": gate.T, f"{prefix}up": up.T, f"{prefix}down": down.T}
    both = part.first("mlp.gate_up_proj.weight")
    made = {f"{prefix}down": part.one("down_proj.weight").T}
    if both is not None:
        gate, up = np.split(both, 2)
        return made | {f"{prefix}gate": gate.T, f"{prefix}up": up.T}
    made[f"{prefix}up"] = part.one("up_proj.weight").T
    for name in ("up", "down"):
        if f"mlp.{name}_proj.bias" in part.tensors:
            made[f"{prefix}{name}_bias"] = part.tensors[f"mlp.{name}_proj.bias"]
    if any(key.endswith("gate_proj.weight") for key in part.tensors):
        made[f"{prefix}gate"] = part.one("gate_proj.weight").T
    return made


def _experts(layer: Layer) -> dict[str, Array]:
    """Return the router, the experts and what all tokens pass beside them."""
    router = layer.one("mlp.gate.weight", "router.weight", "router.proj.weight", "gate.weight")
    made = {"router": router.T}
    for name, own in (
        ("e_score_correction_bias", "router_bias"),
        ("router.bias", "router_logit_bias"),
        ("router.per_expert_scale", "router_expert_scales"),
        ("router.scale", "router_scale_norm"),
    ):
        for key, tensor in layer.tensors.items():
            if key.endswith(name):
                made[own] = tensor
    down = layer.one("experts.down_proj")
    is_stored_as_used = layer.kind in {"llama4_text", "gpt_oss"}
    made["experts_down"] = down if is_stored_as_used else down.swapaxes(1, 2)
    if any(key.endswith("experts.up_proj") for key in layer.tensors):
        made["experts_up"] = layer.one("experts.up_proj").swapaxes(1, 2)
    else:
        both = layer.one("experts.gate_up_proj")
        both = both if is_stored_as_used else both.swapaxes(1, 2)
        halves = (both[..., ::2], both[..., 1::2])
        gate, up = halves if layer.kind == "gpt_oss" else np.split(both, 2, -1)
        made |= {"experts_gate": gate, "experts_up": up}
    if layer.kind == "gpt_oss":
        bias = layer.one("experts.gate_up_proj_bias")
        made |= {"experts_gate_bias": bias[:, ::2], "experts_up_bias": bias[:, 1::2]}
        made["experts_down_bias"] = layer.one("experts.down_proj_bias")
    if any("shared_expert" in key or "shared_mlp" in key for key in layer.tensors):
        made |= _dense(layer, "shared_")
    if "mlp.shared_expert_gate.weight" in layer.tensors:
        made["shared_router"] = layer.tensors["mlp.shared_expert_gate.weight"].T
    if "mixer.fc1_latent_proj.weight" in layer.tensors:
        made["latent_in"] = layer.tensors["mixer.fc1_latent_proj.weight"].T
        made["latent_out"] = layer.tensors["mixer.fc2_latent_proj.weight"].T
    return made


def layer_weights(layer: Layer, kind: Any, names: set[str]) -> dict[str, Array]:
    """Return the weights of a layer by hespas' names, which are given."""
    mixers = {"state_space": _state_space, "delta": _delta, "none": lambda _: {}}
    attention = _latent if "latent_down" in names else _attention
    made = mixers.get(kind.mixer, attention)(layer)
    if "experts_down" in names:
        made |= _experts(layer)
    if "down" in names:
        made |= _dense(layer)
    for name in names & set(NORMS):
        found = next(each for each in NORMS[name] if f"{each}.weight" in layer.tensors)
        made[name] = layer.norm(f"{found}.weight")
        if f"{name}_bias" in names:
            made[f"{name}_bias"] = layer.one(f"{found}.bias")
    if "layer_scale" in names:
        made["layer_scale"] = layer.one("layer_scalar")
    if "input_gate" in names:
        made["input_gate"] = layer.one("per_layer_input_gate.weight").T
        made["input_output"] = layer.one("per_layer_projection.weight").T
    return made


def logits(fields: Mapping[str, Any], tensors: Mapping[str, Array], tokens: Array) -> Array:
    """Return the logits of (batch, sequence) tokens, in f32, of a configuration's fields."""
    import jax

    from hespas.models.configuration import configured
    from hespas.models.model import MeshAxes
    from hespas.models.runs import Training
    from hespas.models.steps.sharding import Divided
    from hespas.models.steps.transformer import Transformer

    kind = fields["model_type"]
    model: Any = configured(fields, location="config.json", name="small").model
    run = Training(
        mesh=MeshAxes(axes=(("data", 1),)),
        batch=tokens.shape[0],
        sequence=tokens.shape[1],
        attention="unfused",
        remat="none",
        dtype="f32",
    )
    routing = model.routing and replace(model.routing, dropless=True)
    model = replace(model, run=run, routing=routing)
    decoder = Transformer(
        model=model, divided=Divided(mesh=run.mesh, sizes=model.sizes, axes=model.axes)
    )
    expected = decoder.weights("float32")
    tensors = renamed(tensors, model.sizes_of_layers.heads)
    outer = Layer(kind=kind, tensors=tensors, sizes=model.sizes)
    weights: dict[str, Any] = {
        "embedding": outer.one("embed_tokens.weight", "embeddings.weight"),
    }
    if "norm" in expected:
        weights["norm"] = outer.norm(
            "model.norm.weight" if "model.norm.weight" in tensors else "norm_f.weight"
        )
    if "head" in expected:
        weights["head"] = tensors["lm_head.weight"].T
    for name, own in (
        ("head_bias", "lm_head.bias"),
        ("norm_bias", "model.norm.bias"),
        ("embedding_norm", "transformer.word_embeddings_layernorm.weight"),
        ("embedding_norm_bias", "transformer.word_embeddings_layernorm.bias"),
    ):
        if name in expected:
            weights[name] = tensors[own]
    if "input_table" in expected:
        sizes = expected["input_table"].shape
        rows = outer.one("per_layer_model_projection.weight")
        weights["input_table"] = outer.one("embed_tokens_per_layer.weight").reshape(sizes)
        weights["input_projection"] = rows.T.reshape(-1, *sizes[1:])
        weights["input_norm"] = outer.norm("per_layer_projection_norm.weight")
    layers: list[dict[str, Array]] = []
    for index, kind_of_layer in enumerate(model.kinds):
        begin = tuple(f"{name}.{index}." for name in ("model.layers", "transformer.blocks"))
        own = {
            key.removeprefix(begin[0]).removeprefix(begin[1]): value
            for key, value in tensors.items()
            if key.startswith(begin)
        }
        sizes = model.sizes | model.sizes_of(kind_of_layer)
        sizes["turning"] = model.rotation(kind_of_layer)[0]
        layer = Layer(kind=kind, tensors=own, sizes=sizes)
        layers.append(layer_weights(layer, kind_of_layer, set(expected["layers_first"][index])))
    weights["layers_first"] = layers
    _check(weights, expected)
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    batch = {"inputs": tokens, "positions": positions}

    def forward(weights: Any, batch: Any) -> Any:
        x = decoder.through_layers(decoder.embedded(weights, batch), weights, batch)
        return decoder.logits(x, weights)

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.default_matmul_precision("highest"), jax.set_mesh(mesh):
        return np.asarray(jax.jit(forward)(weights, batch))


def _check(weights: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise `ValueError` where names or shapes differ from those of hespas' program."""
    for name, leaf in expected.items():
        if isinstance(leaf, list):
            for own, theirs in zip(weights[name], leaf, strict=True):
                _check(own, theirs)
        elif name not in weights:
            raise ValueError(f"{name} {leaf.shape} has no tensor")
        elif weights[name].shape != leaf.shape:
            raise ValueError(f"{name} is {weights[name].shape}, and {leaf.shape} is expected")
    for name in weights:
        if name not in expected:
            raise ValueError(f"{name} is of no use")
