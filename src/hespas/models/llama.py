"""Training steps of Llama models: Llama-3-like ones, and Llama-2-7B.

The Llama-3-like models are fully sharded (FSDP), with tensor parallelism on request. The six sizes
of the published comparison have as many key-value heads as heads; llama3-8b is the real model's
shape. Llama-2-7B runs on many nodes, sharded in the node and data parallel across nodes, or data
parallel alone. Weights and Adam's moments are 32 bits wide unless the settings say otherwise, and
weights are cast to 16 bits before they are gathered.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.models.adamw import METRICS, training_state, training_step
from hespas.models.catalogue import Llama2, Llama3
from hespas.models.decoder import Decoder
from hespas.models.model import Step
from hespas.models.part import Part
from hespas.models.pipelined import part_divided, part_step
from hespas.models.sharding import Divided, dtype_named


def build(settings: Llama2 | Llama3) -> Step:
    """Return a step: forward, backward, clipping, AdamW and three norms; it replaces its state."""
    settings.check()
    mesh, rounds = settings.mesh, settings.accumulation
    divided = Divided(mesh=mesh, sizes=settings.sizes, axes=settings.axes)
    decoder = decoder_of(settings, divided)
    weights = decoder.weights(dtype_named(settings.state_dtype))
    state = training_state(weights, divided.array(dtype=jnp.int32))
    state_sharding = jax.tree.map(lambda leaf: leaf.sharding, state)
    metrics_sharding = dict.fromkeys(METRICS, NamedSharding(mesh.abstract(), PartitionSpec()))

    def train_step(state: dict[str, object], batch: dict[str, object]) -> object:
        return training_step(decoder.loss, state, batch, accumulates=rounds > 1)

    function = jax.jit(
        train_step, out_shardings=(state_sharding, metrics_sharding), donate_argnums=0
    )
    return Step(
        function=function,
        arguments=(state, decoder.batch(rounds=rounds)),
        mesh=mesh,
        platform=decoder.platform,
    )


def build_part(settings: Llama3, part: Part) -> Step:
    """Return a program of a part of the model, for a pipeline."""
    settings.check()
    whole = Divided(mesh=settings.mesh, sizes=settings.sizes, axes=settings.axes)
    decoder = decoder_of(replace(settings, layers=part.layers), part_divided(whole, part))
    return part_step(
        decoder,
        part,
        dtype=dtype_named(settings.dtype),
        state_dtype=dtype_named(settings.state_dtype),
    )


def decoder_of(settings: Llama2 | Llama3, divided: Divided) -> Decoder:
    """Return the decoder of a model, on the mesh that ``divided`` has."""
    return Decoder(
        divided=divided,
        layers=settings.layers,
        rope_theta=settings.rope_theta,
        dtype=dtype_named(settings.dtype),
        attention=settings.attention,
        remat=settings.remat,
        scan=settings.scan,
        context_attention=settings.context_attention,
    )
