"""Reductions, windows, sorts, gathers, scatters, transforms and random numbers."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from registry import gradients, program, shape


@program(shape(40, 50), shape(40, 50, of="int32"))
def reductions(values: Any, counts: Any) -> Any:
    kept = values.sum(), values.max(0), values.prod(1), values.min((0, 1)), values.var(0)
    return kept, jax.nn.logsumexp(values, 1), (counts > 3).any(0), counts.sum(1)


@program(shape(40, 50))
def argmax_and_argmin(values: Any) -> Any:
    return values.argmax(1), values.argmin(0), values.argmax()


@program(shape(40, 50))
def cumulative_sums(values: Any) -> Any:
    return jnp.cumsum(values, 1), jnp.cumprod(values, 0), lax.cummax(values, 1)


@program(shape(40, 50), platform="cuda")
def cumulative_sum_for_cuda(values: Any) -> Any:
    return jnp.cumsum(values, 1)


@program(shape(1000), shape(1000, of="int32"))
def sort_one_row(keys: Any, values: Any) -> Any:
    return jnp.sort(keys), lax.sort((keys, values), num_keys=1)


@program(shape(40, 50))
def sort_many_rows(values: Any) -> Any:
    return jnp.sort(values, 0), jnp.argsort(values, 1)


@program(shape(40, 50))
def top_k(values: Any) -> Any:
    return lax.top_k(values, 8)


@program(shape(2, 16, 12, 6))
def max_pool(image: Any) -> Any:
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return lax.reduce_window(image, -jnp.inf, lax.max, window, strides, "SAME")


@program(shape(2, 16, 12, 6))
def max_pool_gradient(image: Any) -> Any:
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return gradients(
        lambda at: lax.reduce_window(at, -jnp.inf, lax.max, window, strides, "SAME"), image
    )


@program(shape(2, 16, 12, 6))
def average_pool_gradient(image: Any) -> Any:
    window = (1, 2, 2, 1)
    return gradients(
        lambda at: lax.reduce_window(at, 0.0, lax.add, window, window, "VALID") / 4.0, image
    )


@program(shape(100, 16), shape(5, 7, of="int32"), shape(40, 3, of="int32"), shape(40, 50))
def gathers(table: Any, rows: Any, columns: Any, scores: Any) -> Any:
    return table[rows], jnp.take_along_axis(scores, columns, 1), table[:, 3]


@program(shape(100, 16), shape(35, of="int32"), shape(35, 16))
def scatters(table: Any, rows: Any, updates: Any) -> Any:
    added = table.at[rows].add(updates), table.at[rows].multiply(updates)
    return added, table.at[rows].set(updates), jax.ops.segment_sum(updates, rows, 12)


@program(shape(100, 16), shape(8, 16), shape(of="int32"))
def dynamic_slices(cache: Any, update: Any, at: Any) -> Any:
    cache = lax.dynamic_update_slice(cache, update, (at, 0))
    return cache, lax.dynamic_slice(cache, (at, 4), (10, 8)), cache[2:90:3]


@program(shape(6, 8), shape(6, 8), shape(6, 8, of="int32"))
def movement(left: Any, right: Any, numbers: Any) -> Any:
    joined = jnp.concatenate([left, right.T.reshape(6, 8)], 0)
    padded = lax.pad(joined, 0.0, ((1, 2, 1), (-1, 0, 0)))
    return padded[::-1], jnp.roll(left, 2, 1), jnp.tile(right, (2, 3)), jnp.where(numbers > 2, 1, 0)


@program(shape(6, 8), shape(6, 8))
def floating_arithmetic(left: Any, right: Any) -> Any:
    rounded = jnp.floor(left) + jnp.ceil(right) + jnp.round(left) + jnp.sign(right)
    functions = jnp.exp(left) + jnp.log1p(right) + jnp.expm1(left) + jnp.tan(right)
    powers = left**right + jnp.cbrt(left) + jnp.arctan2(left, right) + lax.rsqrt(left)
    halves = lax.reduce_precision(left, 8, 7) + left.astype(jnp.bfloat16).astype(jnp.float32)
    return rounded, functions, powers, halves, left % right, jnp.isfinite(left), left // right


@program(shape(6, 8, of="int32"), shape(6, 8, of="int32"))
def integer_arithmetic(left: Any, right: Any) -> Any:
    bits = (left & right) | (left ^ ~right), left << 3, left >> right
    return bits, left // right, left % right, lax.population_count(left), lax.clz(right), left**3


@program(shape(6, 8, of="complex64"), shape(6, 8, of="complex64"))
def complex_sums(left: Any, right: Any) -> Any:
    return left + right, left - right, -left


@program(shape(6, 8, of="complex64"), shape(6, 8, of="complex64"))
def complex_products(left: Any, right: Any) -> Any:
    return left * right, left / right, jnp.conj(left), left.real, left.imag


@program(shape(6, 8, of="complex64"))
def complex_functions(values: Any) -> Any:
    return jnp.exp(values), jnp.abs(values), jnp.tanh(values)


@program(shape(6, 8))
def error_functions(values: Any) -> Any:
    return lax.erf(values), lax.lgamma(values), lax.erf_inv(values)


@program(shape(3, 64, of="complex64"))
def fourier(values: Any) -> Any:
    return jnp.fft.fft(values)


@program(shape(3, 48))
def fourier_real(values: Any) -> Any:
    return jnp.fft.irfft(jnp.fft.rfft(values))


@program(shape(3, 16, 8, of="complex64"))
def fourier_2d(values: Any) -> Any:
    return jnp.fft.fft2(values)


@program(shape(8, 8), platform="tpu")
def cholesky(matrix: Any) -> Any:
    return lax.linalg.cholesky(matrix, symmetrize_input=False)


@program(shape(3, 8, 8), platform="tpu")
def cholesky_batched(matrices: Any) -> Any:
    return lax.linalg.cholesky(matrices, symmetrize_input=False)


@program(shape(8, 8), shape(8, 5), platform="tpu")
def triangular_solve(matrix: Any, right: Any) -> Any:
    return lax.linalg.triangular_solve(matrix, right, left_side=True, lower=True)


@program(shape(2, of="uint32"))
def random_threefry(key: Any) -> Any:
    keys = jax.random.wrap_key_data(key, impl="threefry2x32")
    return jax.random.normal(keys, (6, 8)), jax.random.bernoulli(keys, 0.1, (6, 8))


@program(shape(4, of="uint32"))
def random_bits(key: Any) -> Any:
    keys = jax.random.wrap_key_data(key, impl="rbg")
    return jax.random.uniform(keys, (6, 8)), jax.random.categorical(keys, jnp.zeros((6, 8)))


@program(shape(), shape())
def random_hardware(low: Any, high: Any) -> Any:
    return lax.rng_uniform(low, high, (6, 8))
