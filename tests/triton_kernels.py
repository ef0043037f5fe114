"""Kernels in Triton's language, as Pallas writes them into programs for GPUs."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu


def _lowered(function: Any, *shapes: Any) -> str:
    lowered = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))
    return str(lowered.as_text())


def _product(x: Any, y: Any, made: Any, *, k: int, step: int) -> None:
    def body(at: Any, sums: Any) -> Any:
        left, right = x[:, pl.ds(at * step, step)], y[pl.ds(at * step, step), :]
        return sums + jnp.dot(left, right, preferred_element_type=jnp.float32)

    zeros = jnp.zeros((x.shape[0], y.shape[1]), jnp.float32)
    made[...] = jax.lax.fori_loop(0, k // step, body, zeros).astype(made.dtype)


def product(m: int, n: int, k: int, *, tile: int = 64, step: int = 32) -> str:
    """Return a program of one product of bf16, by blocks of ``tile`` x ``tile``."""
    call = pl.pallas_call(
        partial(_product, k=k, step=step),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        grid=(m // tile, n // tile),
        in_specs=[
            pl.BlockSpec((tile, k), lambda i, _: (i, 0)),
            pl.BlockSpec((k, tile), lambda _, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((tile, tile), lambda i, j: (i, j)),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        name="matmul_kernel",
    )
    x, y = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (k, n)))
    return _lowered(call, x, y)


def _softmax(x: Any, made: Any) -> None:
    scores = x[...]
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    made[...] = exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


def softmax(rows: int, columns: int) -> str:
    """Return a program of a softmax over rows of f32, one block for each row."""
    block = pl.BlockSpec((1, columns), lambda row: (row, 0))
    call = pl.pallas_call(
        _softmax,
        out_shape=jax.ShapeDtypeStruct((rows, columns), jnp.float32),
        grid=(rows,),
        in_specs=[block],
        out_specs=block,
        compiler_params=plgpu.CompilerParams(num_warps=8),
        name="softmax_kernel",
    )
    return _lowered(call, jax.ShapeDtypeStruct((rows, columns), jnp.float32))
