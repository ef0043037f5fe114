"""Norms and positions: what stands between the products of a decoder."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hespas.models.language import Style

_EPSILON = 1e-5
Weights = Mapping[str, Any]


def normalised(style: Style, x: jax.Array, weights: Weights, name: str) -> jax.Array:
    """Return rows with a mean square of 1, layer norms with a mean of 0 too; in f32, as ``x``."""
    wide = x.astype(jnp.float32)
    if style.norm == "layer":
        wide = wide - jnp.mean(wide, -1, keepdims=True)
    mean = jnp.mean(jax.lax.square(wide), -1, keepdims=True)
    scaled = (wide * jax.lax.rsqrt(mean + _EPSILON)).astype(x.dtype) * weights[name].astype(x.dtype)
    return scaled + weights[f"{name}_bias"].astype(x.dtype) if style.norm == "layer" else scaled


class Places(NamedTuple):
    """Where tokens stand, as all layers take it.

    ``turn`` has the sine and cosine of each one's rotary angles, None without such positions.
    ``documents`` has each one's document, 0 for none, and which are earlier than which; None where
    a sequence is one.
    """

    turn: tuple[jax.Array, jax.Array] | None
    documents: tuple[jax.Array, jax.Array] | None = None


def turns(positions: jax.Array, size: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Return the sine and cosine of rotary angles of (batch, sequence), for heads of ``size``."""
    periods = theta ** (2 * jnp.arange(0, size // 2, dtype=jnp.float32) / size)
    angles = positions[:, :, None, None] / periods
    return jnp.sin(angles), jnp.cos(angles)


def rotated(x: jax.Array, places: Places) -> jax.Array:
    """Apply rotary position embeddings to (batch, sequence, heads, size), halves paired."""
    if places.turn is None:
        return x
    sine, cosine = (each.astype(x.dtype) for each in places.turn)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)


def scaled(style: Style, query: jax.Array) -> jax.Array:
    """Multiply queries with the style's scale, or the inverse root of their length."""
    scale = style.query_scale or query.shape[-1] ** -0.5
    return query if scale == 1 else query * jnp.asarray(scale, query.dtype)
