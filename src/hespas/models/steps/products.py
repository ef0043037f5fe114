"""Products of activations with weights, unquantised or in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from hespas.base.frozen import frozen
from hespas.models.quantization import FORMATS
from hespas.models.weights import HIGH, LOW, is_adapter, is_product

SMALL = jnp.float8_e4m3fn
"""The 8-bit type of weights, and of activations where they meet such weights."""
ACTIVATION_SCALE = 0.05
"""What activations are divided by before they are rounded: a scale of earlier steps."""


STORED_TYPES: Mapping[str, tuple[Any, Any]] = {
    "mxfp4": (jnp.float4_e2m1fn, jnp.float8_e8m0fnu),
    "nvfp4": (jnp.float4_e2m1fn, jnp.float8_e4m3fn),
    "int4": (jnp.int4, jnp.bfloat16),
    "int4_32": (jnp.int4, jnp.bfloat16),
}
"""The types of weights in 4 bits and of their scales, by the name of the format."""
_LARGEST_OF_4_BITS = 6.0


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("values", "scales"),
    meta_fields=("name", "rounds_rows"),
)
@frozen
class Grouped:
    """A 4-bit weight in `stored_order`, with a scale per group.

    ``name`` is its format. Where it ``rounds_rows``, so are the rows that it is multiplied with.
    """

    values: Any
    scales: Any
    name: str
    rounds_rows: bool = False


SMALL_TYPES: Mapping[str, Any] = {"f8": SMALL, "f4": jnp.float4_e2m1fn}
"""The types of operands of products in few bits, by the name of the setting."""


class Rounded(NamedTuple):
    """A trained weight, rounded to 8 bits for its product.

    ``stored`` is what it was rounded to before; without it that is done where it is multiplied.
    """

    weight: jax.Array
    stored: jax.Array | None = None


class RoundedTo4Bits(Rounded):
    """A trained weight, rounded to 4 bits for its product."""


class Frozen(NamedTuple):
    """A frozen weight, rounded for its product."""

    stored: jax.Array


class Adapted(NamedTuple):
    """A frozen weight, and its adapter's two matrices.

    ``low`` makes of rows some of the rank of the adapter, ``high`` rows of these. Those of experts
    are shared by all of them.
    """

    weight: Any
    low: jax.Array
    high: jax.Array


ADAPTER_SCALE = 2.0
"""Alpha over the rank, by which adapters multiply rows; it changes no time."""

STORED = "_in_8_bits"
"""What the name of a weight in 8 bits ends with, beside that which is trained."""


def rounded(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Round a layer's weights of products to 8 bits.

    Those of norms, biases and of what chooses experts stay as they are, as experts do.
    """
    return {
        name: Rounded(weight, weights.get(f"{name}{STORED}")) if is_multiplied(name) else weight
        for name, weight in weights.items()
        if not name.endswith(STORED)
    }


def is_multiplied(name: str) -> bool:
    """Return whether a weight is multiplied in few bits.

    Adapters stay as they are. Source: Megatron-Bridge 0.6.2, ``ParallelLinearAdapter`` of
    peft/utils.py, made of layers of Megatron-Core, not of Transformer Engine.
    """
    unrounded = ("router", "experts", LOW, HIGH)
    return is_product(name) and not any(part in name for part in unrounded)


def adapted(weights: Mapping[str, Any], dtype: Any, *, of_experts: bool = False) -> dict[str, Any]:
    """Put adapters beside the weights that they belong to.

    All others are frozen: those that were to be rounded have no gradients. Weights of experts are
    left as they are, and with ``of_experts`` all others.
    """

    def is_own(name: str) -> bool:
        return name.startswith("experts_") == of_experts

    def with_adapter(name: str, weight: Any) -> Any:
        if not is_own(name):
            return weight
        if isinstance(weight, Rounded):
            weight = Frozen(_rounded_weight(weight, dtype))
        low, high = (weights.get(f"{name}{which}") for which in (LOW, HIGH))
        return weight if low is None or high is None else Adapted(weight, low, high)

    return {
        name: with_adapter(name, weight)
        for name, weight in weights.items()
        if not (is_own(name) and is_adapter(name))
    }


def _rounded_weight(weight: Rounded, dtype: Any) -> jax.Array:
    """Return a rounded weight, from ``dtype`` unless it is stored."""
    if weight.stored is not None:
        return weight.stored
    name = "f4" if isinstance(weight, RoundedTo4Bits) else "f8"
    return in_few_bits(weight.weight.astype(dtype), SMALL_TYPES[name])


def product(equation: str, x: jax.Array, weight: Any) -> jax.Array:
    """Multiply activations and a weight, as ``jnp.einsum`` does.

    A weight of another float type is cast to that of ``x``. With one that is `Rounded`, all
    products of training have operands of few bits: this one, and those of both gradients. One in 8
    bits is a pair with its scale, its dimensions in `stored_order`; activations are then rounded to
    8 bits with a scale that was measured before, as it is when models are served. One in 4 bits is
    widened by its scales.
    """
    if isinstance(weight, Adapted):
        return product(equation, x, weight.weight) + _adapter_product(equation, x, weight)
    if isinstance(weight, Frozen):
        return _small_product(equation, x, None, weight.stored)
    if isinstance(weight, Rounded):
        stored = jax.lax.stop_gradient(_rounded_weight(weight, x.dtype))
        return _small_product(equation, x, weight.weight.astype(x.dtype), stored)
    if not is_stored(weight):
        return jnp.einsum(equation, x, weight.astype(x.dtype))
    operands, output = equation.split("->")
    rows, dimensions = operands.split(",")
    order = sorted(dimensions, key=lambda dimension: dimension not in output)
    stored_equation = f"{rows},{''.join(order)}->{output}"
    if isinstance(weight, Grouped):
        return jnp.einsum(stored_equation, _rounded_rows(x, weight), widened(weight, x.dtype))
    stored, scale = weight
    out = jnp.einsum(stored_equation, in_8_bits(x), stored, preferred_element_type=x.dtype)
    return out * (scale * ACTIVATION_SCALE).astype(x.dtype)


def _adapter_product(equation: str, x: jax.Array, weight: Adapted) -> jax.Array:
    """Return what an adapter adds to a product.

    Dimensions that rows and weights share, as experts are, rows alone have here.
    """
    operands, output = equation.split("->")
    left_dimensions, right_dimensions = operands.split(",")
    summed = [dimension for dimension in right_dimensions if dimension not in output]
    outputs = "".join(
        dimension for dimension in right_dimensions if dimension not in left_dimensions
    )
    rows = "".join(dimension for dimension in left_dimensions if dimension not in summed)
    low, high = (dimension.astype(x.dtype) for dimension in (weight.low, weight.high))
    with jax.named_scope("adapter"):
        few = jnp.einsum(f"{left_dimensions},{''.join(summed)}z->{rows}z", x, low)
        return jnp.einsum(f"{rows}z,z{outputs}->{output}", few, high) * ADAPTER_SCALE


def grouped_product(x: jax.Array, weight: Any, counts: jax.Array) -> jax.Array:
    """Multiply rows by the matrix of their group.

    Weights are as `product` takes them.
    """
    if isinstance(weight, Adapted):
        own = grouped_product(x, weight.weight, counts)
        return own + _adapter_product("re,ef->rf", x, weight)
    if not is_stored(weight):
        return lax.ragged_dot(x, weight, counts)
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )
    if isinstance(weight, Grouped):
        wide = widened(weight, x.dtype)
        return lax.ragged_dot_general(_rounded_rows(x, weight), wide, counts, dimensions)
    stored, scale = weight
    out = lax.ragged_dot_general(
        in_8_bits(x), stored, counts, dimensions, preferred_element_type=x.dtype
    )
    return out * (scale * ACTIVATION_SCALE).astype(x.dtype)


def is_stored(weight: Any) -> bool:
    """Return whether a weight is stored in scaled bits."""
    return isinstance(weight, tuple | Grouped)


def widened(weight: Grouped, dtype: Any) -> jax.Array:
    """Widen a 4-bit weight, without the last group's padding."""
    *rows, groups = weight.scales.shape
    group, summed = FORMATS[weight.name].group, weight.values.shape[-1]
    scales = jnp.broadcast_to(weight.scales.astype(dtype)[..., None], (*rows, groups, group))
    spread = scales.reshape(*rows, groups * group)[..., :summed]
    return weight.values.astype(dtype) * spread


def _rounded_rows(x: jax.Array, weight: Grouped) -> jax.Array:
    """Round rows to 4 bits if their weight requires it.

    Each group is divided by its largest number, as NVIDIA's recipe for NVFP4 has it.
    """
    if not weight.rounds_rows:
        return x
    values, scales = STORED_TYPES[weight.name]
    group = FORMATS[weight.name].group
    groups = x.reshape(*x.shape[:-1], -1, group)
    largest = jnp.max(jnp.abs(groups), -1)
    scale = jnp.maximum(largest / _LARGEST_OF_4_BITS, 2.0**-9).astype(scales)
    small = (groups / scale.astype(x.dtype)[..., None]).astype(values).reshape(x.shape)
    return widened(Grouped(values=small, scales=scale, name=weight.name), x.dtype)


_OUTPUT_RANK = 3
"""Of the weights that heads are multiplied by: heads, their size, the width of the model."""


def stored_order(name: str, rank: int) -> tuple[int, ...]:
    """Return the order of an 8-bit weight's dimensions.

    Those that are summed over stand last, as cuBLASLt's products of 8 bits read them.

    >>> stored_order("query_key_value", 4), stored_order("output", 3), stored_order("experts_up", 3)
    ((1, 2, 3, 0), (2, 0, 1), (0, 2, 1))
    >>> stored_order("input_output", 2)
    (1, 0)
    """
    is_output = name.endswith("output") and rank == _OUTPUT_RANK
    summed = (0, 1) if is_output else (2,) if name == ABSORBED else (0,)
    if name.startswith("experts_"):
        summed = (1,)
    return (*(dimension for dimension in range(rank) if dimension not in summed), *summed)


ABSORBED = "key_up, absorbed"
"""What makes keys of latent vectors, where it is multiplied with queries instead."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _small_product(
    equation: str, x: jax.Array, weight: jax.Array | None, stored: jax.Array
) -> jax.Array:
    """Multiply rows in few bits by ``stored``, the rounded ``weight``.

    A frozen weight is None, and has no gradient.
    """
    return _small_forward(equation, x, weight, stored)[0]


_Residuals = tuple[jax.Array | None, jax.Array]


def _small_forward(
    equation: str, x: jax.Array, weight: jax.Array | None, stored: jax.Array
) -> tuple[jax.Array, _Residuals]:
    rows = in_few_bits(x, stored.dtype)
    output = jnp.einsum(equation, rows, stored, preferred_element_type=x.dtype)
    return output, (None if weight is None else rows, stored)


def _small_backward(
    equation: str, residuals: _Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    operands, output = equation.split("->")
    rows_of, weight_of = operands.split(",")
    rows, stored = residuals
    small = in_few_bits(gradient, stored.dtype)
    multiply = partial(jnp.einsum, preferred_element_type=gradient.dtype)
    of_x = multiply(f"{output},{weight_of}->{rows_of}", small, stored)
    of_weight = None if rows is None else multiply(f"{rows_of},{output}->{weight_of}", rows, small)
    return of_x, of_weight, jnp.zeros_like(stored)


_small_product.defvjp(_small_forward, _small_backward)


def in_8_bits(x: jax.Array) -> jax.Array:
    """Round to 8 bits with a delayed scale.

    All are of one type, four bits of which are the exponent.
    """
    return in_few_bits(x, SMALL)


def in_few_bits(x: jax.Array, dtype: Any) -> jax.Array:
    """Round to a type of 8 or 4 bits."""
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x / jnp.asarray(ACTIVATION_SCALE, x.dtype), -largest, largest).astype(dtype)
