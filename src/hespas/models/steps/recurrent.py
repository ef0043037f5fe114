"""Mixers without attention: Mamba-2's state spaces and gated delta rules.

Sequences are cut into chunks: inside of them all is products, and a loop over the chunks carries
the states. A new token changes the states of a cache directly. Both convolve each channel with its
last few tokens first.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from hespas.models.architecture import Delta, StateSpace
from hespas.models.runs import Decode
from hespas.models.steps.cache import Cache
from hespas.models.steps.layer import Layer, Weights
from hespas.models.steps.norms import plainly_normalised
from hespas.models.steps.products import product
from hespas.models.weights import CONVOLVED

_SMALLEST = 1e-6


def through_state_space(
    layer: Layer, x: jax.Array, cache: Cache | None
) -> tuple[jax.Array, Cache | None]:
    """Apply a state space to rows, and to its cache."""
    space, weights = layer.model.state_space, layer.weights
    assert space is not None  # noqa: S101 - for the type checker
    with jax.named_scope("projections"):
        gate = layer.product("bse,ehp->bshp", x, "state_gate")
        rows = {name: layer.product("bse,ehp->bshp", x, name) for name in CONVOLVED["state_space"]}
        step = product("bse,eh->bsh", x, weights["state_step"]).astype(jnp.float32)
    with jax.named_scope("convolution"):
        rows, cache = _convolved(layer, rows, cache)
    with jax.named_scope("states"):
        decay, step = _decay(weights, "state", step)
        repeats = space.state_heads // space.state_groups
        key, query = (jnp.repeat(rows[name], repeats, 2) for name in ("state_key", "state_query"))
        value = rows["state_input"] * step[..., None].astype(x.dtype)
        if isinstance(layer.model.run, Decode) and cache is not None:
            output, states = _one_token(cache.read("states"), query, key, value, decay)
        else:
            output, states = _in_chunks(space, query, key, value, decay)
        cache = None if cache is None else cache.replaced(states=states)
        skip = weights["state_skip_scale"].astype(x.dtype)[:, None]
        output = output + rows["state_input"] * skip
    with jax.named_scope("norm"):
        output = output * jax.nn.silu(gate)
        grouped = output.reshape(*output.shape[:2], space.state_groups, -1)
        output = plainly_normalised(layer.style, grouped).reshape(output.shape)
        output = output * weights["state_norm"].astype(x.dtype)
        output = layer.divided.constrain(output, "batch", "sequence", "state_heads", None)
    with jax.named_scope("output"):
        return layer.product("bshp,hpe->bse", output, "state_output"), cache


def _decay(weights: Weights, mixer: str, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return by how much states decay, and the steps of time."""
    step = jax.nn.softplus(step + weights[f"{mixer}_step_bias"].astype(jnp.float32))
    return -jnp.exp(weights[f"{mixer}_decay"].astype(jnp.float32)) * step, step


def _in_chunks(
    space: StateSpace, query: jax.Array, key: jax.Array, value: jax.Array, decay: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply states to (batch, sequence, heads, size); return both.

    Source: T. Dao and A. Gu, Transformers are SSMs, 2024, section 6.
    """
    length = query.shape[1]
    query, key, value, decay = (
        _chunked(array, min(space.chunk, length)) for array in (query, key, value, decay)
    )
    total = jnp.cumsum(decay, 2)
    shares = _shares(total)
    scores = jnp.einsum("bclhn,bcshn->bchls", query, key) * shares.astype(query.dtype)
    inside = jnp.einsum("bchls,bcshp->bclhp", scores, value)
    remaining = jnp.exp(total[:, :, -1:] - total).astype(value.dtype)
    added = jnp.einsum("bclhn,bclhp->bchpn", key, value * remaining[..., None]).astype(jnp.float32)
    through = jnp.exp(total[:, :, -1])[..., None, None]

    def carry(states: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        share, more = chunk
        return states * share + more, states

    first = jnp.zeros_like(added[:, 0])
    last, before = lax.scan(carry, first, (jnp.moveaxis(through, 1, 0), jnp.moveaxis(added, 1, 0)))
    before = jnp.moveaxis(before, 0, 1).astype(query.dtype)
    reached = jnp.exp(total).astype(query.dtype)[..., None]
    output = inside + jnp.einsum("bclhn,bchpn->bclhp", query * reached, before)
    return output.reshape(output.shape[0], -1, *output.shape[3:])[:, :length], last


def _one_token(
    states: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, decay: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply states to one new token; return both."""
    dtype = query.dtype
    query, key, value = (array[:, 0].astype(jnp.float32) for array in (query, key, value))
    share = jnp.exp(decay[:, 0])[..., None, None]
    states = states * share + value[..., :, None] * key[..., None, :]
    output = jnp.einsum("bhpn,bhn->bhp", states, query)
    return output[:, None].astype(dtype), states


def through_delta(
    layer: Layer, x: jax.Array, cache: Cache | None
) -> tuple[jax.Array, Cache | None]:
    """Apply a gated delta rule to rows, and its cache."""
    delta, weights = layer.model.delta, layer.weights
    assert delta is not None  # noqa: S101 - for the type checker
    with jax.named_scope("projections"):
        rows = {name: layer.product("bse,ehp->bshp", x, name) for name in CONVOLVED["delta"]}
        gate = layer.product("bse,ehp->bshp", x, "delta_gate")
        rate = jax.nn.sigmoid(layer.product("bse,eh->bsh", x, "delta_rate").astype(jnp.float32))
        step = product("bse,eh->bsh", x, weights["delta_step"]).astype(jnp.float32)
    with jax.named_scope("convolution"):
        rows, cache = _convolved(layer, rows, cache)
    with jax.named_scope("states"):
        decay, _ = _decay(weights, "delta", step)
        repeats = delta.delta_heads // delta.delta_key_heads
        query, key = (
            jnp.repeat(_unit_rows(rows[name]), repeats, 2) for name in ("delta_query", "delta_key")
        )
        query = query * jnp.asarray(delta.delta_key_size**-0.5, query.dtype)
        arrays = (query, key, rows["delta_value"])
        if isinstance(layer.model.run, Decode) and cache is not None:
            output, states = _one_corrected_token(cache.read("states"), arrays, rate, decay)
        else:
            output, states = _corrected_chunks(delta, arrays, rate, decay)
        cache = None if cache is None else cache.replaced(states=states)
    with jax.named_scope("norm"):
        output = plainly_normalised(layer.style, output) * weights["delta_norm"].astype(x.dtype)
        output = output * jax.nn.silu(gate)
        output = layer.divided.constrain(output, "batch", "sequence", "delta_heads", None)
    with jax.named_scope("output"):
        return layer.product("bshp,hpe->bse", output, "delta_output"), cache


def _unit_rows(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.sum(wide * wide, -1, keepdims=True) + _SMALLEST)).astype(x.dtype)


def _corrected_chunks(
    delta: Delta, arrays: tuple[jax.Array, ...], rate: jax.Array, decay: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply states that tokens correct; return both.

    Inside of a chunk the corrections depend on each other by a triangular matrix, whose inverse is
    a product of sums of powers, as many as double up to the chunk's length. Source: S. Yang et al.,
    Parallelizing Linear Transformers with the Delta Rule, 2024, section 3.
    """
    length, dtype = arrays[0].shape[1], arrays[0].dtype
    size = min(delta.chunk, length)
    query, key, value, rate, decay = (
        jnp.moveaxis(_chunked(array.astype(jnp.float32), size), 3, 2)
        for array in (*arrays, rate, decay)
    )
    total = jnp.cumsum(decay, -1)
    shares = _shares(jnp.moveaxis(total, 3, 2))
    rated = key * rate[..., None]
    between = jnp.einsum("bchln,bchsn->bchls", rated, key) * shares
    inverse = _inverse(jnp.tril(between, -1))
    new_value = inverse @ (value * rate[..., None])
    new_key = inverse @ (rated * jnp.exp(total)[..., None])
    scores = jnp.einsum("bchln,bchsn->bchls", query, key) * shares
    query = query * jnp.exp(total)[..., None]
    key = key * jnp.exp(total[..., -1:] - total)[..., None]
    through = jnp.exp(total[..., -1])[..., None, None]

    def carry(states: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        query, key, decayed_key, value, scores, share = chunk
        value = value - decayed_key @ states
        output = query @ states + scores @ value
        return states * share + jnp.swapaxes(key, -1, -2) @ value, output

    first = jnp.zeros((*key.shape[:1], *key.shape[2:3], key.shape[-1], value.shape[-1]))
    chunks = (query, key, new_key, new_value, scores, through)
    last, output = lax.scan(carry, first, tuple(jnp.moveaxis(array, 1, 0) for array in chunks))
    # (chunks, batch, heads, tokens, size) to (batch, sequence, heads, size)
    output = jnp.transpose(output, (1, 0, 3, 2, 4))
    output = output.reshape(output.shape[0], -1, *output.shape[3:])[:, :length]
    return output.astype(dtype), last


def _inverse(lower: jax.Array) -> jax.Array:
    """Return (1 + lower)^-1 of strictly lower triangular matrices.

    It is (1 - L)(1 + L^2)(1 + L^4)..
    """
    size = lower.shape[-1]
    identity = jnp.eye(size, dtype=lower.dtype)
    power, inverse, reached = lower, identity - lower, 2
    while reached < size:
        power = power @ power
        inverse = inverse + inverse @ power
        reached *= 2
    return inverse


def _one_corrected_token(
    states: jax.Array, arrays: tuple[jax.Array, ...], rate: jax.Array, decay: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply states that one new token corrects; return both."""
    query, key, value = (array[:, 0].astype(jnp.float32) for array in arrays)
    states = states * jnp.exp(decay[:, 0])[..., None, None]
    missed = (value - jnp.einsum("bhkv,bhk->bhv", states, key)) * rate[:, 0, :, None]
    states = states + key[..., :, None] * missed[..., None, :]
    output = jnp.einsum("bhkv,bhk->bhv", states, query)
    return output[:, None].astype(arrays[0].dtype), states


def _shares(total: jax.Array) -> jax.Array:
    """Return each token's remaining share at each later one.

    ``total`` is (batch, chunks, tokens, heads), the result (batch, chunks, heads, tokens, tokens).
    """
    rows = jnp.moveaxis(total, 3, 2)
    between = rows[..., :, None] - rows[..., None, :]
    return jnp.exp(jnp.where(jnp.tril(jnp.ones(between.shape[-2:], bool)), between, -jnp.inf))


def _chunked(x: jax.Array, size: int) -> jax.Array:
    """Cut (batch, sequence, ..) into (batch, chunks, size, ..), padded."""
    short = -x.shape[1] % size
    padded = jnp.pad(x, ((0, 0), (0, short), *(((0, 0),) * (x.ndim - 2)))) if short else x
    return padded.reshape(x.shape[0], -1, size, *x.shape[2:])


def _convolved(
    layer: Layer, rows: Mapping[str, jax.Array], cache: Cache | None
) -> tuple[dict[str, jax.Array], Cache | None]:
    """Convolve each channel's last tokens; return the cache, too."""
    convolved: dict[str, jax.Array] = {}
    last_rows: dict[str, jax.Array] = {}
    for name, x in rows.items():
        taps = layer.weights[f"{name}_filter"].astype(x.dtype)
        count, length = taps.shape[0], x.shape[1]
        if cache is not None and isinstance(layer.model.run, Decode):
            padded = jnp.concatenate((cache.read(f"{name}_rows").astype(x.dtype), x), 1)
        else:
            padded = jnp.pad(x, ((0, 0), (count - 1, 0), (0, 0), (0, 0)))
        last_rows[f"{name}_rows"] = padded[:, -(count - 1) :]
        sums = sum(padded[:, tap : tap + length] * taps[tap] for tap in range(count))
        bias = layer.weights.get(f"{name}_filter_bias")
        convolved[name] = jax.nn.silu(sums if bias is None else sums + bias.astype(x.dtype))
    return convolved, None if cache is None else cache.replaced(**last_rows)
