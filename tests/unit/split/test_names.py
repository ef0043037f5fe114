"""Phases and paths in programs that JAX makes of ordinary functions."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hespas.frontend.load import load_source
from hespas.program.program import Op, nested_ops
from hespas.program.scopes import NO_NAME
from hespas.split.names import operation_names
from hespas.split.options import SplitOptions
from hespas.split.regions import operations_of
from hespas.split.strategies import split_program

MATRIX = jax.ShapeDtypeStruct((8, 8), jnp.float32)
STACKED = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)
NO_WORK = frozenset({"constant", "return", "while"})


def found(function: Callable[..., Any], *arguments: Any) -> dict[tuple[str, str], set[str]]:
    """Return the operations of each phase and path, by the names that JAX gives them."""
    text = jax.jit(function).trace(*arguments).lower().as_text(debug_info=True)
    graph = split_program(load_source(text.encode(), name="test"), SplitOptions())
    names = operation_names(graph)
    by: dict[tuple[str, str], set[str]] = defaultdict(set)
    for region in graph.regions:
        for op in (inner for outer in operations_of(region) for inner in _all(outer)):
            named = names.of(op)
            if op.kind in NO_WORK or named is NO_NAME:
                continue
            assert named.phase is not None
            by[named.phase.value, "/".join(named.path)].add(named.operation)
    return dict(by)


def _all(op: Op) -> list[Op]:
    return [op, *(inner for region in op.regions for inner in nested_ops(region))]


def layer(weights, x):
    with jax.named_scope("layers_0"), jax.named_scope("mlp"):
        return jnp.tanh(x @ weights)


def loss(weights, x):
    y = layer(weights, x)
    with jax.named_scope("loss"):
        return jnp.sum(y * y)


def test_inference_is_forward() -> None:
    assert found(layer, MATRIX, MATRIX) == {("forward", "layers_0/mlp"): {"dot_general", "tanh"}}


def test_a_gradient_is_forward_and_backward() -> None:
    by = found(jax.grad(loss), MATRIX, MATRIX)
    assert by["forward", "layers_0/mlp"] >= {"dot_general", "tanh"}
    assert by["backward", "layers_0/mlp"] >= {"dot_general", "mul"}
    assert {phase for phase, _ in by} == {"forward", "backward"}
    assert {path for _, path in by} == {"layers_0/mlp", "loss"}


def test_a_checkpoint_is_computed_again() -> None:
    def twice(weights, x):
        with jax.named_scope("decoder"):
            again = jax.checkpoint(layer)
            return jnp.sum(again(weights, again(weights, x)))

    by = found(jax.grad(twice), MATRIX, MATRIX)
    assert by["recomputation", "decoder/layers_0/mlp"] >= {"dot_general", "tanh"}
    assert by["forward", "decoder/layers_0/mlp"] >= {"dot_general", "tanh"}
    assert by["backward", "decoder/layers_0/mlp"] >= {"dot_general", "mul"}


def test_layers_in_a_loop() -> None:
    def looped(weights, x):
        with jax.named_scope("decoder"):
            again = jax.checkpoint(layer)
            x = jax.lax.scan(lambda c, w: (again(w, c), None), x, weights)[0]
        return jnp.sum(x)

    by = found(jax.grad(looped), STACKED, MATRIX)
    for phase in ("forward", "recomputation", "backward"):
        assert "dot_general" in by[phase, "decoder/layers_0/mlp"]


def test_updates_outside_of_all_scopes_are_the_optimisers() -> None:
    """As optax does: it names nothing."""

    def step(state, x):
        weights, moment, count = state
        x = x * 0.5
        value, gradient = jax.value_and_grad(loss)(weights, x)
        moment = 0.9 * moment + 0.1 * gradient
        weights = weights - jnp.sqrt(1e-3 * count) * moment
        return (weights, moment, count + 1), value

    count = jax.ShapeDtypeStruct((), jnp.float32)
    by = found(step, (MATRIX, MATRIX, count), MATRIX)
    assert by["optimiser", ""] == {"mul", "add", "sub", "sqrt"}
    # The scaled input, and the counter, which the gradient has no part in.
    assert by["other", ""] == {"mul", "add"}
    assert by["forward", "loss"] >= {"mul", "reduce_sum"}


def test_accumulated_gradients() -> None:
    def step(weights, batches):
        def body(total, x):
            return total + jax.grad(loss)(weights, x), None

        total = jax.lax.scan(body, jnp.zeros_like(weights), batches)[0]
        return weights - 1e-3 * total

    by = found(step, MATRIX, STACKED)
    assert by["optimiser", ""] >= {"sub", "mul", "add"}
    assert "dot_general" in by["backward", "layers_0/mlp"]
    assert "dot_general" in by["forward", "layers_0/mlp"]


def test_a_named_optimiser_needs_no_gradient() -> None:
    def step(weights, gradient):
        with jax.named_scope("optimizer"):
            return weights - 1e-3 * gradient

    assert set(found(step, MATRIX, MATRIX)) == {("optimiser", "optimizer")}


def test_vmap_and_jit_inside() -> None:
    def mapped(weights, x):
        return jnp.sum(jax.vmap(jax.jit(layer), in_axes=(None, 0))(weights, x))

    by = found(jax.grad(mapped), MATRIX, MATRIX)
    assert "dot_general" in by["forward", "layers_0/mlp"]
    assert "dot_general" in by["backward", "layers_0/mlp"]


@pytest.mark.parametrize("debug", [True, False])
def test_without_locations_there_are_no_names(debug: bool) -> None:
    text = jax.jit(layer).trace(MATRIX, MATRIX).lower().as_text(debug_info=debug)
    graph = split_program(load_source(text.encode(), name="test"), SplitOptions())
    names = operation_names(graph)
    (region,) = graph.compute_regions
    assert all((names.of(op) is NO_NAME) != debug for op in region.operations)
