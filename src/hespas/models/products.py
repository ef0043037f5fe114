"""Products of activations with weights, in the type of the activations or in 8 bits."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

SMALL = jnp.float8_e4m3fn
"""The 8-bit type of weights, and of activations where they meet such weights."""
_ACTIVATION_SCALE = 0.05


def product(equation: str, x: jax.Array, weight: Any) -> jax.Array:
    """Return the product of activations and a weight, as ``jnp.einsum`` of both.

    A weight of another float type is cast to that of ``x``. One in 8 bits is a pair with its scale;
    activations are then rounded to 8 bits with a scale that was measured before, as it is
    when models are served.
    """
    if not isinstance(weight, tuple):
        return jnp.einsum(equation, x, weight.astype(x.dtype))
    stored, scale = weight
    taken = jnp.clip(x / _ACTIVATION_SCALE, -448, 448).astype(SMALL)
    return jnp.einsum(
        equation,
        taken.astype(x.dtype) * jnp.asarray(_ACTIVATION_SCALE, x.dtype),
        stored.astype(x.dtype) * scale.astype(x.dtype),
    )
