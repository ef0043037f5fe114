"""Latent attention: all heads' keys and values come from one vector.

While many tokens are computed at once, keys and values are made of the vectors. Over a cache the
vectors themselves are keys and values, which all heads share, and the products that would make
keys are applied to the queries instead. Source: DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.architecture import Latent, LayerKind, Style
from hespas.models.checks import SELECTING
from hespas.models.language import LanguageModel
from hespas.models.runs import Decode
from hespas.models.steps.attention import cached_attention, causal_attention, fused_over_latents
from hespas.models.steps.cache import Cache
from hespas.models.steps.norms import Places, normalised, rotated, scaled
from hespas.models.steps.products import product
from hespas.models.steps.sharding import Divided

Weights = Mapping[str, Any]
_CACHED, _INDEXED = "latents", "index_keys"
_LAYER_NORM = Style(norm="layer", epsilon=1e-6)


def latent_attention(  # noqa: PLR0917 - the pieces of one layer
    model: LanguageModel,
    divided: Divided,
    kind: LayerKind,
    x: jax.Array,
    weights: Weights,
    places: Places,
    cache: Cache | None,
) -> tuple[jax.Array, Cache | None]:
    """Return each head's result, (batch, sequence, heads, value size), and the cache with it."""
    latent = model.latent
    assert latent is not None  # noqa: S101 - for the type checker: such a model has it
    with jax.named_scope("projections"):
        low = _low(model, latent, x, weights)
        query, vectors, rotary = _projected(model, latent, (x, low), weights, places)
    indexes = _indexes(model, latent, (x, low), weights, places) if latent.indexed_tokens else ()
    if cache is not None:
        stored = jnp.concatenate((vectors, rotary), -1)[:, None]
        cache = cache.written(**{_CACHED: stored})
        if indexes:
            cache = cache.written(**{_INDEXED: indexes[1][:, None]})
        if isinstance(model.run, Decode):
            made = _over_cache(model, divided, kind, query, weights, cache, indexes)
            return divided.constrain(made, "batch", "queries", "attended_heads", None), cache
    if indexes and model.selects_tokens:
        with jax.named_scope("projections"):
            query = _absorbed(model, query, weights)
        rows = jnp.concatenate((vectors, rotary), -1)
        made = _among_selected(latent, query, rows, indexes)
        made = divided.constrain(made, "batch", "queries", "attended_heads", None)
        with jax.named_scope("projections"):
            made = product("bshr,rhd->bshd", made, weights["value_up"])
        return checkpoint_name(made, "context"), cache
    with jax.named_scope("projections"):
        key = product("bsr,rhd->bshd", vectors, weights["key_up"])
        value = product("bsr,rhd->bshd", vectors, weights["value_up"])
        shape = (*key.shape[:3], latent.rope_size)
        shared = jnp.broadcast_to(rotary[:, :, None], shape)
        key = jnp.concatenate((key, shared), -1)
    made = causal_attention(model, divided, kind, (query, key, value), places)
    if indexes:
        # In short sequences all tokens are multiplied, and those that are not chosen masked.
        made, _ = jax.lax.optimization_barrier((made, _most_rated(latent, indexes, indexes[1])))
    return made, cache


def _low(model: LanguageModel, latent: Latent, x: jax.Array, weights: Weights) -> jax.Array:
    """Return what queries are made of: vectors of their rank, or the rows."""
    if not latent.query_rank:
        return x
    low = product("bse,er->bsr", x, weights["query_down"])
    return normalised(model.style, low, weights, "query_norm")


def _indexes(
    model: LanguageModel,
    latent: Latent,
    rows: tuple[jax.Array, jax.Array],
    weights: Weights,
    places: Places,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return queries, keys and head shares that rate tokens for each query."""
    x, low = rows
    rotation = (latent.rope_size, model.sizes_of_layers.rope_theta)
    with jax.named_scope("indexer"):
        query = product("bsr,rhd->bshd", low, weights["index_query"])
        key = product("bse,ed->bsd", x, weights["index_key"])
        key = normalised(_LAYER_NORM, key, weights, "index_norm")
        query = rotated(query, places, rotation)
        key = rotated(key[:, :, None], places, rotation)[:, :, 0]
        share = product("bse,eh->bsh", x, weights["index_share"])
        scale = (latent.index_heads * latent.index_size) ** -0.5
        return query, key, share * jnp.asarray(scale, share.dtype)


def _most_rated(
    latent: Latent,
    indexes: tuple[jax.Array, jax.Array, jax.Array],
    keys: jax.Array,
    seen: jax.Array | None = None,
) -> jax.Array:
    """Return the places of the keys that each query sees, (batch, queries, places).

    ``seen`` says which keys stand before each query; all do where it is None.
    """
    query, _, share = indexes
    with jax.named_scope("indexer"):
        scores = jax.nn.relu(jnp.einsum("bqhd,bkd->bqhk", query, keys))
        rated = jnp.einsum("bqhk,bqh->bqk", scores, share)
        if seen is not None:
            rated = jnp.where(seen, rated, -jnp.inf)
        return jax.lax.top_k(rated, min(latent.indexed_tokens, keys.shape[1]))[1]


def _projected(
    model: LanguageModel,
    latent: Latent,
    rows: tuple[jax.Array, jax.Array],
    weights: Weights,
    places: Places,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return scaled queries, and each token's vector and positional part of keys."""
    style, (x, low) = model.style, rows
    rotation = (latent.rope_size, model.sizes_of_layers.rope_theta)
    query = product("bsr,rhd->bshd", low, weights["query_up"])
    size = model.sizes_of_layers.head_size
    plain, turning = query[..., :size], query[..., size:]
    query = scaled(style, jnp.concatenate((plain, rotated(turning, places, rotation)), -1))
    both = product("bse,el->bsl", x, weights["latent_down"])
    vectors, turning = both[..., : latent.kv_rank], both[..., latent.kv_rank :]
    vectors = normalised(style, vectors, weights, "latent_norm")
    rotary = rotated(turning[:, :, None], places, rotation)[:, :, 0]
    return query, vectors, rotary


def _absorbed(model: LanguageModel, query: jax.Array, weights: Weights) -> jax.Array:
    """Return queries that meet the vectors themselves: what makes keys is applied to them."""
    size = model.sizes_of_layers.head_size
    plain = product("bshd,rhd->bshr", query[..., :size], weights["key_up"])
    return jnp.concatenate((plain, query[..., size:]), -1)


def _among_selected(
    latent: Latent,
    query: jax.Array,
    rows: jax.Array,
    indexes: tuple[jax.Array, ...],
) -> jax.Array:
    """Attend from each query to its chosen tokens, some queries at a time.

    ``rows`` are the vectors of tokens, which are keys, and values without their part with
    positions. Source: DeepSeek-AI, DeepSeek-V3.2, 2025, section 2.1.
    """
    index_query, index_key, share = indexes
    length = rows.shape[1]

    @jax.checkpoint
    def chosen(given: tuple[jax.Array, ...]) -> jax.Array:
        query, index_query, share, places = given
        seen = jnp.arange(length) <= places[:, None]
        best = _most_rated(latent, (index_query, index_key, share), index_key, seen)
        keys = jnp.take_along_axis(rows[:, None], best[..., None], 2)
        with jax.named_scope("softmax"):
            scores = jnp.einsum("bqhr,bqkr->bqhk", query, keys).astype(jnp.float32)
            scores = jnp.where(best[:, :, None] <= places[:, None, None], scores, -jnp.inf)
            shares = jax.nn.softmax(scores, -1).astype(keys.dtype)
            return jnp.einsum("bqhk,bqkr->bqhr", shares, keys[..., : latent.kv_rank])

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(x.shape[0], -1, SELECTING, *x.shape[2:]), 1, 0)

    places = jnp.arange(length).reshape(-1, SELECTING)
    made = jax.lax.map(chosen, (cut(query), cut(index_query), cut(share), places))
    return jnp.moveaxis(made, 0, 1).reshape(*query.shape[:3], latent.kv_rank)


def _over_cache(  # noqa: PLR0917 - the pieces of one layer
    model: LanguageModel,
    divided: Divided,
    kind: LayerKind,
    query: jax.Array,
    weights: Weights,
    cache: Cache,
    indexes: tuple[jax.Array, ...],
) -> jax.Array:
    latent = model.latent
    assert latent is not None  # noqa: S101 - for the type checker
    rank = model.sizes["kv_rank"]
    with jax.named_scope("projections"):
        query = _absorbed(model, query, weights)
    keys = cache.read(_CACHED)
    if indexes and model.selects_tokens:
        places = _most_rated(
            latent, (indexes[0], indexes[1], indexes[2]), cache.read(_INDEXED)[:, 0]
        )
        keys = jnp.take_along_axis(keys, places[:, :, :, None], 2)
    if model.run.attention == "flashmla":
        made = fused_over_latents(divided, query, keys, value_size=rank)
    else:
        made = cached_attention(model, kind, query, (keys, keys[..., :rank]))
    with jax.named_scope("projections"):
        return product("bshr,rhd->bshd", made, weights["value_up"])
