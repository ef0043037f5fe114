"""Programs of a model's part: a pass, the optimiser's step.

Every stage of a pipeline runs a
program of its own part at the same time. Sums over data-parallel devices are left to the schedule:
a pass leaves the gradients of its own sequences, layer after layer, and the optimiser's step takes
their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hespas.models.model import Step
from hespas.models.part import Part, PartProgram
from hespas.models.steps.adamw import training_state, updated
from hespas.models.steps.sharding import dtype_named
from hespas.models.steps.transformer import BeforeLayer, Transformer, joined, untouched

Weights = Mapping[str, Any]


def part_step(decoder: Transformer, part: Part) -> Step:
    """Return a program of a part."""
    program = _update if part.program is PartProgram.UPDATE else _pass
    function, arguments, donated = program(decoder, part)
    return Step(
        function=jax.jit(function, donate_argnums=donated),
        arguments=arguments,
        mesh=part.mesh,
        platform=decoder.platform,
    )


_Made = tuple[Callable[..., object], tuple[Any, ...], tuple[int, ...]]


def _pass(decoder: Transformer, part: Part) -> _Made:
    of_part = partial(decoder.of_part, is_first=part.is_first, is_last=part.is_last)
    weights = of_part(decoder.weights(decoder.dtype))
    batch, activations = decoder.batch(), decoder.activations()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, weights)
    fixed_weights = of_part(decoder.fixed_weights())
    with_weights = part.program is PartProgram.BOTH
    before = _gradients_together(fixed_weights) if with_weights else untouched

    def forward(weights: Weights, x: Any, batch: Weights) -> jax.Array:
        x = decoder.embedded(weights, batch) if x is None else x
        x = decoder.through_layers(x, weights, batch, before)
        return decoder.loss_of(x, weights, batch) if part.is_last else x

    def run(weights: Weights, fixed: Weights, batch: Weights, x: Any, gradient: Any) -> object:
        if part.is_first and not with_weights:
            # Gradients of weights need those of what goes into each layer, the first one's too.
            x, _ = jax.vjp(lambda w: decoder.embedded(joined(w, fixed), batch), weights)
        output, backward = jax.vjp(lambda w, x: forward(joined(w, fixed), x, batch), weights, x)
        if part.is_last:
            gradient = jnp.ones_like(output)
        else:
            # The gradient comes when the micro-batch has been through all parts behind.
            output, gradient = jax.lax.optimization_barrier((output, gradient))
        of_weights, of_x = backward(gradient)
        if not with_weights:
            return output, of_x, None
        # Without being asked for, the gradient of an embedding is whole on each device.
        return output, of_x, jax.lax.with_sharding_constraint(of_weights, shardings)

    into = None if part.is_first else activations
    gradient = None if part.is_last else activations
    return run, (weights, fixed_weights, batch, into, gradient), ()


def _gradients_together(fixed: Weights) -> BeforeLayer:
    """Hold a layer's gradients back until all are computed.

    A step adds each to its sum before the layer before it begins, so that compilers can't keep what
    several layers' gradients are made of. Those of ``fixed`` weights are never made.
    """
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(fixed)}

    def before(x: jax.Array, weights: Weights) -> tuple[jax.Array, Weights]:
        trained = {name: leaf for name, leaf in weights.items() if name not in names}
        x, trained = _held_back(x, trained)
        return x, {**weights, **trained}

    return before


_held_back = jax.custom_vjp(untouched)
_held_back.defvjp(
    lambda x, weights: ((x, weights), None),
    lambda _, gradients: jax.lax.optimization_barrier(gradients),
)


def _update(decoder: Transformer, part: Part) -> _Made:
    model, of_part = decoder.model, partial(decoder.of_part, is_first=part.is_first)
    states = dtype_named(model.state_dtype)
    weights, summed = (
        of_part(decoder.weights(dtype), is_last=part.is_last)
        for dtype in (states, dtype_named(model.gradient_dtype))
    )
    state = training_state(weights, decoder.divided.array(dtype=jnp.int32))

    def run(state: Weights, gradients: Weights) -> object:
        wide = jax.tree.map(lambda leaf: leaf.astype(states), gradients)
        changed, _ = updated(state, wide)
        return changed, jax.tree.map(lambda leaf: leaf.astype(decoder.dtype), changed["weights"])

    return run, (state, summed), (0,)
