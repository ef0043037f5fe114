"""Latent attention: keys and values come from one vector.

While many tokens are computed at once, keys and values are made of the vectors. Over a cache the
vectors themselves are keys and values, which all heads share, and the products that would make
keys are applied to the queries instead. Source: DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.architecture import Style
from hespas.models.checks import SELECTING
from hespas.models.runs import Decode
from hespas.models.steps.attention import (
    cached_attention,
    causal_attention,
    fused_index,
    fused_over_latents,
    largest,
)
from hespas.models.steps.cache import Cache
from hespas.models.steps.layer import Layer
from hespas.models.steps.norms import normalised, rotated, scaled
from hespas.models.steps.products import product

_CACHED, _INDEXED = "latents", "index_keys"
_LAYER_NORM = Style(norm="layer", epsilon=1e-6)

Rows = tuple[jax.Array, jax.Array]
"""What goes into a layer, and what its queries are made of."""
Indexes = tuple[jax.Array, jax.Array, jax.Array]
"""Queries, keys and shares of heads that rate tokens for each query."""


def latent_attention(
    layer: Layer, x: jax.Array, cache: Cache | None
) -> tuple[jax.Array, Cache | None]:
    """Return each head's result and the updated cache.

    The result is (batch, sequence, heads, value size).
    """
    model, latent = layer.model, layer.latent
    with jax.named_scope("projections"):
        # Queries are made of vectors of their rank, or of the rows.
        low = x
        if latent.query_rank:
            low = layer.normed(layer.product("bse,er->bsr", x, "query_down"), "query_norm")
        query, vectors, rotary = _projected(layer, (x, low))
    indexes = _indexes(layer, (x, low)) if latent.indexed_tokens else None
    if cache is not None:
        stored = jnp.concatenate((vectors, rotary), -1)[:, None]
        cache = cache.written(**{_CACHED: stored})
        if indexes is not None:
            cache = cache.written(**{_INDEXED: indexes[1][:, None]})
        if isinstance(model.run, Decode):
            return layer.by_heads(_over_cache(layer, query, cache, indexes)), cache
    if indexes is not None and model.selects_tokens:
        query, keys = _absorbed(layer, query), jnp.concatenate((vectors, rotary), -1)
        if model.run.attention == "flashmla":
            vectors, rated = keys[:, None], indexes[1][:, None]
            context = _fused_among_chosen(layer, query, vectors, indexes, rated)
        else:
            context = _among_selected(layer, query, keys, indexes)
        return checkpoint_name(_head_values(layer, layer.by_heads(context)), "context"), cache
    with jax.named_scope("projections"):
        key, value = (
            layer.product("bsr,rhd->bshd", vectors, name) for name in ("key_up", "value_up")
        )
        shape = (*key.shape[:3], latent.rope_size)
        key = jnp.concatenate((key, jnp.broadcast_to(rotary[:, :, None], shape)), -1)
    context = causal_attention(layer, (query, key, value))
    if indexes is not None and model.masks_tokens:
        # In short sequences all tokens are multiplied, and those that are not chosen masked.
        context, _ = jax.lax.optimization_barrier(
            (context, _most_rated(layer, indexes, indexes[1]))
        )
    return context, cache


def _rotated(layer: Layer, x: jax.Array) -> jax.Array:
    """Rotate (batch, sequence, heads, size), or rows that all heads share."""
    rotation = layer.latent.rope_size, layer.model.sizes_of_layers.rope_theta
    if x.ndim == 3:
        return rotated(x[:, :, None], layer.places, rotation)[:, :, 0]
    return rotated(x, layer.places, rotation)


def _indexes(layer: Layer, rows: Rows) -> Indexes:
    (x, low), latent = rows, layer.latent
    with jax.named_scope("indexer"):
        query = layer.product("bsr,rhd->bshd", low, "index_query")
        key = product("bse,ed->bsd", x, layer.weights["index_key"])
        key = normalised(_LAYER_NORM, key, layer.weights, "index_norm")
        query, key = _rotated(layer, query), _rotated(layer, key)
        share = layer.product("bse,eh->bsh", x, "index_share")
        scale = (latent.index_heads * latent.index_size) ** -0.5
        return query, key, share * jnp.asarray(scale, share.dtype)


def _projected(layer: Layer, rows: Rows) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return scaled queries, and the two parts of keys."""
    (x, low), rank, size = rows, layer.latent.kv_rank, layer.model.sizes_of_layers.head_size
    query = layer.product("bsr,rhd->bshd", low, "query_up")
    plain, turning = query[..., :size], query[..., size:]
    query = scaled(layer.style, jnp.concatenate((plain, _rotated(layer, turning)), -1))
    both = layer.product("bse,el->bsl", x, "latent_down")
    vectors, turning = both[..., :rank], both[..., rank:]
    return query, layer.normed(vectors, "latent_norm"), _rotated(layer, turning)


def _absorbed(layer: Layer, query: jax.Array) -> jax.Array:
    """Multiply queries by the keys' weights, to meet latent vectors."""
    size = layer.model.sizes_of_layers.head_size
    with jax.named_scope("projections"):
        plain = layer.product("bshd,rhd->bshr", query[..., :size], "key_up")
        return jnp.concatenate((plain, query[..., size:]), -1)


def _over_cache(layer: Layer, query: jax.Array, cache: Cache, indexes: Indexes | None) -> jax.Array:
    query, keys = _absorbed(layer, query), cache.read(_CACHED)
    is_fused = layer.model.run.attention == "flashmla"
    if indexes is not None and layer.model.selects_tokens:
        rated = cache.read(_INDEXED)
        if is_fused:
            context = _fused_among_chosen(layer, query, keys, indexes, rated)
            return _head_values(layer, context)
        places = _most_rated(layer, indexes, rated[:, 0])
        keys = jnp.take_along_axis(keys, places[:, :, :, None], 2)
    if is_fused:
        context = fused_over_latents(layer, query, keys)
    else:
        context = cached_attention(layer, query, (keys, keys[..., : layer.latent.kv_rank]))
    return _head_values(layer, context)


def _fused_among_chosen(
    layer: Layer, query: jax.Array, vectors: jax.Array, indexes: Indexes, keys: jax.Array
) -> jax.Array:
    """Attend to chosen tokens, by kernels for it.

    ``vectors`` and the index' ``keys`` are (batch, 1, tokens, size).
    """
    index_query, _, share = indexes
    with jax.named_scope("indexer"):
        scores = fused_index(layer.divided, index_query, keys, share)
        places = largest(layer.divided, scores, layer.latent.indexed_tokens)
    return fused_over_latents(layer, query, vectors, places)


def _head_values(layer: Layer, vectors: jax.Array) -> jax.Array:
    """Return each head's values of attended vectors."""
    with jax.named_scope("projections"):
        return layer.product("bshr,rhd->bshd", vectors, "value_up")


def _most_rated(
    layer: Layer, indexes: Indexes, keys: jax.Array, seen: jax.Array | None = None
) -> jax.Array:
    """Return the places of each query's chosen keys.

    They are (batch, queries, places). ``seen`` masks the keys before each query; None attends to
    all keys.
    """
    query, _, share = indexes
    with jax.named_scope("indexer"):
        scores = jax.nn.relu(jnp.einsum("bqhd,bkd->bqhk", query, keys))
        rated = jnp.einsum("bqhk,bqh->bqk", scores, share)
        if seen is not None:
            rated = jnp.where(seen, rated, -jnp.inf)
        return largest(layer.divided, rated, layer.latent.indexed_tokens)


def _among_selected(layer: Layer, query: jax.Array, rows: jax.Array, indexes: Indexes) -> jax.Array:
    """Attend to chosen tokens, some queries at a time.

    ``rows`` are the vectors of tokens, which are keys, and values without their part with
    positions. Source: DeepSeek-AI, DeepSeek-V3.2, 2025, section 2.1.
    """
    index_query, index_key, share = indexes
    length, rank = rows.shape[1], layer.latent.kv_rank

    @jax.checkpoint
    def chosen(group: tuple[jax.Array, ...]) -> jax.Array:
        query, index_query, share, places = group
        seen = jnp.arange(length) <= places[:, None]
        best = _most_rated(layer, (index_query, index_key, share), index_key, seen)
        keys = jnp.take_along_axis(rows[:, None], best[..., None], 2)
        with jax.named_scope("softmax"):
            scores = jnp.einsum("bqhr,bqkr->bqhk", query, keys).astype(jnp.float32)
            scores = jnp.where(best[:, :, None] <= places[:, None, None], scores, -jnp.inf)
            shares = jax.nn.softmax(scores, -1).astype(keys.dtype)
            return jnp.einsum("bqhk,bqkr->bqhr", shares, keys[..., :rank])

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(x.shape[0], -1, SELECTING, *x.shape[2:]), 1, 0)

    places = jnp.arange(length).reshape(-1, SELECTING)
    context = jax.lax.map(chosen, (cut(query), cut(index_query), cut(share), places))
    return jnp.moveaxis(context, 0, 1).reshape(*query.shape[:3], rank)
