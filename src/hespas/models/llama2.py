"""Llama-2-7B on many nodes: sharded in the node and data parallel across, or the latter alone.

Weights and Adam's moments are 32 bits wide, and cast to 16 bits before they are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from hespas.models.adamw import training_state
from hespas.models.decoder import Decoder
from hespas.models.dtypes import dtype_named
from hespas.models.llama3 import training
from hespas.models.mesh import MeshAxes
from hespas.models.model import Model, Step
from hespas.models.sharding import Divided

_AXES = {"batch": ("data", "fsdp"), "embedding": ("fsdp",), "norm": ("fsdp",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama2:
    """A model and how it is run; ``batch`` counts sequences per device."""

    embedding: int = 4096
    heads: int = 32
    layers: int = 32
    mlp: int = 11008
    head_size: int = 128
    vocabulary: int = 32000
    rope_theta: int = 10000
    mesh: MeshAxes = MeshAxes(axes=(("data", 2), ("fsdp", 4)))  # noqa: RUF009 - immutable
    batch: int = 1
    sequence: int = 4096
    remat: str = "minimal_with_context"
    scan: bool = False
    dtype: str = "bf16"


def build(settings: Llama2) -> Step:
    """Make the training step: forward, backward, clipping, AdamW and three norms."""
    sizes = {
        "batch": settings.batch * settings.mesh.device_count,
        "sequence": settings.sequence,
        "embedding": settings.embedding,
        "norm": settings.embedding,
        "heads": settings.heads,
        "kv_heads": settings.heads,
        "head_size": settings.head_size,
        "mlp": settings.mlp,
        "vocabulary": settings.vocabulary,
        "layers": settings.layers,
    }
    divided = Divided(mesh=settings.mesh, sizes=sizes, axes=_AXES)
    divided.check()
    decoder = Decoder(
        divided=divided,
        layers=settings.layers,
        rope_theta=settings.rope_theta,
        dtype=dtype_named(settings.dtype),
        remat=settings.remat,
        scan=settings.scan,
    )
    state = training_state(decoder.weights(jnp.float32), divided.array(dtype=jnp.int32))
    return training(decoder, state)


MODELS = (
    Model(
        name="llama2-7b",
        summary="Llama-2-7B training step, sharded in the node, data parallel across nodes",
        settings=Llama2(),
        build=build,
    ),
    Model(
        name="llama2-7b-data-parallel",
        summary="Llama-2-7B training step, every device with all weights",
        settings=Llama2(mesh=MeshAxes(axes=(("data", 128),))),
        build=build,
    ),
)
