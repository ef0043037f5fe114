"""The dense layers of a decoder: two products, or three."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.architecture import Style
from hespas.models.steps.norms import apart, apart_in_experts
from hespas.models.steps.products import product
from hespas.models.steps.sharding import Divided

Weights = Mapping[str, Any]


def feed_forward(
    style: Style, divided: Divided, x: jax.Array, weights: Weights, prefix: str = ""
) -> jax.Array:
    """Return what the dense layer makes of (batch, sequence, embedding)."""
    width = "shared_mlp" if prefix else "mlp"
    if f"{prefix}gate_up" in weights:
        both = _biased("bse,egf->bsgf", x, weights, f"{prefix}gate_up")
        both = checkpoint_name(both, "mlp_up")
        inner = gated(style, both[:, :, 0], both[:, :, 1])
    else:
        inner = _inner_rows(style, x, weights, prefix)
    inner = divided.constrain(inner, "batch", "sequence", width)
    inner = checkpoint_name(inner, "mlp_inner")
    return _biased("bsf,fe->bse", inner, weights, f"{prefix}down")


def _inner_rows(style: Style, x: jax.Array, weights: Weights, prefix: str) -> jax.Array:
    up = checkpoint_name(_biased("bse,ef->bsf", x, weights, f"{prefix}up"), "mlp_up")
    if not style.gated:
        return activated(style, up)
    gate = checkpoint_name(_biased("bse,ef->bsf", x, weights, f"{prefix}gate"), "mlp_gate")
    return gated(style, gate, up)


def _biased(indices: str, x: jax.Array, weights: Weights, name: str) -> jax.Array:
    """Return a product with a weight, and its bias where it has one."""
    rows, bias = product(indices, x, weights[name]), weights.get(f"{name}_bias")
    return rows if bias is None else rows + bias.astype(rows.dtype)


_CLIP, _SLOPE = 7.0, 1.702
"""Where gpt-oss cuts activations off, and the slope of its sigmoid. Source: OpenAI, gpt-oss."""


def gated(style: Style, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Return the gate's activation times ``up``."""
    if style.activation != "clipped_silu":
        return apart(style, activated(style, gate) * up)
    gate, up = jnp.minimum(gate, _CLIP), jnp.clip(up, -_CLIP, _CLIP)
    if style.eager_experts:
        # Cut off one by one and put together again for the kernel of the activation. Source:
        # megatron-core 0.16.1, ``weighted_bias_quick_geglu_impl`` of fusions/fused_bias_geglu.py.
        both = [apart_in_experts(style, part) for part in (gate, up)]
        gate, up = jnp.split(apart_in_experts(style, jnp.concatenate(both, -1)), 2, -1)
    return gate * jax.nn.sigmoid(gate * _SLOPE) * (up + 1)


def activated(style: Style, x: jax.Array) -> jax.Array:
    """Apply the style's activation."""
    match style.activation:
        case "gelu" | "exact_gelu":
            activation = jax.nn.gelu(x, approximate=style.activation == "gelu")
        case "relu":
            activation = jax.nn.relu(x)
        case "relu_squared":
            activation = jnp.square(jax.nn.relu(x))
        case _:
            activation = jax.nn.silu(x)
    return apart(style, activation)
