"""Attention without a kernel of its own, as XLA compiles it for GPUs."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hespas


def heads(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, 2048, count, 128), jnp.bfloat16)


def weights(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2048, count, 128), jnp.bfloat16)


def attention(queries: Any, keys: Any, values: Any) -> Any:
    return jax.nn.dot_product_attention(queries, keys, values, is_causal=True)


def gradient(queries: Any, keys: Any, values: Any) -> Any:
    def summed(*given: Any) -> Any:
        return attention(*given).astype(jnp.float32).sum()

    return jax.grad(summed, argnums=(0, 1, 2))(queries, keys, values)


def layer_gradient(queries: Any, keys: Any, values: Any) -> Any:
    """Return gradients of attention beside products, as a layer has them."""

    def summed(*weights: Any) -> Any:
        tokens = jnp.ones((2, 2048, 2048), jnp.bfloat16)
        projected = [jnp.einsum("btd,dhk->bthk", tokens, weight) for weight in weights]
        return attention(*projected).astype(jnp.float32).var()

    return jax.grad(summed, argnums=(0, 1, 2))(queries, keys, values)


# XLA rounds gradients of scores in a kernel for each product, and of grouped heads it makes them
# twice; beside other products, as in a layer, that is a smaller part.
_ROUNDED_APART = pytest.mark.xfail(
    strict=True, reason="gradients of scores are rounded in one kernel here"
)


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    ("function", "given", "compiled", "error"),
    [
        (attention, (heads(32), heads(8), heads(8)), (1709.3e-6, 4546.6e6), 0.06),
        pytest.param(
            *(gradient, (heads(32), heads(8), heads(8)), (5770.9e-6, 15102e6), 0.06),
            marks=_ROUNDED_APART,
        ),
        pytest.param(
            *(gradient, (heads(32), heads(32), heads(32)), (4813.1e-6, 12853e6), 0.08),
            marks=_ROUNDED_APART,
        ),
        (layer_gradient, (weights(32), weights(8), weights(8)), (5985.4e-6, 15554e6), 0.06),
        (attention, (heads(32), heads(32), heads(32)), (1836.5e-6, 4697.6e6), 0.06),
        (layer_gradient, (weights(32), weights(32), weights(32)), (6199.7e-6, 15319e6), 0.1),
    ],
)
def test_attention_takes_about_as_long_as_compiled(
    function: Callable[..., Any],
    given: tuple[jax.ShapeDtypeStruct, ...],
    compiled: tuple[float, float],
    error: float,
    tmp_path: Path,
) -> None:
    compiled_s, compiled_bytes = compiled
    file = tmp_path / "attention.mlir"
    file.write_text(jax.jit(function).trace(*given).lower().as_text())
    predicted = hespas.predict(file, "H100_80GB", devices=1, fidelity="fused")
    moved = predicted.estimates.total.total.bytes_moved
    assert predicted.step_time_s == pytest.approx(compiled_s, rel=error)
    assert moved == pytest.approx(compiled_bytes, rel=0.1)
