"""Causal attention block by block, on one device or several.

A sequence over several devices is cut into twice as many blocks as there are devices, and each
device has one from the front and one from the end, in that order: device ``r`` of ``n`` has blocks
``r`` and ``2 n - 1 - r``, so that all have equal work under a causal mask. Its own keys come first,
with a causal mask over both blocks. Those of each other device are two pairs of blocks without a
mask: with an earlier device both blocks of queries see its front block, with a later one the block
of queries at the end sees both of its. Source: H. Liu et al., Ring Attention with Blockwise
Transformers, 2023; the order of blocks is that of W. Brandon et al., Striped Attention, 2023, as
frameworks have it. Scores of fused kernels never reach memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from hespas.base.frozen import frozen
from hespas.models.kernels import FUSED

Arrays = tuple[jax.Array, ...]


@frozen
class Blocks:
    """How a block of queries and keys is computed.

    ``forward(query, key, value, causal=)`` returns the result and the logarithms of the rows' sums
    of exponentials, (batch, heads, queries) in f32; ``backward((query, key, value), (result,
    logarithms), gradient, causal=)`` the three gradients.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def fused_blocks(kernels: str, *, score_cap: float = 0.0, window: int = 0) -> Blocks:
    """Return the kernels of a fused attention.

    Scores have a ``score_cap``, which not all kernels can do, and each query sees the last
    ``window`` keys, unless that is 0.
    """
    chosen = FUSED[kernels]
    module = import_module(chosen.module)
    bounds: dict[str, Any] = {"score_cap": score_cap} if score_cap else {}
    if chosen.kernel:
        bounds["kernel"] = chosen.kernel
    return Blocks(
        forward=partial(module.attention_block, window=window, **bounds),
        backward=partial(module.attention_gradients, window=window, **bounds),
    )


@frozen
class Sharing:
    """How devices share sequences, and keys and values travel.

    They ``rotate`` from neighbour to neighbour, or each device gathers them all. Without a causal
    mask they are not divided. What the backward
    pass needs of the forward pass has the name ``saved`` for rematerialisation policies.
    """

    blocks: Blocks
    saved: str
    axis: str = ""
    devices: int = 1
    rotates: bool = False
    is_causal: bool = True


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def context_attention(
    sharing: Sharing, query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
    """Return softmax(query key^T) value of a device's part.

    Scores have no scale. Arrays are (batch, sequence, heads, head size); keys and values may have
    fewer heads.
    """
    return _forward(sharing, query, key, value)[0]


def _forward(
    sharing: Sharing, query: jax.Array, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, Arrays]:
    total = sharing.blocks.forward(query, key, value, causal=sharing.is_causal)
    for is_earlier, (other_key, other_value) in _other_keys(sharing, (key, value)):
        pair = sharing.blocks.forward(
            _queries(query, is_earlier),
            _keys(other_key, is_earlier),
            _keys(other_value, is_earlier),
            causal=False,
        )
        total = _with_pair(total, pair, is_earlier)
    context = checkpoint_name(total[0].astype(query.dtype), sharing.saved)
    logarithms = checkpoint_name(total[1], sharing.saved)
    return context, (query, key, value, context, logarithms)


def _backward(sharing: Sharing, residuals: Arrays, gradient: jax.Array) -> Arrays:
    if sharing.devices == 1:
        return sharing.blocks.backward(
            residuals[:3], residuals[3:], gradient, causal=sharing.is_causal
        )
    # What came from other devices is fetched again, not kept.
    query, key, value, context, logarithms = lax.optimization_barrier(residuals)
    own = sharing.blocks.backward((query, key, value), (context, logarithms), gradient, causal=True)
    of_query, *of_own = (array.astype(jnp.float32) for array in own)
    of_others: list[tuple[jax.Array, jax.Array]] = []
    travelling: Arrays = ()
    for is_earlier, (other_key, other_value) in _other_keys(sharing, (key, value)):
        pair = sharing.blocks.backward(
            (
                _queries(query, is_earlier),
                _keys(other_key, is_earlier),
                _keys(other_value, is_earlier),
            ),
            (_queries(context, is_earlier), _queries(logarithms, is_earlier, axis=2)),
            _queries(gradient, is_earlier),
            causal=False,
        )
        of_query = of_query + _query_gradient(pair[0], is_earlier)
        of_pair = (_key_gradient(pair[1], is_earlier), _key_gradient(pair[2], is_earlier))
        if sharing.rotates:
            # Gradients go along with the keys and values that they belong to.
            sent = [_next(sharing, array) for array in travelling]
            travelling = tuple(map(jnp.add, sent, of_pair)) if sent else of_pair
        else:
            of_others.append(of_pair)
    if sharing.rotates:
        returned = [_next(sharing, array) for array in travelling]
    else:
        returned = [_to_owners(sharing, parts) for parts in zip(*of_others, strict=True)]
    gradients = (of_query, *map(jnp.add, of_own, returned))
    return tuple(
        array.astype(like.dtype) for array, like in zip(gradients, (query, key, value), strict=True)
    )


context_attention.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention_with_sinks(
    sharing: Sharing, query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array
) -> jax.Array:
    """Return `context_attention` with one more score per head.

    The kernels leave the logarithms of the sums, with which a row is divided by more; with these
    in the place of their own, their backward kernels make the gradients of what was divided.
    """
    return _sunk_forward(sharing, query, key, value, sinks)[0]


def _sunk_forward(
    sharing: Sharing, query: jax.Array, key: jax.Array, value: jax.Array, sinks: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    output, logarithms = sharing.blocks.forward(query, key, value, causal=True)
    sinks = sinks.astype(jnp.float32)
    total = jnp.logaddexp(logarithms, sinks[:, None])
    share = jnp.swapaxes(jnp.exp(logarithms - total), 1, 2)[..., None]
    context = checkpoint_name((output * share).astype(output.dtype), sharing.saved)
    total = checkpoint_name(total, sharing.saved)
    return context, (query, key, value, sinks, context, total)


def _sunk_backward(
    sharing: Sharing, residuals: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array, ...]:
    query, key, value, sinks, context, total = residuals
    gradients = sharing.blocks.backward(
        (query, key, value), (context, total), gradient, causal=True
    )
    products = jnp.einsum("bqhd,bqhd->bhq", context, gradient).astype(jnp.float32)
    of_sinks = -jnp.sum(jnp.exp(sinks[:, None] - total) * products, (0, 2))
    return (*gradients, of_sinks)


attention_with_sinks.defvjp(_sunk_forward, _sunk_backward)


def _other_keys(sharing: Sharing, own: Arrays) -> Iterator[tuple[jax.Array, Arrays]]:
    """Yield each other device's keys, and whether it is earlier."""
    if sharing.devices == 1:
        return
    here = lax.axis_index(sharing.axis)
    if sharing.rotates:
        for step in range(1, sharing.devices):
            own = tuple(_next(sharing, array) for array in own)
            yield here >= step, own
        return
    gathered = [lax.all_gather(array, sharing.axis) for array in own]
    for step in range(1, sharing.devices):
        source = (here - step) % sharing.devices
        yield (
            here >= step,
            tuple(lax.dynamic_index_in_dim(array, source, keepdims=False) for array in gathered),
        )


def _next(sharing: Sharing, array: jax.Array) -> jax.Array:
    ring = [(device, (device + 1) % sharing.devices) for device in range(sharing.devices)]
    return lax.ppermute(array, sharing.axis, ring)


def _to_owners(sharing: Sharing, parts: tuple[jax.Array, ...]) -> jax.Array:
    """Sum all devices' results for this one."""
    here = lax.axis_index(sharing.axis)
    stacked = jnp.stack((jnp.zeros_like(parts[0]), *parts))
    by_owner = jnp.take(stacked, (here - jnp.arange(sharing.devices)) % sharing.devices, 0)
    return lax.psum_scatter(by_owner, sharing.axis, scatter_dimension=0)


def _queries(array: jax.Array, is_earlier: jax.Array, *, axis: int = 1) -> jax.Array:
    """Return the blocks of queries that see a device's keys.

    The block at the end always sees some; the other of the pair is the front block for an earlier
    device, the one at the end again for a later one.
    """
    front, end = jnp.split(array, 2, axis)
    return jnp.concatenate((jnp.where(is_earlier, front, end), end), 0)


def _keys(array: jax.Array, is_earlier: jax.Array) -> jax.Array:
    """Return the seen blocks of keys or values."""
    front, end = jnp.split(array, 2, 1)
    return jnp.concatenate((jnp.where(is_earlier, front, end), front), 0)


def _query_gradient(pair: jax.Array, is_earlier: jax.Array) -> jax.Array:
    first, second = jnp.split(pair.astype(jnp.float32), 2, 0)
    nothing = jnp.zeros_like(first)
    front = jnp.where(is_earlier, first, nothing)
    return jnp.concatenate((front, second + jnp.where(is_earlier, nothing, first)), 1)


def _key_gradient(pair: jax.Array, is_earlier: jax.Array) -> jax.Array:
    first, second = jnp.split(pair.astype(jnp.float32), 2, 0)
    nothing = jnp.zeros_like(first)
    end = jnp.where(is_earlier, nothing, first)
    return jnp.concatenate((second + jnp.where(is_earlier, first, nothing), end), 1)


def _with_pair(total: Any, pair: Any, is_earlier: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Merge the softmax so far with a pair of blocks'."""
    (firsts, seconds), (first_logs, second_logs) = (jnp.split(array, 2, 0) for array in pair)
    lowest = jnp.full_like(first_logs, -jnp.inf)
    front, end = jnp.split(total[0], 2, 1)
    front_logs, end_logs = jnp.split(total[1], 2, 2)
    front, front_logs = _sum_of_softmaxes(
        (front, front_logs), (firsts, jnp.where(is_earlier, first_logs, lowest))
    )
    end, end_logs = _sum_of_softmaxes(
        (end, end_logs), (firsts, jnp.where(is_earlier, lowest, first_logs))
    )
    end, end_logs = _sum_of_softmaxes((end, end_logs), (seconds, second_logs))
    return jnp.concatenate((front, end), 1), jnp.concatenate((front_logs, end_logs), 2)


def _sum_of_softmaxes(first: Any, second: Any) -> tuple[jax.Array, jax.Array]:
    logarithms = jnp.logaddexp(first[1], second[1])
    parts = (
        output.astype(jnp.float32) * _by_row(jnp.exp(logs - logarithms))
        for output, logs in (first, second)
    )
    return sum(parts, start=jnp.zeros(())), logarithms


def _by_row(weights: jax.Array) -> jax.Array:
    """Return (batch, heads, queries) as (batch, queries, heads, 1)."""
    return jnp.transpose(weights, (0, 2, 1))[..., None]


def plain_blocks() -> Blocks:
    """Return blocks of plain operations, whose scores reach memory."""
    return Blocks(forward=_plain_forward, backward=_plain_backward)


def _plain_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool
) -> tuple[jax.Array, jax.Array]:
    scores = _scores(query, key, causal=causal)
    logarithms = jax.nn.logsumexp(scores, -1)
    weights = jnp.exp(scores - logarithms[..., None]).astype(value.dtype)
    output = jnp.einsum("bkgts,bskd->btkgd", weights, value)
    return output.reshape(query.shape), _flat(logarithms)


def _plain_backward(
    arrays: Arrays, output: Arrays, gradient: jax.Array, *, causal: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    query, key, value = arrays
    context, logarithms = output
    scores = _scores(query, key, causal=causal)
    weights = jnp.exp(scores - logarithms.reshape(scores.shape[:-1])[..., None])
    grouped, outer = _grouped(query, key), _grouped(gradient, key)
    of_weights = jnp.einsum("btkgd,bskd->bkgts", outer, value).astype(jnp.float32)
    drift = jnp.sum((outer * _grouped(context, key)).astype(jnp.float32), -1)
    of_scores = weights * (of_weights - jnp.transpose(drift, (0, 2, 3, 1))[..., None])
    of_scores = of_scores.astype(query.dtype)
    of_query = jnp.einsum("bkgts,bskd->btkgd", of_scores, key).reshape(query.shape)
    of_key = jnp.einsum("bkgts,btkgd->bskd", of_scores, grouped)
    of_value = jnp.einsum("bkgts,btkgd->bskd", weights.astype(value.dtype), outer)
    return of_query, of_key, of_value


def _grouped(query: jax.Array, key: jax.Array) -> jax.Array:
    batch, length, heads, size = query.shape
    return query.reshape(batch, length, key.shape[2], heads // key.shape[2], size)


def _scores(query: jax.Array, key: jax.Array, *, causal: bool) -> jax.Array:
    grouped = _grouped(query, key)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key).astype(jnp.float32)
    if not causal:
        return scores
    rows, columns = (lax.broadcasted_iota(jnp.int32, scores.shape[-2:], axis) for axis in (0, 1))
    return jnp.where(columns <= rows, scores, -jnp.inf)


def _flat(logarithms: jax.Array) -> jax.Array:
    batch, kv_heads, group, length = logarithms.shape
    return logarithms.reshape(batch, kv_heads * group, length)
