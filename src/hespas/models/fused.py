"""Causal attention by fused kernels, whose scores never reach memory: those of `FUSED`.

Importing this does not import the lowering of either.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module

import jax
from jax.ad_checkpoint import checkpoint_name

from hespas.models.context import Blocks
from hespas.models.kernels import FUSED


def fused_blocks(kernels: str, *, score_cap: float = 0.0) -> Blocks:
    """Return the forward and backward kernels of a choice of attention that is fused.

    Scores have a ``score_cap`` where that is not 0, which not all kernels can do.
    """
    module = import_module(FUSED[kernels].module)
    capped = {"score_cap": score_cap} if score_cap else {}
    return Blocks(
        forward=partial(module.attention_block, **capped),
        backward=partial(module.attention_gradients, **capped),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The kernels, and what they do: each query sees the last ``window`` keys, all where that is 0.

    What the backward pass needs of the forward pass has the name ``saved`` for rematerialisation
    policies.
    """

    blocks: Blocks
    saved: str
    window: int = 0


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_attention(fused: Fused, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return softmax(query key^T) value, causal, without a scale.

    Arrays are (batch, sequence, heads, head size); keys and values may have fewer heads.
    """
    return _forward(fused, query, key, value)[0]


def _forward(
    fused: Fused, query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    made = fused.blocks.forward(query, key, value, causal=True, window=fused.window)
    context, statistics = (checkpoint_name(each, fused.saved) for each in made)
    return context, (query, key, value, context, statistics)


def _backward(
    fused: Fused, kept: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, ...]:
    query, key, value, *made = kept
    return fused.blocks.backward(
        (query, key, value), tuple(made), gradient, causal=True, window=fused.window
    )


fused_attention.defvjp(_forward, _backward)
