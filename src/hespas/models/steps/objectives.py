"""The losses that networks are trained for, and their targets' shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hespas.models.network import Input

Loss = Callable[[jax.Array, Any], jax.Array]


def _classes(logits: jax.Array, targets: jax.Array) -> jax.Array:
    chosen = jax.nn.one_hot(targets, logits.shape[-1])
    return -jnp.mean(jnp.sum(chosen * jax.nn.log_softmax(logits, -1), -1))


def _pairs(logits: jax.Array, _: None) -> jax.Array:
    """Return the sigmoid loss over all pairs; equal numbers match.

    Source: X. Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023, section 3.2.
    """
    signs = 2 * jnp.eye(logits.shape[0]) - 1
    return -jnp.sum(jax.nn.log_sigmoid(signs * logits)) / logits.shape[0]


def _noise(made: jax.Array, targets: jax.Array) -> jax.Array:
    known = made[..., : targets.shape[-1]]
    return jnp.mean(jnp.square(known - targets.astype(made.dtype)))


def _clicks(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.softplus(logits) - targets * logits)


OBJECTIVES: dict[str, Loss] = {
    "tokens": _classes,
    "classes": _classes,
    "pairs": _pairs,
    "noise": _noise,
    "clicks": _clicks,
}
"""The losses by the name of what is guessed."""


def target_shape(
    objective: str, inputs: Mapping[str, Input]
) -> tuple[tuple[int, ...], bool] | None:
    """Return a sample's target shape, and whether it is a number, or None."""
    match objective:
        case "tokens":
            return inputs["inputs"].shape, True
        case "classes" | "clicks":
            return (), True
        case "noise":
            return inputs["image"].shape, False
        case _:
            return None
