"""The dense layers of a decoder: two products with an activation between, or three, gated."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from hespas.models.language import Style
from hespas.models.products import product
from hespas.models.sharding import Divided

Weights = Mapping[str, Any]


def feed_forward(
    style: Style, divided: Divided, x: jax.Array, weights: Weights, prefix: str = ""
) -> jax.Array:
    """Return what the dense layer makes of (batch, sequence, embedding)."""
    width = "shared_mlp" if prefix else "mlp"
    if f"{prefix}gate_up" in weights:
        both = product("bse,egf->bsgf", x, weights[f"{prefix}gate_up"])
        both = checkpoint_name(both, "mlp_up")
        inner = activated(style, both[:, :, 0]) * both[:, :, 1]
    else:
        inner = _inner(style, x, weights, prefix)
    inner = divided.constrain(inner, "batch", "sequence", width)
    down = product("bsf,fe->bse", inner, weights[f"{prefix}down"])
    return down + weights[f"{prefix}down_bias"].astype(down.dtype) if style.biases else down


def _inner(style: Style, x: jax.Array, weights: Weights, prefix: str) -> jax.Array:
    up = product("bse,ef->bsf", x, weights[f"{prefix}up"])
    if style.biases:
        up = up + weights[f"{prefix}up_bias"].astype(up.dtype)
    up = checkpoint_name(up, "mlp_up")
    if not style.gated:
        return activated(style, up)
    gate = checkpoint_name(product("bse,ef->bsf", x, weights[f"{prefix}gate"]), "mlp_gate")
    return activated(style, gate) * up


def activated(style: Style, x: jax.Array) -> jax.Array:
    """Apply the activation: SiLU, or GELU by its hyperbolic tangent."""
    return jax.nn.silu(x) if style.activation == "silu" else jax.nn.gelu(x, approximate=True)
