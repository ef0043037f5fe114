"""Products of activations with weights, in the type of the activations or in 8 bits."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hespas.models.weights import is_product

SMALL = jnp.float8_e4m3fn
"""The 8-bit type of weights, and of activations where they meet such weights."""
ACTIVATION_SCALE = 0.05
"""What activations are divided by before they are rounded: a scale of earlier steps."""


class Rounded(NamedTuple):
    """A weight that is trained, and rounded to 8 bits where it is multiplied.

    ``stored`` is what it was rounded to before; without it that is done where it is multiplied.
    """

    weight: jax.Array
    stored: jax.Array | None = None


STORED = "_in_8_bits"
"""What the name of a weight in 8 bits ends with, beside that which is trained."""


def rounded(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of a layer with those of its products to be rounded to 8 bits.

    Those of norms, biases and of what chooses experts stay as they are, as experts do.
    """
    return {
        name: Rounded(weight, weights.get(f"{name}{STORED}")) if is_multiplied(name) else weight
        for name, weight in weights.items()
        if not name.endswith(STORED)
    }


def is_multiplied(name: str) -> bool:
    """Return whether a weight of a layer, by its name, is one of a product."""
    return is_product(name) and not any(other in name for other in ("router", "experts"))


def is_stored_small(name: str) -> bool:
    """Return whether weights that are never trained are stored in 8 bits: experts' are, too."""
    return is_product(name) and "router" not in name


def product(equation: str, x: jax.Array, weight: Any) -> jax.Array:
    """Return the product of activations and a weight, as ``jnp.einsum`` of both.

    A weight of another float type is cast to that of ``x``. With one that is `Rounded`, all
    products of training have operands of 8 bits: this one, and those of both gradients. One in 8
    bits is a pair with its scale, its dimensions in `stored_order`; activations are then rounded to
    8 bits with a scale that was measured before, as it is when models are served.
    """
    if isinstance(weight, Rounded):
        trained, stored = weight
        stored = in_8_bits(trained.astype(x.dtype)) if stored is None else stored
        return _small_product(equation, x, trained.astype(x.dtype), jax.lax.stop_gradient(stored))
    if not isinstance(weight, tuple):
        return jnp.einsum(equation, x, weight.astype(x.dtype))
    stored, scale = weight
    given, made = equation.split("->")
    left, right = given.split(",")
    order = sorted(right, key=lambda dimension: dimension not in made)
    stored_equation = f"{left},{''.join(order)}->{made}"
    out = jnp.einsum(stored_equation, in_8_bits(x), stored, preferred_element_type=x.dtype)
    return out * (scale * ACTIVATION_SCALE).astype(x.dtype)


def grouped_product(x: jax.Array, weight: Any, counts: jax.Array) -> jax.Array:
    """Return the product of each row with the matrix of its group; ``counts`` are rows of each.

    Weights are as `product` takes them.
    """
    if not isinstance(weight, tuple):
        return lax.ragged_dot(x, weight, counts)
    stored, scale = weight
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )
    out = lax.ragged_dot_general(
        in_8_bits(x), stored, counts, dimensions, preferred_element_type=x.dtype
    )
    return out * (scale * ACTIVATION_SCALE).astype(x.dtype)


def stored_order(name: str, rank: int) -> tuple[int, ...]:
    """Return the order in which the dimensions of a weight stand where it is stored in 8 bits.

    Those that are summed over stand last, as cuBLASLt's products of 8 bits read them.

    >>> stored_order("query_key_value", 4), stored_order("output", 3), stored_order("experts_up", 3)
    ((1, 2, 3, 0), (2, 0, 1), (0, 2, 1))
    """
    summed = (0, 1) if name.endswith("output") else (2,) if name == ABSORBED else (0,)
    if name.startswith("experts_"):
        summed = (1,)
    return (*(at for at in range(rank) if at not in summed), *summed)


ABSORBED = "key_up, absorbed"
"""What makes keys of latent vectors, where it is multiplied with queries instead."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _small_product(equation: str, x: jax.Array, weight: jax.Array, stored: jax.Array) -> jax.Array:
    return _small_forward(equation, x, weight, stored)[0]


def _small_forward(
    equation: str, x: jax.Array, weight: jax.Array, stored: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    del weight
    taken = in_8_bits(x)
    made = jnp.einsum(equation, taken, stored, preferred_element_type=x.dtype)
    return made, (taken, stored)


def _small_backward(
    equation: str, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    given, made = equation.split("->")
    left, right = given.split(",")
    taken, stored = kept
    small, dtype = in_8_bits(gradient), gradient.dtype
    of_x = jnp.einsum(f"{made},{right}->{left}", small, stored, preferred_element_type=dtype)
    of_weight = jnp.einsum(f"{left},{made}->{right}", taken, small, preferred_element_type=dtype)
    return of_x, of_weight, jnp.zeros_like(stored)


_small_product.defvjp(_small_forward, _small_backward)


def in_8_bits(x: jax.Array) -> jax.Array:
    """Round with a scale of earlier steps: how large values are now is not looked at.

    All are of one type, four bits of which are the exponent.
    """
    return jnp.clip(x / jnp.asarray(ACTIVATION_SCALE, x.dtype), -448, 448).astype(SMALL)
