"""Trace kernels of FlashAttention, FlashMLA and DeepGEMM.

FlashAttention has forward and backward; DeepGEMM's kernel is that of an index. The custom calls
have names of their own, since no library of JAX's has these kernels: a program with them is priced,
and optimised by XLA up to the executable, but does not run. Source of the kernels' operands and
memory: Dao-AILab/flash-attention, ``mha_fwd`` and ``mha_bwd`` of ``csrc/flash_attn/flash_api.cpp``;
deepseek-ai/FlashMLA, ``flash_mla_with_kvcache``: keys are whole latent vectors, values their first
numbers, for all heads of the queries, and ``flash_mla_sparse_fwd``: each query has the places of
its own keys; deepseek-ai/DeepGEMM, ``fp8_mqa_logits``: scores of heads in 8 bits, cut off at zero,
weighed and added up.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.interpreters.mlir import aval_to_ir_type, custom_call
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters.mlir import register_lowering

from hespas.program.attrs import (
    FLASH_BACKWARD,
    FLASH_FORWARD,
    FLASH_MLA,
    FLASH_MLA_SPARSE,
    INDEX_SCORES,
)

_PLATFORM = "cuda"
_ROWS, _COLUMNS = 128, 32
"""The backward pass pads sequences and heads to multiples of these in its working memory."""


def attention_block(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    causal: bool,
    window: int = 0,
    kernel: str = "",
) -> tuple[jax.Array, jax.Array]:
    """Return softmax(query key^T) value and the rows' log-sum-exp.

    Arrays are (batch, sequence, heads, head size), keys and values with as many heads or fewer; the
    logarithms are (batch, heads, sequence) in f32. Each query sees the last ``window`` keys; 0
    means all earlier ones. ``kernel`` names the implementation if it is a certain one.
    """
    context, logarithms = _forward.bind(
        query, key, value, is_causal=causal, window=window, kernel=kernel
    )
    return context, logarithms


def attention_gradients(
    arrays: tuple[jax.Array, jax.Array, jax.Array],
    results: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
    *,
    causal: bool,
    window: int = 0,
    kernel: str = "",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of query, key and value (``arrays``).

    ``results`` are those of the forward pass. The kernels sum the gradient of queries in f32, and
    those of keys and values for each head of the queries: the call has that memory as a last
    result, a row of bytes.
    """
    query, key, value, _ = _backward.bind(
        *arrays, *results, gradient, is_causal=causal, window=window, kernel=kernel
    )
    return query, key, value


def _forward_shapes(query: Any, key: Any, value: Any, **_: Any) -> tuple[ShapedArray, ...]:
    del key
    batch, length, heads, _size = query.shape
    return (
        ShapedArray((batch, length, heads, value.shape[-1]), query.dtype),
        ShapedArray((batch, heads, length), jnp.dtype("float32")),
    )


def _backward_shapes(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    gradients = (ShapedArray(array.shape, array.dtype) for array in (query, key, value))
    size = working_bytes(query.shape, key.shape, query.dtype.itemsize)
    return (*gradients, ShapedArray((size,), jnp.dtype("uint8")))


def working_bytes(query: tuple[int, ...], key: tuple[int, ...], element_bytes: int) -> int:
    """Return the backward pass's working memory beside its results.

    In f32 the gradient of queries (``dq_accum``) and a number for each row (``softmax_d``); where
    heads share keys, gradients of keys and values for each head (``dk_expanded``).

    >>> working_bytes((1, 128, 2, 32), (1, 128, 2, 32), 2)
    33792
    """
    batch, length, heads, size = query
    rows = batch * heads * _round_up(length, _ROWS)
    working = 4 * rows * (_round_up(size, _COLUMNS) + 1)
    if key[2] < heads:
        working += 2 * element_bytes * prod((batch, key[1], heads, size))
    return working


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _lowering(target: str) -> Any:
    def lower(ctx: Any, *operands: Any, is_causal: bool, window: int, kernel: str) -> Any:
        implementation = {"kernel": kernel} if kernel else {}
        config = {
            "flash_attention_config": {"is_causal": is_causal, "window": window, **implementation}
        }
        return _call_by_rows(ctx, target, operands, backend_config=json.dumps(config))

    return lower


def _call_by_rows(ctx: Any, target: str, operands: Any, *, backend_config: str = "") -> Any:
    """Emit a row-major custom call; return its results."""
    call = custom_call(
        target,
        result_types=[aval_to_ir_type(ctx.module_context, array) for array in ctx.avals_out],
        operands=operands,
        backend_config=backend_config,
        operand_layouts=[_row_major(array) for array in ctx.avals_in],
        result_layouts=[_row_major(array) for array in ctx.avals_out],
    )
    return call.results


def _row_major(array: Any) -> tuple[int, ...]:
    return tuple(reversed(range(array.ndim)))


def latent_decoding(query: jax.Array, cache: jax.Array, *, value_size: int) -> jax.Array:
    """Return softmax(query cache^T) times the start of the cache's vectors.

    The first ``value_size`` numbers of each vector are its values. ``query`` is (batch, 1, heads,
    vector), scaled, ``cache`` is (batch, 1, tokens, vector), and the result is (batch, 1, heads,
    ``value_size``).
    """
    (context,) = _decoding.bind(query, cache, value_size=value_size)
    return context


def attention_to_chosen(
    query: jax.Array, vectors: jax.Array, places: jax.Array, *, value_size: int
) -> jax.Array:
    """Return `latent_decoding` over each query's chosen vectors.

    ``query`` is (batch, queries, heads, vector), ``vectors`` are (batch, 1, tokens, vector), and
    ``places``, those of the chosen vectors, (batch, queries, chosen).
    """
    (context,) = _sparse.bind(query, vectors, places, value_size=value_size)
    return context


def index_scores(query: jax.Array, keys: jax.Array, shares: jax.Array) -> jax.Array:
    """Return each query's index scores of all tokens.

    Scores are (batch, queries, tokens) in f32. ``query`` is (batch, queries, heads, size), ``keys``
    are (batch, 1, tokens, size), and the ``shares`` of heads (batch, queries, heads). As many
    queries as tokens rate earlier ones alone.
    """
    (scores,) = _ratings.bind(query, keys, shares)
    return scores


def _latent_shapes(query: Any, *_: Any, value_size: int) -> tuple[ShapedArray, ...]:
    return (ShapedArray((*query.shape[:-1], value_size), query.dtype),)


def _rating_shapes(query: Any, keys: Any, _shares: Any) -> tuple[ShapedArray, ...]:
    return (ShapedArray((*query.shape[:2], keys.shape[2]), jnp.dtype("float32")),)


def _plain_lowering(target: str) -> Any:
    def lower(ctx: Any, *operands: Any, value_size: int = 0) -> Any:
        del value_size
        return _call_by_rows(ctx, target, operands)

    return lower


def cuda_primitive(name: str, shapes: Any, lowering: Any) -> Primitive:
    """Return a JAX primitive with a lowering for CUDA GPUs."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)
    register_lowering(primitive, lowering, platform=_PLATFORM)
    return primitive


_forward = cuda_primitive("flash_attention", _forward_shapes, _lowering(FLASH_FORWARD))
_backward = cuda_primitive("flash_attention_gradients", _backward_shapes, _lowering(FLASH_BACKWARD))
_decoding = cuda_primitive("flash_mla", _latent_shapes, _plain_lowering(FLASH_MLA))
_sparse = cuda_primitive("flash_mla_sparse", _latent_shapes, _plain_lowering(FLASH_MLA_SPARSE))
_ratings = cuda_primitive("mqa_logits", _rating_shapes, _plain_lowering(INDEX_SCORES))
