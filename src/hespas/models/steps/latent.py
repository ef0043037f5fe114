"""Latent attention: keys and values come from one vector.

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

from hespas.base.frozen import frozen
from hespas.models.architecture import Latent, LayerKind, Style
from hespas.models.checks import SELECTING
from hespas.models.language import LanguageModel
from hespas.models.runs import Decode
from hespas.models.steps.attention import (
    cached_attention,
    causal_attention,
    fused_index,
    fused_over_latents,
    largest,
)
from hespas.models.steps.cache import Cache
from hespas.models.steps.norms import Places, normalised, rotated, scaled
from hespas.models.steps.products import product
from hespas.models.steps.sharding import Divided

Weights = Mapping[str, Any]
_CACHED, _INDEXED = "latents", "index_keys"
_LAYER_NORM = Style(norm="layer", epsilon=1e-6)


Rows = tuple[jax.Array, jax.Array]
"""What goes into a layer, and what its queries are made of."""
Indexes = tuple[jax.Array, jax.Array, jax.Array]
"""Queries, keys and shares of heads that rate tokens for each query."""


def latent_attention(  # noqa: PLR0917 - the pieces of one layer
    model: LanguageModel,
    divided: Divided,
    kind: LayerKind,
    x: jax.Array,
    weights: Weights,
    places: Places,
    cache: Cache | None,
) -> tuple[jax.Array, Cache | None]:
    """Return each head's result and the updated cache.

    The result is (batch, sequence, heads, value size).
    """
    latent = model.latent
    assert latent is not None  # noqa: S101 - for the type checker: such a model has it
    layer = _Layer(
        model=model, latent=latent, divided=divided, kind=kind, weights=weights, places=places
    )
    return layer.through(x, cache)


@frozen
class _Layer:
    """The latent attention of a layer."""

    model: LanguageModel
    latent: Latent
    divided: Divided
    kind: LayerKind
    weights: Weights
    places: Places

    def through(self, x: jax.Array, cache: Cache | None) -> tuple[jax.Array, Cache | None]:
        model, latent, weights = self.model, self.latent, self.weights
        with jax.named_scope("projections"):
            rows = (x, self._query_vectors(x))
            query, vectors, rotary = self._projected(rows)
        indexes = self._indexes(rows) if latent.indexed_tokens else None
        if cache is not None:
            stored = jnp.concatenate((vectors, rotary), -1)[:, None]
            cache = cache.written(**{_CACHED: stored})
            if indexes is not None:
                cache = cache.written(**{_INDEXED: indexes[1][:, None]})
            if isinstance(model.run, Decode):
                context = self._over_cache(query, cache, indexes)
                return self._divided_by_heads(context), cache
        if indexes is not None and model.selects_tokens:
            with jax.named_scope("projections"):
                query = self._absorbed(query)
            keys = jnp.concatenate((vectors, rotary), -1)
            if model.run.attention == "flashmla":
                context = self._fused_among_chosen(
                    query, keys[:, None], indexes, indexes[1][:, None]
                )
            else:
                context = _among_selected(self.divided, latent, query, keys, indexes)
            context = self._head_values(self._divided_by_heads(context))
            return checkpoint_name(context, "context"), cache
        with jax.named_scope("projections"):
            key = product("bsr,rhd->bshd", vectors, weights["key_up"])
            value = product("bsr,rhd->bshd", vectors, weights["value_up"])
            shape = (*key.shape[:3], latent.rope_size)
            shared = jnp.broadcast_to(rotary[:, :, None], shape)
            key = jnp.concatenate((key, shared), -1)
        arrays = (query, key, value)
        context = causal_attention(model, self.divided, self.kind, arrays, self.places)
        if indexes is not None and model.masks_tokens:
            # In short sequences all tokens are multiplied, and those that are not chosen masked.
            context, _ = jax.lax.optimization_barrier(
                (context, _most_rated(self.divided, latent, indexes, indexes[1]))
            )
        return context, cache

    def _divided_by_heads(self, context: jax.Array) -> jax.Array:
        return self.divided.constrain(context, "batch", "queries", "attended_heads", None)

    @property
    def _rotation(self) -> tuple[int, float]:
        return self.latent.rope_size, self.model.sizes_of_layers.rope_theta

    def _query_vectors(self, x: jax.Array) -> jax.Array:
        """Return vectors of the queries' rank, or the rows."""
        if not self.latent.query_rank:
            return x
        low = product("bse,er->bsr", x, self.weights["query_down"])
        return normalised(self.model.style, low, self.weights, "query_norm")

    def _indexes(self, rows: Rows) -> Indexes:
        (x, low), weights, latent = rows, self.weights, self.latent
        with jax.named_scope("indexer"):
            query = product("bsr,rhd->bshd", low, weights["index_query"])
            key = product("bse,ed->bsd", x, weights["index_key"])
            key = normalised(_LAYER_NORM, key, weights, "index_norm")
            query = rotated(query, self.places, self._rotation)
            key = rotated(key[:, :, None], self.places, self._rotation)[:, :, 0]
            share = product("bse,eh->bsh", x, weights["index_share"])
            scale = (latent.index_heads * latent.index_size) ** -0.5
            return query, key, share * jnp.asarray(scale, share.dtype)

    def _projected(self, rows: Rows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return scaled queries, and the two parts of keys."""
        style, (x, low), rank = self.model.style, rows, self.latent.kv_rank
        query = product("bsr,rhd->bshd", low, self.weights["query_up"])
        size = self.model.sizes_of_layers.head_size
        plain, turning = query[..., :size], query[..., size:]
        turned = rotated(turning, self.places, self._rotation)
        query = scaled(style, jnp.concatenate((plain, turned), -1))
        both = product("bse,el->bsl", x, self.weights["latent_down"])
        vectors, turning = both[..., :rank], both[..., rank:]
        vectors = normalised(style, vectors, self.weights, "latent_norm")
        rotary = rotated(turning[:, :, None], self.places, self._rotation)[:, :, 0]
        return query, vectors, rotary

    def _absorbed(self, query: jax.Array) -> jax.Array:
        """Multiply queries by the keys' weights, to meet latent vectors."""
        size = self.model.sizes_of_layers.head_size
        plain = product("bshd,rhd->bshr", query[..., :size], self.weights["key_up"])
        return jnp.concatenate((plain, query[..., size:]), -1)

    def _over_cache(self, query: jax.Array, cache: Cache, indexes: Indexes | None) -> jax.Array:
        rank = self.latent.kv_rank
        with jax.named_scope("projections"):
            query = self._absorbed(query)
        keys = cache.read(_CACHED)
        is_fused = self.model.run.attention == "flashmla"
        if indexes is not None and self.model.selects_tokens:
            rated = cache.read(_INDEXED)
            if is_fused:
                context = self._fused_among_chosen(query, keys, indexes, rated)
                return self._head_values(context)
            places = _most_rated(self.divided, self.latent, indexes, rated[:, 0])
            keys = jnp.take_along_axis(keys, places[:, :, :, None], 2)
        if is_fused:
            context = fused_over_latents(self.divided, query, keys, value_size=rank)
        else:
            context = cached_attention(self.model, self.kind, query, (keys, keys[..., :rank]))
        return self._head_values(context)

    def _fused_among_chosen(
        self, query: jax.Array, vectors: jax.Array, indexes: Indexes, keys: jax.Array
    ) -> jax.Array:
        """Attend to chosen tokens, by kernels for it.

        ``vectors`` and the index' ``keys`` are (batch, 1, tokens, size).
        """
        index_query, _, share = indexes
        with jax.named_scope("indexer"):
            scores = fused_index(self.divided, index_query, keys, share)
            places = largest(self.divided, scores, self.latent.indexed_tokens)
        return fused_over_latents(
            self.divided, query, vectors, places, value_size=self.latent.kv_rank
        )

    def _head_values(self, vectors: jax.Array) -> jax.Array:
        """Return each head's values of attended vectors."""
        with jax.named_scope("projections"):
            return product("bshr,rhd->bshd", vectors, self.weights["value_up"])


def _most_rated(
    divided: Divided,
    latent: Latent,
    indexes: Indexes,
    keys: jax.Array,
    seen: jax.Array | None = None,
) -> jax.Array:
    """Return the places of each query's chosen keys.

    They are (batch, queries, places).

    ``seen`` masks the keys before each query; None attends to all keys.
    """
    query, _, share = indexes
    with jax.named_scope("indexer"):
        scores = jax.nn.relu(jnp.einsum("bqhd,bkd->bqhk", query, keys))
        rated = jnp.einsum("bqhk,bqh->bqk", scores, share)
        if seen is not None:
            rated = jnp.where(seen, rated, -jnp.inf)
        return largest(divided, rated, latent.indexed_tokens)


def _among_selected(
    divided: Divided, latent: Latent, query: jax.Array, rows: jax.Array, indexes: Indexes
) -> jax.Array:
    """Attend to chosen tokens, some queries at a time.

    ``rows`` are the vectors of tokens, which are keys, and values without their part with
    positions. Source: DeepSeek-AI, DeepSeek-V3.2, 2025, section 2.1.
    """
    index_query, index_key, share = indexes
    length = rows.shape[1]

    @jax.checkpoint
    def chosen(group: tuple[jax.Array, ...]) -> jax.Array:
        query, index_query, share, places = group
        seen = jnp.arange(length) <= places[:, None]
        best = _most_rated(divided, latent, (index_query, index_key, share), index_key, seen)
        keys = jnp.take_along_axis(rows[:, None], best[..., None], 2)
        with jax.named_scope("softmax"):
            scores = jnp.einsum("bqhr,bqkr->bqhk", query, keys).astype(jnp.float32)
            scores = jnp.where(best[:, :, None] <= places[:, None, None], scores, -jnp.inf)
            shares = jax.nn.softmax(scores, -1).astype(keys.dtype)
            return jnp.einsum("bqhk,bqkr->bqhr", shares, keys[..., : latent.kv_rank])

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(x.shape[0], -1, SELECTING, *x.shape[2:]), 1, 0)

    places = jnp.arange(length).reshape(-1, SELECTING)
    context = jax.lax.map(chosen, (cut(query), cut(index_query), cut(share), places))
    return jnp.moveaxis(context, 0, 1).reshape(*query.shape[:3], latent.kv_rank)
