"""Training steps: forward, backward, clipping, AdamW.

The weights that AdamW changes, and its moments, are wider than what is computed in, and divided as
ZeRO's stages say.

Every stage of a pipeline runs a program of its own part at the same time. Sums over data-parallel
devices are left to the schedule: a pass leaves the gradients of its own sequences, layer after
layer, and the optimiser's step takes their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.errors import refuse
from hespas.models.division import divided_part, model_of_part
from hespas.models.language import LanguageModel
from hespas.models.model import Part, PartProgram, Step
from hespas.models.network_model import Learning
from hespas.models.runs import Training
from hespas.models.steps.adamw import METRICS, Preparation, training_state, training_step, updated
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.steps.transformer import BeforeLayer, Transformer, joined, untouched

if TYPE_CHECKING:
    from hespas.models.steps.arrays import Program

    Trained = Transformer | Program

_DATA = "data"
_GRADIENTS = 2
"""ZeRO's stage from which gradients are divided."""


def build(settings: LanguageModel) -> Step:
    """Return the training step."""
    settings.check()
    dtype = settings.training.gradient_dtype
    refuse(
        dtype != "same",
        f"gradient_dtype = {dtype} is that of sums in a pipeline",
        "give the mesh an axis pipe, or drop gradient_dtype",
    )
    settings = settings.as_run
    divided = Divided(mesh=settings.mesh, sizes=settings.sizes, axes=settings.axes)
    decoder = Transformer(model=settings, divided=divided)
    of_states = Transformer(model=settings, divided=replace(divided, axes=settings.state_axes))
    return training(decoder, of_states, decoder.frozen_weights())


def training(model: Trained, of_states: Trained, frozen: Any = None) -> Step:
    """Return a model's training step.

    Beside what it trains a step takes ``frozen`` weights, where there are some.
    """
    run = model.model.run
    assert isinstance(run, Training | Learning)  # noqa: S101 - for the type checker
    state = training_state(
        of_states.weights(dtype_named(run.state_dtype)), model.divided.array(dtype=jnp.int32)
    )
    sharding = jax.tree.map(lambda leaf: leaf.sharding, state)
    metrics = dict.fromkeys(METRICS, NamedSharding(run.mesh.abstract(), PartitionSpec()))
    preparation = _preparation(run, model, sharding["weights"])

    def train_step(
        state: dict[str, object], batch: dict[str, object], *fixed: dict[str, object]
    ) -> object:
        def loss(weights: Any, batch: Any) -> jax.Array:
            return model.loss(joined(weights, *fixed) if fixed else weights, batch)

        return training_step(
            loss,
            state,
            batch,
            accumulates=(run.accumulation or 1) > 1,
            preparation=preparation,
        )

    function = jax.jit(train_step, out_shardings=(sharding, metrics), donate_argnums=0)
    return Step(
        function=function,
        arguments=(
            state,
            model.batch(rounds=run.accumulation or 1),
            *((frozen,) if frozen else ()),
        ),
        mesh=run.mesh,
        platform=model.platform,
    )


def build_part(settings: LanguageModel, part: Part) -> Step:
    """Return a program of a part, for a pipeline."""
    of_part = model_of_part(settings, part)
    divided = Divided(mesh=of_part.mesh, sizes=of_part.sizes, axes=of_part.axes)
    return part_step(Transformer(model=of_part, divided=divided_part(divided, part)), part)


def _preparation(run: Training | Learning, decoder: Trained, states: Any) -> Preparation | None:
    """Return how ZeRO 1 and 2 prepare weights and gradients.

    Weights are cast and gathered once for a step, not for each layer and round. The first stage
    adds each device's own gradients over all rounds, and sums them over the devices once a step;
    the second sums those of every round, and keeps a device's part of them. Source: S. Rajbhandari
    et al., ZeRO, 2020, sections 5 and 7.
    """
    if run.zero not in {1, _GRADIENTS}:
        return None
    dtype, wide = dtype_named(run.dtype), dtype_named(run.state_dtype)
    gathered_shardings = jax.tree.map(lambda leaf: leaf.sharding, decoder.weights(dtype))
    is_summed = run.zero == _GRADIENTS or run.accumulation == 1
    own, parts = _own_gradients(decoder, is_summed=is_summed), run.mesh.size(_DATA)

    def mean(gradients: Any) -> Any:
        # Of the part that a device keeps: what stands between a sum and its part keeps compilers
        # from scattering it.
        own_part = jax.lax.with_sharding_constraint(gradients, states)
        return jax.tree.map(lambda leaf: leaf / parts, own_part)

    def gathered(weights: Any) -> Any:
        with jax.named_scope("weights"):
            cast = jax.tree.map(lambda leaf: leaf.astype(dtype), weights)
            cast = jax.lax.with_sharding_constraint(cast, states)
            return jax.lax.with_sharding_constraint(cast, gathered_shardings)

    def found(weights: Any, batch: Any) -> tuple[jax.Array, Any]:
        value, raw = own(weights, batch)
        if is_summed:
            raw = mean(raw)
        return value, jax.tree.map(lambda leaf: leaf.astype(wide), raw)

    def finished(value: jax.Array, gradients: Any) -> tuple[jax.Array, Any]:
        if is_summed:
            return value, gradients
        with jax.named_scope("accumulation"):
            total = jax.tree.map(lambda leaf: jnp.sum(leaf, 0), gradients)
            return jnp.mean(value), mean(total)

    return Preparation(weights=gathered, found=found, finished=finished)


def _own_gradients(decoder: Any, *, is_summed: bool) -> Any:
    """Return the loss and gradients of a device's own sequences.

    Where they are ``is_summed``, it returns the mean loss and the sum of gradients; otherwise both
    are each device's own, with a first dimension of devices.
    """
    own = replace(decoder, divided=decoder.divided.without(_DATA))

    def gradients(weights: Any, batch: Any) -> tuple[jax.Array, Any]:
        value, raw = jax.value_and_grad(own.loss)(weights, batch)
        if is_summed:
            return jax.lax.pmean(value, _DATA), jax.lax.psum(raw, _DATA)
        return value[None], jax.tree.map(lambda leaf: leaf[None], raw)

    return jax.shard_map(
        gradients,
        in_specs=(PartitionSpec(), PartitionSpec(_DATA)),
        out_specs=PartitionSpec() if is_summed else PartitionSpec(_DATA),
        axis_names={_DATA},
        check_vma=False,
    )


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
