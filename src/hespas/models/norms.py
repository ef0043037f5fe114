"""Norms and positions: what stands between the products of a decoder."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hespas.models.language import Style

_EPSILON = 1e-5
Weights = Mapping[str, Any]
Shapes = dict[str, tuple[str, ...]]


def norm_weights(style: Style, name: str, dimension: str = "norm") -> Shapes:
    """Return the dimensions of a norm's weights."""
    bias: Shapes = {f"{name}_bias": (dimension,)} if style.norm == "layer" else {}
    return {name: (dimension,), **bias}


def normalised(style: Style, x: jax.Array, weights: Weights, name: str) -> jax.Array:
    """Return rows with a mean square of 1, layer norms with a mean of 0 too; in f32, as ``x``."""
    wide = x.astype(jnp.float32)
    if style.norm == "layer":
        wide = wide - jnp.mean(wide, -1, keepdims=True)
    mean = jnp.mean(jax.lax.square(wide), -1, keepdims=True)
    scaled = (wide * jax.lax.rsqrt(mean + _EPSILON)).astype(x.dtype) * weights[name].astype(x.dtype)
    return scaled + weights[f"{name}_bias"].astype(x.dtype) if style.norm == "layer" else scaled


def rotated(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Apply rotary position embeddings to (batch, sequence, heads, size), halves paired."""
    size = x.shape[-1]
    periods = theta ** (2 * jnp.arange(0, size // 2, dtype=jnp.float32) / size)
    angles = positions[:, :, None, None] / periods
    sine, cosine = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)
