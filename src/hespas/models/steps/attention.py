"""Grouped attention of a decoder, also over a cache.

Queries, keys and values are (batch, sequence, heads, head size); a cache's are (batch, heads,
tokens, head size), so that what one head reads of a sequence is in a row.
"""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from hespas.models.architecture import Style
from hespas.models.kernels import FUSED
from hespas.models.steps.cache import Cache
from hespas.models.steps.context import (
    Sharing,
    attention_with_sinks,
    context_attention,
    fused_blocks,
    plain_blocks,
)
from hespas.models.steps.layer import Layer
from hespas.models.steps.products import ACTIVATION_SCALE, SMALL, in_8_bits
from hespas.models.steps.sharding import Divided

Arrays = tuple[jax.Array, ...]
_CONTEXT, _SEQUENCE = "context", "sequence"
SAVED = ("query_projection", "key_projection", "value_projection")
_MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def causal_attention(layer: Layer, arrays: Arrays) -> jax.Array:
    """Return causal softmax(query key^T) value among a step's tokens.

    ``arrays`` are queries, which are scaled, keys and values; a score of each head, ``sinks_bias``,
    takes a part of its softmax. Layers with chunks have them as sequences of their own. Along the
    mesh axis ``sequence`` an all-to-all gives each device all tokens of some heads, and another
    all heads of its tokens. The backward pass computes it again where the step does so.
    Source: S. Jacobs et al., DeepSpeed Ulysses, 2023, section 3.1.
    """
    sinks, run = layer.weights.get("sinks_bias"), layer.model.training
    through = partial(_among_tokens, layer)
    if "core_attn" in run.recomputed:
        through = jax.checkpoint(through, prevent_cse=not run.scan)
    return through(arrays, sinks)


def _among_tokens(layer: Layer, arrays: Arrays, sinks: jax.Array | None) -> jax.Array:
    """Return attention, of chunks or along ``sequence``."""
    chunk, constrain = layer.kind.chunk, layer.divided.constrain
    if layer.model.mesh.size(_SEQUENCE) == 1:
        if not chunk or arrays[0].shape[1] < 2 * chunk:
            return _attended(layer, arrays, sinks)
        in_chunks = (array.reshape(-1, chunk, *array.shape[2:]) for array in arrays)
        context = _attended(layer, tuple(in_chunks), sinks)
        return context.reshape(*arrays[0].shape[:3], context.shape[-1])
    # Partitioners make an all-to-all where both sides of it are asked for.
    heads = ("heads", "kv_heads", "kv_heads")
    by_token = (
        constrain(array, "batch", "sequence", name, None)
        for array, name in zip(arrays, heads, strict=True)
    )
    context = _attended(layer, tuple(by_token), sinks)
    return constrain(context, "batch", "sequence", "heads", None)


def _attended(layer: Layer, arrays: Arrays, sinks: jax.Array | None) -> jax.Array:
    """Return attention among tokens, divided by heads.

    Rematerialisation policies keep queries, keys and values as attention reads them, and the
    result by the name ``context``, fused kernels with their statistics. Keys and values of
    sequences that are divided along ``context`` are gathered, or go round, as
    `hespas.models.steps.context` says.
    """
    model, divided, kind = layer.model, layer.divided, layer.kind
    heads = ("attended_heads", "attended_kv_heads", "attended_kv_heads")
    arrays = tuple(
        checkpoint_name(divided.constrain(array, "batch", "queries", name, None), saved)
        for array, name, saved in zip(arrays, heads, SAVED, strict=True)
    )
    devices, rotates = model.mesh.size(_CONTEXT), model.training.context_attention == "ring"
    attention = model.attention_of(kind)
    if attention in FUSED or (rotates and devices > 1):
        blocks = plain_blocks()
        if attention in FUSED:
            blocks = fused_blocks(attention, score_cap=model.style.score_cap, window=kind.window)
        sharing = Sharing(
            blocks=blocks, saved="context", axis=_CONTEXT, devices=devices, rotates=rotates
        )
        function = context_attention if sinks is None else attention_with_sinks
        operands = arrays if sinks is None else (*arrays, sinks)
        with jax.named_scope("context" if devices > 1 else "fused"):
            return by_head(divided, partial(function, sharing), operands)
    query, *key_value = arrays
    key, value = (
        divided.constrain(array, "batch", None, "attended_kv_heads", None) for array in key_value
    )
    with jax.named_scope("softmax"):
        length = query.shape[1]
        if layer.places.documents is not None:
            segments, are_earlier = layer.places.documents
            documents = (segments.reshape(-1, length), are_earlier[:length, :length])
            context = _within_documents(query, key, value, documents)
        else:
            mask = earlier(length, length, kind.window)
            key, value = jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)
            context = _softmax_attention(model.style, (query, key, value), mask, sinks)
        context = layer.by_heads(context)
    return checkpoint_name(context, "context")


def cached_attention(layer: Layer, query: jax.Array, cached: Arrays) -> jax.Array:
    """Return softmax(query key^T) value of a cache's last tokens.

    ``query`` is scaled; ``cached`` are the keys and values of a cache, the new tokens' with them.
    """
    key, value = (_visible(layer, array.astype(query.dtype)) for array in cached)
    new, tokens = query.shape[1], key.shape[2]
    mask = earlier(new, tokens, layer.kind.window) if new > 1 else None
    sinks = layer.weights.get("sinks_bias")
    with jax.named_scope("softmax"):
        return _softmax_attention(layer.style, (query, key, value), mask, sinks)


def _visible(layer: Layer, cached: jax.Array) -> jax.Array:
    """Return the cached tokens that the new ones attend to."""
    kind, context, tokens = layer.kind, layer.model.context, cached.shape[2]
    if tokens < context:
        # A ring has no others, but for those of the chunk before.
        return cached[:, :, : (context - 1) % kind.chunk + 1] if kind.chunk else cached
    new = getattr(layer.model.run, "new_tokens", 1)
    first = max(0, context - kind.window - new + 1) if kind.window else 0
    if kind.chunk:
        first = (context - new) // kind.chunk * kind.chunk
    return cached[:, :, first:]


def fused_over_cache(layer: Layer, query: jax.Array, cache: Cache) -> jax.Array:
    """Attend over the cache by a fused kernel, one token.

    ``query`` is scaled.
    """
    cudnn, divided = import_module("hespas.xla.attention"), layer.divided
    keys, values = cache.arrays["keys"], cache.arrays["values"]
    queries = divided.spec("batch", None, "attended_heads", None)
    cached = divided.spec("batch", "attended_kv_heads", None, None)
    specs, operands = (queries, cached, cached), (query, keys, values)
    if cache.table is None:
        operands = (query, _visible(layer, keys), _visible(layer, values))
    else:
        lengths = jnp.full(query.shape[:1], cache.position + 1, jnp.int32)
        specs = (*specs, divided.spec("batch", None), divided.spec("batch"))
        operands = (*operands, cache.table, lengths)
    is_small = keys.dtype == SMALL and cache.table is None
    function = _small_over_cache if is_small else cudnn.decoding_attention
    sinks = layer.weights.get("sinks_bias")
    if sinks is not None:
        function = cudnn.decoding_attention_with_sinks
        specs, operands = (*specs, divided.spec("attended_heads")), (*operands, sinks)
    axes = divided.used("batch", "attended_heads", "attended_kv_heads")
    with jax.named_scope("fused"):
        return _on_each_device(function, operands, axes=axes, in_specs=specs, out_spec=queries)


def fused_over_latents(
    layer: Layer, query: jax.Array, cached: jax.Array, *places: jax.Array
) -> jax.Array:
    """Return attention to latent vectors by FlashMLA.

    Of tokens at ``places``, or of all. ``query`` is scaled; ``cached`` are vectors that all heads
    share, whose first ``kv_rank`` numbers are the value. Without places a sequence has one new
    token.
    """
    kernels, divided = import_module(FUSED["flashmla"].module), layer.divided
    queries, rows = divided.spec("batch", None, "attended_heads", None), divided.spec("batch")
    function = kernels.attention_to_chosen if places else kernels.latent_decoding
    with jax.named_scope("fused"):
        return _on_each_device(
            partial(function, value_size=layer.latent.kv_rank),
            (query, cached, *places),
            axes=divided.used("batch", "attended_heads"),
            in_specs=(queries, rows, *(rows for _ in places)),
            out_spec=queries,
        )


def fused_index(
    divided: Divided, query: jax.Array, keys: jax.Array, shares: jax.Array
) -> jax.Array:
    """Return an index's rating, (batch, queries, tokens), in 8 bits.

    Each device that attends rates for all heads of the index.
    """
    kernels, rows = import_module(FUSED["flashmla"].module), divided.spec("batch")
    small = keys if keys.dtype == SMALL else in_8_bits(keys)
    with jax.named_scope("fused"):
        return _on_each_device(
            kernels.index_scores,
            (in_8_bits(query), small, shares),
            axes=divided.used("batch", "attended_heads"),
            in_specs=(rows, rows, rows),
            out_spec=rows,
        )


def largest(divided: Divided, scores: jax.Array, count: int) -> jax.Array:
    """Return the places of each row's ``count`` largest scores.

    ``scores`` are (batch, queries, tokens). Partitioners would gather what they sort.
    """
    rows = divided.spec("batch", "queries", None)
    return _on_each_device(
        lambda own: jax.lax.top_k(own, min(count, own.shape[2]))[1],
        (scores,),
        axes=divided.used("batch", "queries", "attended_heads"),
        in_specs=(rows,),
        out_spec=rows,
    )


def _small_over_cache(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    cudnn = import_module("hespas.xla.attention")
    small = in_8_bits(query)
    context = cudnn.small_decoding_attention(small, keys, values, ACTIVATION_SCALE)
    return context.astype(query.dtype) * jnp.asarray(ACTIVATION_SCALE, query.dtype)


def _softmax_attention(
    style: Style, arrays: Arrays, mask: jax.Array | None, sinks: jax.Array | None
) -> jax.Array:
    """Return softmax(query key^T) value."""
    query, key, value = arrays
    batch, length, heads, size = query.shape
    kv_heads = key.shape[1]
    grouped = jnp.reshape(query, (batch, length, kv_heads, heads // kv_heads, size))
    scores = jnp.einsum("btkgd,bksd->bkgts", grouped, key).astype(jnp.float32)
    if cap := style.score_cap:
        scores = cap * jnp.tanh(scores / cap)
    if style.alibi:
        scores = scores + _slopes(heads, length, key.shape[2]).reshape(scores.shape[1:])
    if mask is not None:
        scores = jnp.where(mask, scores, _MASKED)
    if sinks is None:
        weights = jax.nn.softmax(scores, -1).astype(value.dtype)
    else:
        own = sinks.astype(jnp.float32).reshape(kv_heads, -1, 1, 1)
        largest = jnp.maximum(jnp.max(scores, -1, keepdims=True), own)
        exponentials = jnp.exp(scores - jax.lax.stop_gradient(largest))
        total = jnp.sum(exponentials, -1, keepdims=True) + jnp.exp(own - largest)
        weights = (exponentials / total).astype(value.dtype)
    context = jnp.einsum("bkgts,bksd->btkgd", weights, value)
    return jnp.reshape(context, (batch, length, heads, value.shape[-1]))


def _within_documents(
    query: jax.Array, key: jax.Array, value: jax.Array, documents: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Return causal attention within each document.

    Masks are selects of floats, and all is of the type of the queries, as MaxText has it.
    """
    segments, are_earlier = documents
    batch, length, heads, size = query.shape
    kv_heads = key.shape[2]
    grouped = jnp.reshape(query, (batch, length, kv_heads, heads // kv_heads, size))
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key)
    same = segments[:, :, None] == segments[:, None, :]
    seen = jnp.logical_and(same, are_earlier[None])
    mask = jnp.where(seen, 0.0, _MASKED)[:, None, None]
    scores = jnp.where(mask >= _MASKED * 0.5, scores, _MASKED)
    scores = jnp.reshape(scores, (batch, heads, length, length))
    exponentials = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    exponentials = jnp.reshape(exponentials, (batch, kv_heads, -1, length, length))
    inverse = 1.0 / jnp.sum(exponentials, -1, keepdims=True)
    context = jnp.einsum("bkgts,bskd->btkgd", exponentials, value)
    context = context * jnp.transpose(inverse, (0, 3, 1, 2, 4))
    return jnp.reshape(context, (batch, length, heads, value.shape[-1]))


def _slopes(heads: int, new: int, tokens: int) -> jax.Array:
    """Return each head's bias by distance, (heads, new, tokens).

    Source: O. Press et al., Train Short, Test Long, 2022, section 3.
    """
    power = 2 ** math.ceil(math.log2(heads))
    steps = [2.0 ** (-8.0 * number / power) for number in range(1, power + 1)]
    slopes = jnp.asarray((steps[1::2] + steps[::2])[:heads] if power != heads else steps)
    column = jax.lax.broadcasted_iota(jnp.float32, (1, 1, tokens), 2) + (1.0 - tokens)
    return jnp.broadcast_to(slopes[:, None, None] * column, (heads, new, tokens))


def earlier(new: int, tokens: int, window: int = 0) -> jax.Array:
    """Return which of ``tokens`` each of the last ``new`` sees."""
    row = jax.lax.broadcasted_iota(jnp.int32, (new, tokens), 0) + (tokens - new)
    column = jax.lax.broadcasted_iota(jnp.int32, (new, tokens), 1)
    seen = column <= row
    return jnp.logical_and(seen, row - column < window) if window else seen


def by_head(divided: Divided, function: Any, arrays: tuple[jax.Array, ...]) -> jax.Array:
    """Apply a function to a device's heads and sequences."""
    heads = divided.spec("batch", "queries", "attended_heads", None)
    kv_heads = divided.spec("batch", "queries", "attended_kv_heads", None)
    axes = divided.used("batch", "queries", "attended_heads", "attended_kv_heads")
    specs = (heads, kv_heads, kv_heads, divided.spec("attended_heads"))[: len(arrays)]
    return _on_each_device(function, arrays, axes=axes, in_specs=specs, out_spec=heads)


def _on_each_device(
    function: Any, arrays: tuple[jax.Array, ...], *, axes: Any, in_specs: Any, out_spec: Any
) -> jax.Array:
    """Apply a function to each device's part along ``axes``."""
    if not axes:
        return function(*arrays)
    # Gradients are not summed over axes that divide nothing here.
    mapped = jax.shard_map(
        function, in_specs=in_specs, out_specs=out_spec, axis_names=axes, check_vma=False
    )
    return mapped(*arrays)
