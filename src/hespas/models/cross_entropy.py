"""The softmax cross entropy of large vocabularies, with its own backward pass.

As in t5x and MaxText: the forward pass keeps the exponentials, and a term weighs the logarithm
of the normaliser, here with zero.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import jax
import jax.numpy as jnp

_NORMALISER_WEIGHT = 0.0

Losses = tuple[jax.Array, jax.Array]
_Kept = tuple[jax.Array, ...]


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> Losses:
    """Return each token's loss, and the part of it that weighs the normaliser.

    ``targets`` is one-hot, of the shape and type of ``logits``.
    """
    return _forward(logits, targets)[0]


def _forward(logits: jax.Array, targets: jax.Array) -> tuple[Losses, _Kept]:
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    exponentials = jnp.exp(shifted)
    sums = jnp.sum(exponentials, -1, keepdims=True)
    log_softmax = shifted - jnp.log(sums)
    losses = -jnp.sum(targets * log_softmax, -1)
    normaliser = jnp.squeeze(jnp.log(sums) + largest, -1)
    weighed = _NORMALISER_WEIGHT * jax.lax.square(normaliser)
    return (losses + weighed, weighed), (logits, targets, exponentials, sums, normaliser)


def _backward(kept: _Kept, gradients: Losses) -> tuple[jax.Array, None]:
    logits, targets, exponentials, sums, normaliser = kept
    scale = jnp.expand_dims(1 + 2 * _NORMALISER_WEIGHT * normaliser, -1)
    difference = scale * exponentials / sums - targets
    gradient = jnp.expand_dims(gradients[0], -1) * difference
    return jnp.asarray(gradient, logits.dtype), None


cross_entropy.defvjp(_forward, _backward)
