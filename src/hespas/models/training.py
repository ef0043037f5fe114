"""Training steps of language models: forward, backward, clipping, AdamW; each replaces its state.

The weights that AdamW changes, and its moments, are wider than what is computed in, and divided as
ZeRO's stages say.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.models.adamw import METRICS, Preparation, training_state, training_step
from hespas.models.language import LanguageModel, Training
from hespas.models.model import Step
from hespas.models.part import Part
from hespas.models.pipelined import part_divided, part_step
from hespas.models.sharding import Divided, dtype_named
from hespas.models.transformer import Transformer

_GRADIENTS = 2
"""ZeRO's stage from which gradients are divided."""


def build(settings: LanguageModel) -> Step:
    """Return the training step."""
    settings.check()
    run = settings.run
    assert isinstance(run, Training)  # noqa: S101 - for the type checker
    divided = Divided(mesh=run.mesh, sizes=settings.sizes, axes=settings.axes)
    decoder = Transformer(model=settings, divided=divided)
    of_states = Transformer(model=settings, divided=_divided_states(divided, run))
    state = training_state(
        of_states.weights(dtype_named(run.state_dtype)), divided.array(dtype=jnp.int32)
    )
    sharding = jax.tree.map(lambda leaf: leaf.sharding, state)
    metrics = dict.fromkeys(METRICS, NamedSharding(run.mesh.abstract(), PartitionSpec()))
    preparation = _preparation(run, decoder, sharding["weights"])

    def train_step(state: dict[str, object], batch: dict[str, object]) -> object:
        return training_step(
            decoder.loss,
            state,
            batch,
            accumulates=run.accumulation > 1,
            preparation=preparation,
        )

    function = jax.jit(train_step, out_shardings=(sharding, metrics), donate_argnums=0)
    return Step(
        function=function,
        arguments=(state, decoder.batch(rounds=run.accumulation)),
        mesh=run.mesh,
        platform=decoder.platform,
    )


def build_part(settings: LanguageModel, part: Part) -> Step:
    """Return a program of a part of the model, for a pipeline."""
    settings.check()
    run, routing = settings.run, settings.routing
    of_part = settings.with_layers(part.layers)
    if routing is not None:
        dense = min(routing.dense_layers, part.layers) if part.is_first else 0
        of_part = replace(of_part, routing=replace(routing, dense_layers=dense))
    whole = Divided(mesh=run.mesh, sizes=of_part.sizes, axes=of_part.axes)
    pieces = Transformer(model=of_part, divided=part_divided(whole, part))
    return part_step(pieces, part, dtype=dtype_named(run.dtype))


def _divided_states(divided: Divided, run: Training) -> Divided:
    """Return how states are divided: over the axis ``data`` too, with ZeRO."""
    if not run.zero:
        return divided
    return replace(divided, axes={**divided.axes, "embedding": ("data", "fsdp")})


def _preparation(run: Training, decoder: Transformer, states: Any) -> Preparation | None:
    """Return what ZeRO's first two stages do with weights and gradients; None for the others.

    Weights are cast and gathered once for a step, not for each layer and round.
    """
    if run.zero not in {1, _GRADIENTS}:
        return None
    dtype = dtype_named(run.dtype)
    whole = jax.tree.map(lambda leaf: leaf.sharding, decoder.weights(dtype))

    def gathered(weights: Any) -> Any:
        with jax.named_scope("weights"):
            cast = jax.tree.map(lambda leaf: leaf.astype(dtype), weights)
            return jax.lax.with_sharding_constraint(cast, whole)

    def scattered(gradients: Any) -> Any:
        return jax.lax.with_sharding_constraint(gradients, states)

    return Preparation(weights=gathered, gradients=scattered, each_round=run.zero == _GRADIENTS)
