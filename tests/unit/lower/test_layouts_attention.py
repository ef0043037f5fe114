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


def attention(queries: Any, keys: Any, values: Any) -> Any:
    return jax.nn.dot_product_attention(queries, keys, values, is_causal=True)


def gradient(queries: Any, keys: Any, values: Any) -> Any:
    def summed(*given: Any) -> Any:
        return attention(*given).astype(jnp.float32).sum()

    return jax.grad(summed, argnums=(0, 1, 2))(queries, keys, values)


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    ("function", "key_heads", "compiled", "error"),
    [
        (attention, 8, (1709.3e-6, 4546.6e6), 0.06),
        (gradient, 8, (5770.9e-6, 15102e6), 0.06),
        (attention, 32, (1836.5e-6, 4697.6e6), 0.06),
        # XLA transposes gradients of scores in a kernel of its own, which reads them once more.
        (gradient, 32, (4813.1e-6, 12853e6), 0.08),
    ],
)
def test_attention_takes_about_as_long_as_compiled(
    function: Callable[..., Any],
    key_heads: int,
    compiled: tuple[float, float],
    error: float,
    tmp_path: Path,
) -> None:
    compiled_s, compiled_bytes = compiled
    file = tmp_path / "attention.mlir"
    given = (heads(32), heads(key_heads), heads(key_heads))
    file.write_text(jax.jit(function).trace(*given).lower().as_text())
    predicted = hespas.predict(file, "H100_80GB", devices=1, fidelity="fused")
    moved = predicted.estimates.total.total.bytes_moved
    assert predicted.step_time_s == pytest.approx(compiled_s, rel=error)
    assert moved == pytest.approx(compiled_bytes, rel=0.1)
