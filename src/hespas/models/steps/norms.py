"""Norms and positions of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hespas.models.architecture import LayerKind, RotaryScaling, Style

Weights = Mapping[str, Any]


def apart(style: Style, x: jax.Array) -> jax.Array:
    """Write ``x`` by its own kernel in an eager step."""
    return jax.lax.optimization_barrier(x) if style.eager else x


def apart_in_experts(style: Style, x: jax.Array) -> jax.Array:
    """Write ``x`` by its own kernel, between products of experts."""
    return jax.lax.optimization_barrier(x) if style.eager_experts else x


def normalised(style: Style, x: jax.Array, weights: Weights, name: str) -> jax.Array:
    """Normalise rows in f32, with the weights of a name."""
    if style.eager and style.norm == "rms":
        return _eager_rms_norm(style, x, weights[name])
    scaled = plainly_normalised(style, x)
    if name in weights:
        scaled = scaled * weights[name].astype(x.dtype)
    bias = weights.get(f"{name}_bias")
    return apart(style, scaled if bias is None else scaled + bias.astype(x.dtype))


def _eager_rms_norm(style: Style, x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute an RMS norm with one kernel an operation.

    Source: pytorch/pytorch 2.5, ``rms_norm_composite`` of aten/src/ATen/native/layer_norm.cpp.
    """
    wide = apart(style, x.astype(jnp.float32))
    square = apart(style, jax.lax.square(wide))
    scale = jax.lax.rsqrt(jnp.mean(square, -1, keepdims=True) + style.epsilon)
    normed = apart(style, wide * scale)
    normed = apart(style, normed * weight.astype(jnp.float32))
    return apart(style, normed.astype(x.dtype))


def plainly_normalised(style: Style, x: jax.Array) -> jax.Array:
    """Return what `normalised` does, before it is multiplied by weights."""
    wide = x.astype(jnp.float32)
    if style.norm == "layer":
        wide = wide - jnp.mean(wide, -1, keepdims=True)
    mean = jnp.mean(jax.lax.square(wide), -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + style.epsilon)).astype(x.dtype)


class Places(NamedTuple):
    """Where tokens stand, as all layers take it.

    ``turns`` has the sine and cosine of each one's rotary angles, by how many numbers turn and the
    base of their periods. ``documents`` has each one's document, 0 for none, and which are earlier
    than which; None where a sequence is one. ``keys`` has the keys and values that later layers
    share, by the window that these have.
    """

    turns: Mapping[tuple[int, float], tuple[jax.Array, jax.Array]]
    documents: tuple[jax.Array, jax.Array] | None = None
    keys: Mapping[int, tuple[jax.Array, jax.Array]] = {}

    def with_keys(self, kind: LayerKind, keys: tuple[jax.Array, jax.Array]) -> Places:
        """Add the keys and values that a layer keeps."""
        return self._replace(keys={**self.keys, kind.window: keys})


def turns(
    positions: jax.Array, size: int, theta: float, scaling: RotaryScaling | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return sines and cosines of rotary angles, by ``size``."""
    if scaling is None:
        periods = theta ** (2 * jnp.arange(0, size // 2, dtype=jnp.float32) / size)
        angles = positions[:, :, None, None] / periods
        return jnp.sin(angles), jnp.cos(angles)
    angles = positions[:, :, None, None] * jnp.asarray(_frequencies(size, theta, scaling))
    return jnp.sin(angles) * scaling.amplitude, jnp.cos(angles) * scaling.amplitude


def _frequencies(size: int, theta: float, scaling: RotaryScaling) -> np.ndarray[Any, Any]:
    """Return each pair's rotation per token, in f32."""
    plain = theta ** (-2 * np.arange(size // 2) / size)
    match scaling.kind:
        case "linear":
            unscaled = np.zeros(size // 2)
        case "llama3":
            times = scaling.original * plain / (2 * np.pi)
            unscaled = np.clip((times - scaling.slow) / (scaling.fast - scaling.slow), 0, 1)
        case "yarn":
            ends = [
                _pair_that_rotates(size, theta, scaling, times)
                for times in (scaling.fast, scaling.slow)
            ]
            if scaling.is_truncated:
                ends = [np.floor(ends[0]), np.ceil(ends[1])]
            first, last = max(ends[0], 0.0), min(ends[1], size - 1.0)
            unscaled = 1 - np.clip((np.arange(size // 2) - first) / max(last - first, 1e-3), 0, 1)
    return (plain * (unscaled + (1 - unscaled) / scaling.factor)).astype(np.float32)


def _pair_that_rotates(size: int, theta: float, scaling: RotaryScaling, times: float) -> float:
    """Return which pair rotates ``times`` in the original tokens."""
    return size * np.log(scaling.original / (times * 2 * np.pi)) / (2 * np.log(theta))


def rotated(
    x: jax.Array, places: Places, rotation: tuple[int, float], style: Style | None = None
) -> jax.Array:
    """Rotate positions of (batch, sequence, heads, size), halves paired.

    The ``rotation`` says how many numbers of a head turn, the first ones, and by which periods.
    """
    if rotation not in places.turns:
        return x
    if style is not None and style.eager:
        # In f32, as complex numbers: a cast, a product, a cast. Source: pytorch/torchtitan,
        # ``apply_rotary_emb``.
        wide = apart(style, x.astype(jnp.float32))
        return apart(style, apart(style, rotated(wide, places, rotation)).astype(x.dtype))
    if style is not None and style.eager_rotation:
        return _eagerly_rotated(x, places, rotation)
    sine, cosine = (wave.astype(x.dtype) for wave in places.turns[rotation])
    turning, still = x[..., : rotation[0]], x[..., rotation[0] :]
    first, second = jnp.split(turning, 2, -1)
    parts = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate([*parts, still] if still.shape[-1] else parts, -1)


def _eagerly_rotated(x: jax.Array, places: Places, rotation: tuple[int, float]) -> jax.Array:
    """Rotate positions by PyTorch's operations, a kernel each.

    Source: megatron-core 0.16.1, ``_apply_rotary_pos_emb_bshd`` of
    models/common/embeddings/rope_utils.py.
    """
    kernel = jax.lax.optimization_barrier
    sine, cosine = (
        jnp.concatenate([wave, wave], -1).astype(x.dtype) for wave in places.turns[rotation]
    )
    turning, still = x[..., : rotation[0]], x[..., rotation[0] :]
    first, second = jnp.split(turning, 2, -1)
    turned = kernel(jnp.concatenate([kernel(-second), first], -1))
    rotated_rows = kernel(kernel(turning * cosine) + kernel(turned * sine))
    return kernel(jnp.concatenate([rotated_rows, still], -1)) if still.shape[-1] else rotated_rows


def scaled(style: Style, query: jax.Array) -> jax.Array:
    """Scale queries, by default with their inverse root length."""
    scale = style.query_scale or query.shape[-1] ** -0.5
    return query if scale == 1 else query * jnp.asarray(scale, query.dtype)
