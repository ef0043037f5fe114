"""What products take in: each number of kernels is what jaxlib 0.10.2 compiles for H100."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def kernels(function: Callable[..., Any], *given: jax.ShapeDtypeStruct) -> list[str]:
    text = jax.jit(function).trace(*given).lower().as_text()
    made = fused(load_source(text.encode(), name="test.mlir"))
    return [op.kind for op in made.main.body.operations if not op.traits.runs_nothing]


ROWS, WEIGHTS, BIAS, WHOLE = array(256, 128), array(128, 512), array(512), array(256, 512)


@pytest.mark.parametrize(
    ("function", "given", "count"),
    [
        (lambda x, w, b: x @ w + b, (ROWS, WEIGHTS, BIAS), 1),
        (lambda x, w, b: jax.nn.relu(x @ w + b), (ROWS, WEIGHTS, BIAS), 1),
        (lambda x, w, b: jax.nn.gelu(x @ w + b), (ROWS, WEIGHTS, BIAS), 1),
        (lambda x, w: jax.nn.gelu(x @ w), (ROWS, WEIGHTS), 1),
        (lambda x, w, b: x @ w + b, (array(4, 64, 128), WEIGHTS, BIAS), 1),
        (lambda x, w, b, r: x @ w + b + r, (ROWS, WEIGHTS, BIAS, WHOLE), 1),
        (lambda x, w, b, r: jax.nn.gelu(x @ w + r + b), (ROWS, WEIGHTS, BIAS, WHOLE), 1),
        (lambda x, w, r, s: x @ w + r + s, (ROWS, WEIGHTS, WHOLE, WHOLE), 2),
        (lambda x, w, b, c: x @ w + b + c, (ROWS, WEIGHTS, BIAS, BIAS), 2),
        (lambda x, w, b: jax.nn.silu(x @ w + b), (ROWS, WEIGHTS, BIAS), 2),
        (lambda x, w, b: jax.nn.relu6(x @ w + b), (ROWS, WEIGHTS, BIAS), 2),
        (lambda x, w, b: (x @ w, x @ w + b), (ROWS, WEIGHTS, BIAS), 2),
        (lambda x, w, b: jnp.swapaxes(x @ w + b, 0, 1), (ROWS, WEIGHTS, BIAS), 2),
        (lambda x, w, b: x @ w + b[:, None], (ROWS, WEIGHTS, array(256)), 2),
        (lambda x, w: x @ w + 2, (ROWS, WEIGHTS), 2),
    ],
)
def test_a_product_takes_in_what_cublas_does_to_its_result(
    function: Callable[..., Any], given: tuple[jax.ShapeDtypeStruct, ...], count: int
) -> None:
    assert len(kernels(function, *given)) == count


def test_two_products_that_are_added_are_each_one_kernel() -> None:
    def added(x: Any, w: Any, y: Any, v: Any, b: Any) -> Any:
        return x @ w + y @ v + b

    assert kernels(added, ROWS, WEIGHTS, ROWS, WEIGHTS, BIAS) == ["dot_general", "fusion"]


def test_an_activation_whose_operand_is_kept_is_a_kernel_of_its_own() -> None:
    def kept(x: Any, w: Any, b: Any) -> Any:
        made = x @ w + b
        return made, jax.nn.gelu(made)

    assert kernels(kept, ROWS, WEIGHTS, BIAS) == ["fusion", "fusion"]
