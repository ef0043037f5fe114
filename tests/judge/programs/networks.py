"""Layers and training steps, small."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from registry import gradients, program, shape


def _normalised(values: Any, scale: Any, offset: Any) -> Any:
    mean = values.mean(-1, keepdims=True)
    variance = jnp.square(values - mean).mean(-1, keepdims=True)
    return (values - mean) * lax.rsqrt(variance + 1e-5) * scale + offset


@program(shape(4, 9, 32), shape(32), shape(32))
def layernorm(values: Any, scale: Any, offset: Any) -> Any:
    return _normalised(values, scale, offset)


@program(shape(4, 9, 32), shape(32), shape(32))
def layernorm_gradient(values: Any, scale: Any, offset: Any) -> Any:
    return gradients(_normalised, values, scale, offset)


@program(shape(4, 9, 32))
def softmax(scores: Any) -> Any:
    return jax.nn.softmax(scores)


@program(shape(4, 9, 32))
def softmax_gradient(scores: Any) -> Any:
    return gradients(lambda values: jax.nn.softmax(values) * jnp.arange(32.0), scores)


@program(shape(4, 9, 32))
def activations(values: Any) -> Any:
    gates = jax.nn.gelu(values) + jax.nn.silu(values) + jax.nn.softplus(values)
    return gates, jax.nn.gelu(values, approximate=False)


def _attention(queries: Any, keys: Any, values: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / 3.0
    causal = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


_HEADS = shape(2, 12, 4, 8)


@program(_HEADS, _HEADS, _HEADS)
def attention(queries: Any, keys: Any, values: Any) -> Any:
    return _attention(queries, keys, values)


@program(_HEADS, _HEADS, _HEADS)
def attention_gradient(queries: Any, keys: Any, values: Any) -> Any:
    return gradients(_attention, queries, keys, values)


def _residual(image: Any, first: Any, second: Any, scale: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = lax.conv_general_dilated(image, first, (1, 1), "SAME", dimension_numbers=layout)
    mean = hidden.mean((0, 1, 2))
    variance = hidden.var((0, 1, 2))
    hidden = jax.nn.relu((hidden - mean) * lax.rsqrt(variance + 1e-5) * scale)
    hidden = lax.conv_general_dilated(hidden, second, (1, 1), "SAME", dimension_numbers=layout)
    return jax.nn.relu(hidden + image)


@program(shape(2, 14, 14, 8), shape(3, 3, 8, 8), shape(3, 3, 8, 8), shape(8))
def resnet_block(image: Any, first: Any, second: Any, scale: Any) -> Any:
    return _residual(image, first, second, scale)


@program(shape(2, 14, 14, 8), shape(3, 3, 8, 8), shape(3, 3, 8, 8), shape(8))
def resnet_block_gradient(image: Any, first: Any, second: Any, scale: Any) -> Any:
    return gradients(_residual, image, first, second, scale)


def _cross_entropy(weights: dict[str, Any], inputs: Any, labels: Any) -> Any:
    hidden = jax.nn.relu(inputs @ weights["in"] + weights["bias"])
    logits = hidden @ weights["out"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1)
    return -chosen.mean()


_WEIGHTS = {"in": shape(16, 32), "bias": shape(32), "out": shape(32, 10)}


_MOMENTS = (_WEIGHTS, _WEIGHTS)


@program(_WEIGHTS, _MOMENTS, shape(8, 16), shape(8, of="int32"), shape(of="int32"))
def mlp_train_step(weights: Any, moments: Any, inputs: Any, labels: Any, step: Any) -> Any:
    means, squares = moments
    loss, slopes = jax.value_and_grad(_cross_entropy)(weights, inputs, labels)
    slopes = jax.tree.map(lambda slope: jnp.clip(slope, -1.0, 1.0), slopes)
    means = jax.tree.map(lambda mean, slope: 0.9 * mean + 0.1 * slope, means, slopes)
    squares = jax.tree.map(lambda old, slope: 0.99 * old + 0.01 * slope**2, squares, slopes)
    rate = 1e-3 * jnp.sqrt(1 - 0.99 ** step.astype(jnp.float32))
    weights = jax.tree.map(
        lambda weight, mean, square: weight - rate * mean / (jnp.sqrt(square) + 1e-8),
        weights,
        means,
        squares,
    )
    return loss, weights, means, squares


def _lstm(inputs: Any, kernel: Any, recurrent: Any) -> Any:
    def step(carry: tuple[Any, Any], row: Any) -> tuple[tuple[Any, Any], Any]:
        hidden, cell = carry
        gates = row @ kernel + hidden @ recurrent
        entry, forget, candidate, out = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(entry) * jnp.tanh(candidate)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    start = jnp.zeros((inputs.shape[1], recurrent.shape[0]))
    return lax.scan(step, (start, start), inputs)[1]


@program(shape(6, 3, 8), shape(8, 64), shape(16, 64))
def lstm(inputs: Any, kernel: Any, recurrent: Any) -> Any:
    return _lstm(inputs, kernel, recurrent)


@program(shape(6, 3, 8), shape(8, 64), shape(16, 64))
def lstm_gradient(inputs: Any, kernel: Any, recurrent: Any) -> Any:
    return gradients(_lstm, inputs, kernel, recurrent)


@program(shape(24, 16), shape(16, 4), shape(4, 16, 32), shape(4, 32, 16))
def mixture_of_experts(tokens: Any, router: Any, into: Any, out_of: Any) -> Any:
    probabilities = jax.nn.softmax(tokens @ router)
    chosen = jnp.argmax(probabilities, -1)
    mask = jax.nn.one_hot(chosen, 4)
    location = jnp.cumsum(mask, 0) * mask
    slots = jax.nn.one_hot((location.sum(-1) - 1).astype(jnp.int32), 8)
    dispatch = mask[:, :, None] * slots[:, None, :]
    experts = jnp.einsum("tec,td->ecd", dispatch, tokens)
    hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", experts, into))
    made = jnp.einsum("ecf,efd->ecd", hidden, out_of)
    return jnp.einsum("tec,ecd->td", dispatch, made) * probabilities.max(-1, keepdims=True)


@program(shape(50, 16), shape(4, 9, of="int32"))
def embedding_gradient(table: Any, tokens: Any) -> Any:
    return jax.grad(lambda rows: jnp.square(rows[tokens]).sum())(table)
