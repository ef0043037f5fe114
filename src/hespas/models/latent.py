"""Latent attention: keys and values of all heads are products with one short vector of a token.

While many tokens are computed at once, keys and values are made of the vectors. Over a cache the
vectors themselves are keys and values, which all heads share, and the products that would make
keys are applied to the queries instead. Source: DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hespas.models.attention import cached_attention, causal_attention, fused_over_latents
from hespas.models.cache import Cache
from hespas.models.language import Decode, LanguageModel, Latent, LayerKind
from hespas.models.norms import Places, normalised, rotated, scaled
from hespas.models.products import product
from hespas.models.sharding import Divided

Weights = Mapping[str, Any]
_CACHED = "latents"


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
        query, vectors, rotary = _projected(model, latent, x, weights, places)
    if cache is not None:
        stored = jnp.concatenate((vectors, rotary), -1)[:, None]
        cache = cache.written(**{_CACHED: stored})
        if isinstance(model.run, Decode):
            made = _over_cache(model, divided, kind, query, weights, cache)
            return divided.constrain(made, "batch", "queries", "attended_heads", None), cache
    with jax.named_scope("projections"):
        key = product("bsr,rhd->bshd", vectors, weights["key_up"])
        value = product("bsr,rhd->bshd", vectors, weights["value_up"])
        shape = (*key.shape[:3], latent.rope_size)
        shared = jnp.broadcast_to(rotary[:, :, None], shape)
        key = jnp.concatenate((key, shared), -1)
    return causal_attention(model, divided, kind, (query, key, value), places), cache


def _projected(
    model: LanguageModel, latent: Latent, x: jax.Array, weights: Weights, places: Places
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return queries, scaled, and of each token its vector and the part of keys with positions."""
    style = model.style
    low = normalised(style, product("bse,er->bsr", x, weights["query_down"]), weights, "query_norm")
    query = product("bsr,rhd->bshd", low, weights["query_up"])
    size = model.sizes_of_layers.head_size
    plain, turning = query[..., :size], query[..., size:]
    query = scaled(style, jnp.concatenate((plain, rotated(turning, places)), -1))
    both = product("bse,el->bsl", x, weights["latent_down"])
    vectors, turning = both[..., : latent.kv_rank], both[..., latent.kv_rank :]
    vectors = normalised(style, vectors, weights, "latent_norm")
    rotary = rotated(turning[:, :, None], places)[:, :, 0]
    return query, vectors, rotary


def _over_cache(  # noqa: PLR0917 - the pieces of one layer
    model: LanguageModel,
    divided: Divided,
    kind: LayerKind,
    query: jax.Array,
    weights: Weights,
    cache: Cache,
) -> jax.Array:
    rank = model.sizes["kv_rank"]
    size = model.sizes_of_layers.head_size
    with jax.named_scope("projections"):
        plain = product("bshd,rhd->bshr", query[..., :size], weights["key_up"])
        query = jnp.concatenate((plain, query[..., size:]), -1)
    keys = cache.read(_CACHED)
    if model.run.attention == "flashmla":
        made = fused_over_latents(divided, query, keys, value_size=rank)
    else:
        made = cached_attention(model, kind, query, (keys, keys[..., :rank]))
    with jax.named_scope("projections"):
        return product("bshr,rhd->bshd", made, weights["value_up"])
