"""Trace splash attention, JAX's Pallas kernels for TPUs.

There is one kernel forward, and one for each kind of gradient. They compute the blocks of queries
and keys that the mask leaves, a block of scores at a time. The custom calls hold the kernels'
programs, so that libtpu compiles them. Source: JAX,
``jax.experimental.pallas.ops.tpu.splash_attention``; blocks of 512, a kernel for gradients of
queries and another one for those of keys and values are MaxText 0.2.5's defaults (``sa_block_q``,
``sa_use_fused_bwd_kernel``).
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

_LARGEST_BLOCK = 512


def attention_block(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    causal: bool,
    window: int = 0,
    score_cap: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Return softmax(query key^T) value and the rows' log-sum-exp.

    Arrays are (batch, sequence, heads, head size), keys and values with as many heads or fewer, and
    a sequence is a multiple of 128 long; the logarithms are (batch, heads, sequence) in f32. Each
    query sees the last ``window`` keys; 0 means all earlier ones. A hyperbolic tangent keeps scores
    below ``score_cap``, unless that is 0.
    """
    kernel = _kernel(query, key, causal=causal, window=window, score_cap=score_cap)
    forward = partial(
        splash._splash_attention_forward,  # noqa: SLF001 - its logarithms are not public
        kernel.fwd_mask_info,
        segment_ids=None,
        sinks=None,
        **(kernel.kwargs | {"save_residuals": True}),
    )
    context, (logarithms,) = jax.vmap(forward)(*map(_by_head, (query, key, value)))
    return _by_head(context), logarithms


def attention_gradients(
    arrays: tuple[jax.Array, jax.Array, jax.Array],
    results: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
    *,
    causal: bool,
    window: int = 0,
    score_cap: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of query, key and value (``arrays``).

    ``results`` are those of the forward pass; ``causal``, ``window`` and ``score_cap`` are as they
    were in it.
    """
    kernel = _kernel(*arrays[:2], causal=causal, window=window, score_cap=score_cap)
    context, logarithms = results

    def of_sequence(*operands: jax.Array) -> tuple[jax.Array, ...]:
        *inputs, context, logarithms, gradient = operands
        tables = (kernel.dq_mask_info, kernel.dkv_mask_info)
        residuals: Any = (*inputs, None, None, context, logarithms, *tables)
        gradients = splash._splash_attention_bwd(  # noqa: SLF001 - JAX calls it for its own forward
            res=residuals, do=gradient, **kernel.kwargs
        )
        return gradients[3:6]

    operands = (*map(_by_head, (*arrays, context)), logarithms, _by_head(gradient))
    query, key, value = map(_by_head, jax.vmap(of_sequence)(*operands))
    return query, key, value


def _kernel(
    query: jax.Array, key: jax.Array, *, causal: bool, window: int, score_cap: float
) -> Any:
    shape = (query.shape[1], key.shape[1])
    mask: Any = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    if causal and window:
        mask = masks.LocalMask(shape, window_size=(window - 1, 0), offset=0)
    rows, columns = map(_block, shape)
    return splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * query.shape[2]),
        block_sizes=splash.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_q_dkv=rows,
            block_kv_dkv=columns,
            block_q_dq=rows,
            block_kv_dq=columns,
        ),
        attn_logits_soft_cap=score_cap or None,
    )


def _block(length: int) -> int:
    """Return the largest block that divides a sequence."""
    return next(size for size in range(_LARGEST_BLOCK, 0, -128) if length % size == 0)


def _by_head(array: jax.Array) -> jax.Array:
    """Exchange tokens and heads."""
    return jnp.swapaxes(array, 1, 2)
