"""Trace cuDNN's fused attention without GPU and cuDNN.

JAX's own function asks for the installed version of cuDNN and for devices, and divides its calls by
a callback that only the process which traced them can run. The two primitives here, one forward and
one backward, have JAX's rules for shapes and for lowering, and none of these needs; the code that
divides arrays maps the function over devices.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from hespas.xla.flash import cuda_primitive

_UNUSED_OPERANDS = 7
"""Bias, lengths and offsets of packed sequences, and tables of pages."""

_attention = cuda_primitive(
    "cudnn_attention",
    cudnn._dot_product_attention_fwd_abstract,  # noqa: SLF001 - there is no other way
    cudnn._dot_product_attention_fwd_cuda_lowering,  # noqa: SLF001 - as above
)
_small_attention = cuda_primitive(
    "cudnn_small_attention",
    cudnn._dot_product_attention_fp8_fwd_abstract,  # noqa: SLF001 - as above
    cudnn._dot_product_attention_fp8_fwd_cuda_lowering,  # noqa: SLF001 - as above
)
_gradients = cuda_primitive(
    "cudnn_attention_gradients",
    cudnn._dot_product_attention_bwd_abstract,  # noqa: SLF001 - as above
    cudnn._dot_product_attention_bwd_cuda_lowering,  # noqa: SLF001 - as above
)


def decoding_attention(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    table: jax.Array | None = None,
    lengths: jax.Array | None = None,
) -> jax.Array:
    """Attend from a new token per sequence to a cache.

    The result is softmax(query key^T) value. ``query`` is (batch, 1, heads, head size), scaled; a
    cache is (batch, heads, tokens, head size), or in pages, (pages, heads, page size, head size),
    which ``table`` lists for each sequence; ``lengths`` counts the tokens of each sequence in them.
    """
    query = jnp.swapaxes(query, 1, 2)
    unused = list(_unused(query))
    settings = _settings(causal=False) | {"layout": cudnn.AttentionLayout.BNTH.value}
    if table is not None and lengths is not None:
        pages = table[:, None, :, None]
        unused = [unused[0], jnp.ones_like(lengths), lengths, *unused[3:5], pages, pages]
        settings["mask_type"] = cudnn.MaskType.PADDING
    (context,) = _attention.bind(query, keys, values, *unused, **settings, is_training=False)
    return jnp.swapaxes(context, 1, 2)


def decoding_attention_with_sinks(
    query: jax.Array, keys: jax.Array, values: jax.Array, sinks: jax.Array
) -> jax.Array:
    """Attend as `decoding_attention`, with a sink per head.

    A sink is one more score in the sums of the head's rows.
    """
    query = jnp.swapaxes(query, 1, 2)
    settings = _settings(causal=False) | {"layout": cudnn.AttentionLayout.BNTH.value}
    context, logarithms = _attention.bind(
        query, keys, values, *_unused(query), **settings, is_training=True
    )
    share = jax.nn.sigmoid(logarithms - sinks.astype(jnp.float32)[:, None])[..., None]
    return jnp.swapaxes((context * share).astype(context.dtype), 1, 2)


def small_decoding_attention(
    query: jax.Array, keys: jax.Array, values: jax.Array, scale: float
) -> jax.Array:
    """Attend from one new token to an 8-bit cache.

    All arrays have 8 bits. They are as `decoding_attention` takes them without pages; ``scale`` is
    that of each of them.
    """
    query = jnp.swapaxes(query, 1, 2)
    unit, factor = (jnp.full((1, 1, 1, 1), number, jnp.float32) for number in (1.0, scale))
    context, *_ = _small_attention.bind(
        *(query, keys, values),
        *(factor, factor, factor, unit, unit, 1 / factor),
        scale=1.0,
        use_causal_mask=False,
        layout=cudnn.AttentionLayout.BNTH.value,
        is_training=False,
    )
    return jnp.swapaxes(context, 1, 2)


def attention_block(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool, window: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Return softmax(query key^T) value and the rows' log-sum-exp.

    The latter is (batch, heads, sequence) in f32: what the softmax of several blocks needs. Each
    query sees the last ``window`` keys; 0 means all earlier ones.
    """
    settings = _settings(causal=causal, window=window)
    context, statistics = _attention.bind(
        query, key, value, *_unused(query), **settings, is_training=True
    )
    return context, statistics


def attention_gradients(
    arrays: tuple[jax.Array, jax.Array, jax.Array],
    results: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
    *,
    causal: bool,
    window: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a block's gradients of query, key and value.

    These are the ``arrays``; ``results`` are the result and its statistics over all blocks.
    """
    context, statistics = results
    query, key, value = _gradients.bind(
        *arrays,
        *_unused(arrays[0]),
        *(statistics, context, gradient),
        **_settings(causal=causal, window=window),
    )
    return query, key, value


def _unused(query: jax.Array) -> tuple[jax.Array, ...]:
    return (jnp.zeros(0, dtype=query.dtype),) * _UNUSED_OPERANDS


def _settings(*, causal: bool = True, window: int = 0) -> dict[str, Any]:
    return {
        "scale": 1.0,
        "seed": 0,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": cudnn.MaskType.CAUSAL if causal else cudnn.MaskType.NO_MASK,
        "layout": cudnn.AttentionLayout.BTNH.value,
        "sliding_window_length": window or None,
    }
