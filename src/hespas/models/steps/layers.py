"""A decoder's layer: a mixer and a feed-forward, with norms.

Its pieces are those of `hespas.models.steps.attention`, `latent`, `recurrent`, `feed_forward` and
`routing`, with the norms of `norms`. `hespas.models.steps.transformer` puts layers together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.architecture import Routing
from hespas.models.runs import Decode
from hespas.models.steps.attention import cached_attention, causal_attention, fused_over_cache
from hespas.models.steps.cache import Cache
from hespas.models.steps.latent import latent_attention
from hespas.models.steps.layer import Layer, Weights, activated, feed_forward
from hespas.models.steps.norms import apart, normalised, plainly_normalised, rotated, scaled
from hespas.models.steps.products import product
from hespas.models.steps.recurrent import through_delta, through_state_space
from hespas.models.steps.remat import run_again
from hespas.models.steps.routing import through_experts
from hespas.models.weights import BESIDE, MERGED, SHARED

_PROJECTED = ("query", "key", "value")
INPUT = "layer_input_scale"
"""Stands beside a layer's weights: its own input, which multiplies a gate."""


class LayerOutput(NamedTuple):
    """A layer's rows and cache, and keys for later layers."""

    x: jax.Array
    cache: Cache | None
    keys: tuple[jax.Array, jax.Array] | None = None


def through_layer(layer: Layer, x: jax.Array, cache: Cache | None) -> LayerOutput:
    """Apply a layer to rows, and to its cache."""
    style, kind, keys = layer.style, layer.kind, None
    if kind.mixer != "none":
        with jax.named_scope("norm"):
            hidden = layer.normed_whole(layer.between(x), "attention_norm")
        output, cache, keys = _mixed(layer, hidden, cache)
        if style.before_mlp != "yes":
            own = hidden if style.before_mlp == "same_norm" else None
            output = output + _fed_forward(layer, x, own)
        x = _residual_sum(layer, x, output, "after_attention_norm")
    if kind.feeds_forward and style.before_mlp == "yes":
        x = _residual_sum(layer, x, _fed_forward(layer, x, None), "after_mlp_norm")
    if style.layer_input:
        with jax.named_scope("layer_input"):
            gate = activated(style, layer.product("bse,ep->bsp", x, "input_gate"))
            output = layer.product("bsp,pe->bse", gate * layer.weights[INPUT], "input_output")
        x = _residual_sum(layer, x, layer.between(output), "after_input_norm")
    if style.scales_layers:
        x = x * layer.weights["layer_scale"].astype(x.dtype)
    return LayerOutput(layer.between(x), cache, keys)


def _residual_sum(layer: Layer, x: jax.Array, output: jax.Array, norm: str) -> jax.Array:
    """Add what a piece makes, normalised before where the style says so."""
    style = layer.style
    if style.norms_after:
        with jax.named_scope("norm"):
            output = layer.normed(output, norm)
    scale = style.residual_scale
    return apart(style, x + (output if scale == 1 else output * jnp.asarray(scale, output.dtype)))


def _fed_forward(layer: Layer, x: jax.Array, hidden: jax.Array | None) -> jax.Array:
    """Apply the feed-forward to ``hidden``, or to normalised rows.

    Experts that lie whole on the devices of ``tp`` take the rows as those divide them.
    """
    model, kind = layer.model, layer.kind
    routing = model.routing if kind.is_routed else None
    if hidden is None:
        with jax.named_scope("norm"):
            is_divided = routing is not None and "tp" in routing.axes
            norm = Layer.normed_apart if is_divided else Layer.normed_whole
            hidden = norm(layer, x, "mlp_norm")

    def through(x: jax.Array, hidden: jax.Array, weights: Weights) -> jax.Array:
        own = replace(layer, weights=weights)
        if routing is None:
            return feed_forward(own, hidden)
        if routing.style.beside_dense:
            return _through_dense_and_experts(own, x, hidden)
        return _through_experts(own, routing, hidden)

    is_again = ("mlp" if routing is None else "moe") in model.training.recomputed
    with jax.named_scope("mlp"):
        fed = (run_again(through) if is_again else through)(x, hidden, layer.weights)
        return checkpoint_name(layer.between(fed), "mlp_down")


def _through_experts(layer: Layer, routing: Routing, x: jax.Array) -> jax.Array:
    sent = layer.product("bse,el->bsl", x, "latent_in") if routing.latent_size else None
    output = through_experts(layer, x, sent)
    if routing.latent_size:
        output = layer.product("bsl,le->bse", output, "latent_out")
    if not routing.shared_width:
        return output
    with jax.named_scope("shared"):
        if "tp" in routing.axes:
            x = layer.into_product(x)
        shared = feed_forward(layer, x, SHARED)
        if routing.style.shared_gate:
            shared *= jax.nn.sigmoid(layer.product("bse,eo->bso", x, "shared_router"))
        return output + shared


def _through_dense_and_experts(layer: Layer, x: jax.Array, hidden: jax.Array) -> jax.Array:
    after_dense, before_experts, after_experts = BESIDE
    dense = layer.normed(feed_forward(layer, hidden), after_dense)
    scores = plainly_normalised(layer.style, x) * layer.weights["router_scale_norm"].astype(x.dtype)
    scores = scores * jnp.asarray(x.shape[-1] ** -0.5, x.dtype)
    sent = layer.normed(x, before_experts)
    return dense + layer.normed(through_experts(layer, scores, sent), after_experts)


def _mixed(layer: Layer, hidden: jax.Array, cache: Cache | None) -> LayerOutput:
    """Apply the mixer; return rows, cache, and kept keys."""
    if layer.kind.mixer != "attention":
        through = through_state_space if layer.kind.mixer == "state_space" else through_delta
        output, cache = through(layer, hidden, cache)
        output = layer.between(output)
        return LayerOutput(checkpoint_name(output, "output_projection"), cache)
    with jax.named_scope("attention"):
        context, cache, keys = _attended(layer, hidden, cache)
        if layer.style.output_gate:
            gate = layer.product("bse,ehd->bshd", hidden, "query_gate")
            context = context * jax.nn.sigmoid(gate)
        with jax.named_scope("output"):
            output = layer.between(layer.product("bshd,hde->bse", context, "output"))
            return LayerOutput(checkpoint_name(output, "output_projection"), cache, keys)


def _attended(layer: Layer, x: jax.Array, cache: Cache | None) -> LayerOutput:
    """Return what heads make, before the product of the output."""
    model, style, kind, places = layer.model, layer.style, layer.kind, layer.places
    if model.latent is not None:
        return LayerOutput(*latent_attention(layer, x, cache))
    is_own = kind.keys != "shared"
    with jax.named_scope("projections"):
        query, *key_value = _projected(layer, x)
        key, value = key_value if is_own else places.keys[kind.window]
    is_normed_after = style.norms_after_rotation and kind.rotates
    query = query if is_normed_after else scaled(style, query)
    with jax.named_scope("rotary"):
        rotation = model.rotation(kind)
        query = rotated(query, places, rotation, style)
        key = rotated(key, places, rotation, style) if is_own else key
        if is_normed_after:
            query = scaled(style, layer.normed(query, "query_norm"))
            key = layer.normed(key, "key_norm")
    keys = (key, value) if kind.keys == "kept" else None
    if cache is not None:
        if is_own:
            cached = {"keys": jnp.swapaxes(key, 1, 2), "values": jnp.swapaxes(value, 1, 2)}
            cache = cache.written(**cached)
        if isinstance(model.run, Decode):
            if model.attention_of(kind) == "cudnn":
                return LayerOutput(fused_over_cache(layer, query, cache), cache, keys)
            read = (cache.read("keys"), cache.read("values"))
            return LayerOutput(cached_attention(layer, query, read), cache, keys)
    return LayerOutput(causal_attention(layer, (query, key, value)), cache, keys)


def _projected(layer: Layer, x: jax.Array) -> list[jax.Array]:
    style, weights = layer.style, layer.weights
    if MERGED in weights:
        merged = product("bse,ekgd->bskgd", x, weights[MERGED])
        query = merged[:, :, :, :-2]
        shape = (*query.shape[:2], query.shape[2] * query.shape[3], query.shape[4])
        heads = [query.reshape(shape), merged[:, :, :, -2], merged[:, :, :, -1]]
    else:
        heads = [
            product("bse,ehd->bshd", x, weights[name]) for name in _PROJECTED if name in weights
        ]
        heads += heads[1:] if layer.kind.value_is_key else []
    if style.attention_biases != "none":
        heads = [
            array + weights[f"{name}_bias"].astype(array.dtype)
            for array, name in zip(heads, _PROJECTED, strict=False)
        ]
    if style.clip:
        heads = [jnp.clip(array, -style.clip, style.clip) for array in heads]
    if (style.norms_of_heads and not style.norms_after_rotation) or style.norms_of_rows:
        norm = _normed_rows if style.norms_of_rows else Layer.normed
        names = ("query_norm", "key_norm")
        heads[:2] = [norm(layer, *pair) for pair in zip(heads, names, strict=False)]
    if style.norms_of_values:
        heads[2:] = [plainly_normalised(style, value) for value in heads[2:]]
    return heads


def _normed_rows(layer: Layer, x: jax.Array, name: str) -> jax.Array:
    """Normalise rows of (batch, sequence, heads, size) over all heads."""
    rows, flat = x.reshape(*x.shape[:2], -1), {name: layer.weights[name].reshape(-1)}
    return normalised(layer.style, rows, flat, name).reshape(x.shape)
