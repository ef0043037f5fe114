"""A decoder's layer: a mixer and a feed-forward, with norms.

Its pieces are those of `hespas.models.steps.attention`, `latent`, `recurrent`, `feed_forward` and
`routing`, with the norms of `norms`. `hespas.models.steps.transformer` puts layers together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.base.frozen import frozen
from hespas.models.architecture import LayerKind, Routing, Style
from hespas.models.language import LanguageModel
from hespas.models.runs import Decode, Training
from hespas.models.steps.attention import cached_attention, causal_attention, fused_over_cache
from hespas.models.steps.cache import Cache
from hespas.models.steps.feed_forward import activated, feed_forward
from hespas.models.steps.latent import latent_attention
from hespas.models.steps.norms import Places, apart, normalised, plainly_normalised, rotated, scaled
from hespas.models.steps.products import product
from hespas.models.steps.recurrent import through_delta, through_state_space
from hespas.models.steps.remat import run_again
from hespas.models.steps.routing import through_experts
from hespas.models.steps.sharding import Divided
from hespas.models.weights import BESIDE, MERGED, SHARED

Weights = Mapping[str, Any]
_PROJECTED = ("query", "key", "value")
INPUT = "layer_input_scale"
"""Stands beside a layer's weights: its own input, which multiplies a gate."""


class LayerOutput(NamedTuple):
    """A layer's rows and cache, and keys for later layers."""

    x: jax.Array
    cache: Cache | None
    keys: tuple[jax.Array, jax.Array] | None = None


@frozen
class Layers:
    """The layers of a decoder on a mesh."""

    model: LanguageModel
    divided: Divided

    def divided_of(self, kind: LayerKind) -> Divided:
        """Return the sizes of a kind of layer, divided."""
        return replace(self.divided, sizes={**self.divided.sizes, **self.model.sizes_of(kind)})

    def through(
        self,
        kind: LayerKind,
        x: jax.Array,
        weights: Weights,
        places: Places,
        cache: Cache | None,
    ) -> LayerOutput:
        """Apply a layer to rows, and to its cache."""
        style, keys = self.model.style, None
        if kind.mixer != "none":
            with jax.named_scope("norm"):
                hidden = self.normed(self.between(x), weights, "attention_norm")
            output, cache, keys = self._mixer(kind, hidden, weights, places, cache)
            if style.before_mlp != "yes":
                output = output + self._parallel_feed_forward(kind, x, hidden, weights)
            x = self._residual_sum(x, self._post_norm(output, weights, "after_attention_norm"))
        if kind.feeds_forward and style.before_mlp == "yes":
            with jax.named_scope("norm"):
                hidden = self._normed_before_mlp(kind, x, weights)
            with jax.named_scope("mlp"):
                output = self._feed_forward(kind, x, hidden, weights)
            x = self._residual_sum(x, self._post_norm(output, weights, "after_mlp_norm"))
        if style.layer_input:
            with jax.named_scope("layer_input"):
                gate = activated(style, product("bse,ep->bsp", x, weights["input_gate"]))
                output = product("bsp,pe->bse", gate * weights[INPUT], weights["input_output"])
            x = self._residual_sum(
                x, self._post_norm(self.between(output), weights, "after_input_norm")
            )
        if style.scales_layers:
            x = x * weights["layer_scale"].astype(x.dtype)
        return LayerOutput(self.between(x), cache, keys)

    def _parallel_feed_forward(
        self, kind: LayerKind, x: jax.Array, hidden: jax.Array, weights: Weights
    ) -> jax.Array:
        """Apply the dense layer to the rows of the mixer."""
        if self.model.style.before_mlp == "own_norm":
            with jax.named_scope("norm"):
                hidden = self._normed_before_mlp(kind, x, weights)
        with jax.named_scope("mlp"):
            return self._feed_forward(kind, x, hidden, weights)

    def _mixer(
        self,
        kind: LayerKind,
        hidden: jax.Array,
        weights: Weights,
        places: Places,
        cache: Cache | None,
    ) -> LayerOutput:
        """Apply the mixer; return rows, cache, and kept keys."""
        model, divided = self.model, self.divided_of(kind)
        if kind.mixer != "attention":
            through = through_state_space if kind.mixer == "state_space" else through_delta
            output, cache = through(model, divided, hidden, weights, cache)
            return LayerOutput(checkpoint_name(self.between(output), "output_projection"), cache)
        with jax.named_scope("attention"):
            context, cache, keys = self._attention(kind, hidden, weights, places, cache)
            if model.style.output_gate:
                gate = product("bse,ehd->bshd", hidden, weights["query_gate"])
                context = context * jax.nn.sigmoid(gate)
            with jax.named_scope("output"):
                output = product("bshd,hde->bse", context, weights["output"])
                if model.style.attention_biases == "all":
                    output = output + weights["output_bias"].astype(output.dtype)
                return LayerOutput(
                    checkpoint_name(self.between(output), "output_projection"), cache, keys
                )

    def _residual_sum(self, x: jax.Array, output: jax.Array) -> jax.Array:
        style = self.model.style
        scale = style.residual_scale
        total = x + output if scale == 1 else x + output * jnp.asarray(scale, output.dtype)
        return apart(style, total)

    def _post_norm(self, x: jax.Array, weights: Weights, name: str) -> jax.Array:
        if not self.model.style.norms_after:
            return x
        with jax.named_scope("norm"):
            return normalised(self.model.style, x, weights, name)

    def _feed_forward(
        self, kind: LayerKind, x: jax.Array, hidden: jax.Array, weights: Weights
    ) -> jax.Array:
        """Apply the feed-forward to normalised rows."""
        run, routing = self.model.run, self.model.routing
        through = partial(self._dense_or_experts, routing if kind.is_routed else None, kind)
        module = "moe" if kind.is_routed and routing is not None else "mlp"
        if isinstance(run, Training) and module in run.recomputed:
            through = run_again(through)
        return checkpoint_name(self.between(through(x, hidden, weights)), "mlp_down")

    def _dense_or_experts(
        self,
        routing: Routing | None,
        kind: LayerKind,
        x: jax.Array,
        hidden: jax.Array,
        weights: Weights,
    ) -> jax.Array:
        if routing is None:
            return feed_forward(self.model.style, self.divided_of(kind), hidden, weights)
        if routing.style.beside_dense:
            return self._dense_and_experts(x, hidden, weights)
        return self._through_experts(routing, hidden, weights)

    def _through_experts(self, routing: Routing, x: jax.Array, weights: Weights) -> jax.Array:
        style, divided = self.model.style, self.divided
        sent = product("bse,el->bsl", x, weights["latent_in"]) if routing.latent_size else None
        output = through_experts(self.model, divided, x, weights, sent)
        if routing.latent_size:
            output = product("bsl,le->bse", output, weights["latent_out"])
        if not routing.shared_width:
            return output
        with jax.named_scope("shared"):
            if "tp" in routing.axes:
                x = self._into_product(x)
            shared = feed_forward(style, divided, x, weights, SHARED)
            if routing.style.shared_gate:
                shared *= jax.nn.sigmoid(product("bse,eo->bso", x, weights["shared_router"]))
            return output + shared

    def _dense_and_experts(self, x: jax.Array, hidden: jax.Array, weights: Weights) -> jax.Array:
        """Return the sum of a dense layer and of experts."""
        style = self.model.style
        after_dense, before_experts, after_experts = BESIDE
        dense = normalised(
            style, feed_forward(style, self.divided, hidden, weights), weights, after_dense
        )
        scores = plainly_normalised(style, x) * weights["router_scale_norm"].astype(x.dtype)
        scores = scores * jnp.asarray(x.shape[-1] ** -0.5, x.dtype)
        sent = normalised(style, x, weights, before_experts)
        routed = through_experts(self.model, self.divided, scores, weights, sent)
        return dense + normalised(style, routed, weights, after_experts)

    def _attention(
        self,
        kind: LayerKind,
        x: jax.Array,
        weights: Weights,
        places: Places,
        cache: Cache | None,
    ) -> LayerOutput:
        model, divided = self.model, self.divided_of(kind)
        style = model.style
        if model.latent is not None:
            return LayerOutput(*latent_attention(model, divided, kind, x, weights, places, cache))
        is_own = kind.keys != "shared"
        with jax.named_scope("projections"):
            query, *key_value = self._projected(kind, x, weights)
            key, value = key_value if is_own else places.keys[kind.window]
        is_normed_after = style.norms_after_rotation and kind.rotates
        query = query if is_normed_after else scaled(style, query)
        with jax.named_scope("rotary"):
            rotation = model.rotation(kind)
            query = rotated(query, places, rotation, style)
            key = rotated(key, places, rotation, style) if is_own else key
            if is_normed_after:
                query = scaled(style, normalised(style, query, weights, "query_norm"))
                key = normalised(style, key, weights, "key_norm")
        sinks = weights.get("sinks_bias")
        keys = (key, value) if kind.keys == "kept" else None
        if cache is not None:
            if is_own:
                cached = {"keys": jnp.swapaxes(key, 1, 2), "values": jnp.swapaxes(value, 1, 2)}
                cache = cache.written(**cached)
            if isinstance(model.run, Decode):
                if model.attention_of(kind) == "cudnn":
                    context = fused_over_cache(model, divided, kind, query, cache, sinks=sinks)
                    return LayerOutput(context, cache, keys)
                read = (cache.read("keys"), cache.read("values"))
                return LayerOutput(cached_attention(model, kind, query, read, sinks), cache, keys)
        arrays = (query, key, value)
        return LayerOutput(
            causal_attention(model, divided, kind, arrays, places, sinks), cache, keys
        )

    def _projected(self, kind: LayerKind, x: jax.Array, weights: Weights) -> list[jax.Array]:
        """Return queries, keys and values."""
        style = self.model.style
        if MERGED in weights:
            merged = product("bse,ekgd->bskgd", x, weights[MERGED])
            query = merged[:, :, :, :-2]
            shape = (*query.shape[:2], query.shape[2] * query.shape[3], query.shape[4])
            heads = [query.reshape(shape), merged[:, :, :, -2], merged[:, :, :, -1]]
        else:
            heads = [
                product("bse,ehd->bshd", x, weights[name]) for name in _PROJECTED if name in weights
            ]
            heads += heads[1:] if kind.value_is_key else []
        if style.attention_biases != "none":
            heads = [
                array + weights[f"{name}_bias"].astype(array.dtype)
                for array, name in zip(heads, _PROJECTED, strict=False)
            ]
        if style.clip:
            heads = [jnp.clip(array, -style.clip, style.clip) for array in heads]
        norm = _normalised_rows if style.norms_of_rows else normalised
        if (style.norms_of_heads and not style.norms_after_rotation) or style.norms_of_rows:
            norms = ("query_norm", "key_norm")
            of_heads = [
                norm(style, array, weights, name) for array, name in zip(heads, norms, strict=False)
            ]
            heads = [*of_heads, *heads[2:]]
        if style.norms_of_values:
            heads[2:] = [plainly_normalised(style, value) for value in heads[2:]]
        return heads

    def normed(self, x: jax.Array, weights: Weights, name: str) -> jax.Array:
        """Return normalised rows that go into a product.

        Where they are divided between products, the whole norm is, and its result is gathered.
        """
        hidden = self._normed_apart(x, weights, name)
        return self._rows(hidden) if name == "norm" else self._into_product(hidden)

    def _normed_before_mlp(self, kind: LayerKind, x: jax.Array, weights: Weights) -> jax.Array:
        """Return the normalised rows before a dense layer or experts.

        Experts that lie whole on the devices of ``tp`` take the rows as those divide them.
        """
        routing = self.model.routing
        if kind.is_routed and routing is not None and "tp" in routing.axes:
            return self._normed_apart(x, weights, "mlp_norm")
        return self.normed(x, weights, "mlp_norm")

    def _normed_apart(self, x: jax.Array, weights: Weights, name: str) -> jax.Array:
        """Return normalised rows, on the device that normalises them."""
        style, run = self.model.style, self.model.run
        is_bare = name != "norm" and not style.norms_before
        hidden = x if is_bare else checkpoint_name(normalised(style, x, weights, name), "norm")
        is_divided = isinstance(run, Training) and run.sequence_parallel
        return self.between(hidden) if is_divided else hidden

    def _into_product(self, x: jax.Array) -> jax.Array:
        """Gather normalised rows, unless an 8-bit product does.

        Several products of the same rows share what is gathered, before each rounds it. Source:
        torchtitan 0.1.0, models/llama3/infra/parallelize.py: ``PrepareModuleInput``.
        """
        run = self.model.run
        is_divided = isinstance(run, Training) and run.sequence_parallel
        is_small = isinstance(run, Training) and run.product_dtype != "same"
        return x if is_divided and is_small and self.model.merges_products else self._rows(x)

    def _rows(self, x: jax.Array) -> jax.Array:
        """Ask for the rows that go into a product."""
        return self.divided.constrain(x, "batch", "sequence", None)

    def between(self, x: jax.Array) -> jax.Array:
        """Ask for the rows that stand between products."""
        return self.divided.constrain(x, "batch", "norm_sequence", None)


def _normalised_rows(style: Style, x: jax.Array, weights: Weights, name: str) -> jax.Array:
    """Normalise rows of (batch, sequence, heads, size) over all heads."""
    flat = x.reshape(*x.shape[:2], -1)
    return normalised(style, flat, {name: weights[name].reshape(-1)}, name).reshape(x.shape)
