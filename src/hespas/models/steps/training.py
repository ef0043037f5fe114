"""Training steps: forward, backward, clipping, AdamW.

The weights that AdamW changes, and its moments, are wider than what is computed in, and divided as
ZeRO's stages say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.errors import refuse
from hespas.models.division import divided_part, model_of_part
from hespas.models.language import LanguageModel
from hespas.models.model import Step
from hespas.models.network_model import Learning
from hespas.models.part import Part
from hespas.models.runs import Training
from hespas.models.steps.adamw import METRICS, Preparation, training_state, training_step
from hespas.models.steps.pipelined import part_step
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.steps.transformer import Transformer, joined

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
