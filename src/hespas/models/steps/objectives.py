"""Losses of training, and the shapes of their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hespas.models.network import Input

Loss = Callable[[jax.Array, Any], jax.Array]
_Kept = tuple[jax.Array, ...]
_NORMALISER_WEIGHT = 0.0


def _classes(logits: jax.Array, targets: jax.Array) -> jax.Array:
    chosen = jax.nn.one_hot(targets, logits.shape[-1])
    return -jnp.mean(jnp.sum(chosen * jax.nn.log_softmax(logits, -1), -1))


def _pairs(logits: jax.Array, _: None) -> jax.Array:
    """Return the sigmoid loss over all pairs; equal numbers match.

    Source: X. Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023, section 3.2.
    """
    signs = 2 * jnp.eye(logits.shape[0]) - 1
    return -jnp.sum(jax.nn.log_sigmoid(signs * logits)) / logits.shape[0]


def _noise(output: jax.Array, targets: jax.Array) -> jax.Array:
    noise = output[..., : targets.shape[-1]]
    return jnp.mean(jnp.square(noise - targets.astype(output.dtype)))


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
    """Return a target's shape, and whether it is a number.

    Returns None without a target.
    """
    match objective:
        case "tokens":
            return inputs["inputs"].shape, True
        case "classes" | "clicks":
            return (), True
        case "noise":
            return inputs["image"].shape, False
        case _:
            return None


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return each token's loss, weighing the normaliser.

    ``targets`` is one-hot, of the shape and type of ``logits``.
    """
    return _loss_forward(logits, targets)[0]


def _loss_forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, _Kept]:
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    exponentials = jnp.exp(shifted)
    sums = jnp.sum(exponentials, -1, keepdims=True)
    log_softmax = shifted - jnp.log(sums)
    losses = -jnp.sum(targets * log_softmax, -1)
    normaliser = jnp.squeeze(jnp.log(sums) + largest, -1)
    weighed = _NORMALISER_WEIGHT * jax.lax.square(normaliser)
    return losses + weighed, (logits, targets, exponentials, sums, normaliser)


def _loss_backward(residuals: _Kept, gradient: jax.Array) -> tuple[jax.Array, None]:
    logits, targets, exponentials, sums, normaliser = residuals
    scale = jnp.expand_dims(1 + 2 * _NORMALISER_WEIGHT * normaliser, -1)
    difference = scale * exponentials / sums - targets
    return jnp.asarray(jnp.expand_dims(gradient, -1) * difference, logits.dtype), None


cross_entropy.defvjp(_loss_forward, _loss_backward)


@jax.custom_vjp
def eager_cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return each token's loss as eager PyTorch computes it."""
    return _eager_forward(logits, targets)[0]


def _eager_forward(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, _Kept]:
    wide = jax.lax.optimization_barrier(logits)
    logarithms = jax.lax.optimization_barrier(jax.nn.log_softmax(wide))
    return -jnp.sum(targets * logarithms, -1), (logarithms, targets)


def _eager_backward(residuals: _Kept, gradient: jax.Array) -> tuple[jax.Array, None]:
    logarithms, targets = residuals
    scattered = jax.lax.optimization_barrier(-jnp.expand_dims(gradient, -1) * targets)
    total = jnp.sum(scattered, -1, keepdims=True)
    of_logits = jax.lax.optimization_barrier(scattered - jnp.exp(logarithms) * total)
    return of_logits, None


eager_cross_entropy.defvjp(_eager_forward, _eager_backward)
