"""Training steps of Llama models: Llama-3-like ones, and Llama-2-7B.

The Llama-3-like models are fully sharded (FSDP), with tensor parallelism on request. The six sizes
of the published comparison have as many key-value heads as heads, and everything in bf16, Adam's
moments too; llama3-8b is the real model's shape. Llama-2-7B runs on many nodes, sharded in the node
and data parallel across nodes, or data parallel alone. Its weights and Adam's moments are 32 bits
wide, and cast to 16 bits before they are gathered.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.models.adamw import METRICS, training_state, training_step
from hespas.models.decoder import Decoder
from hespas.models.model import MeshAxes, Model, Step
from hespas.models.sharding import Divided, dtype_named

_FSDP_4 = MeshAxes(axes=(("fsdp", 4),))
# The dimensions that mesh axes divide.
_LLAMA3_AXES = {
    "batch": ("data", "fsdp"),
    "embedding": ("fsdp",),
    "heads": ("tp",),
    "kv_heads": ("tp",),
    "mlp": ("tp",),
    "vocabulary": ("tp",),
}
_LLAMA2_AXES = {"batch": ("data", "fsdp"), "embedding": ("fsdp",), "norm": ("fsdp",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3:
    """A model and how it is run; ``batch`` counts sequences per data-parallel part of the mesh."""

    embedding: int
    heads: int
    kv_heads: int
    layers: int
    mlp: int
    head_size: int = 128
    vocabulary: int = 128256
    rope_theta: int = 500000
    mesh: MeshAxes = _FSDP_4
    batch: int = 1
    sequence: int = 4096
    remat: str = "minimal_with_context"
    scan: bool = False
    dtype: str = "bf16"


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


def build_llama3(settings: Llama3) -> Step:
    """Return the training step, with weights in the type that is computed in."""
    return _training_step(
        settings,
        axes=_LLAMA3_AXES,
        batch=settings.batch * settings.mesh.size("data", "fsdp"),
        kv_heads=settings.kv_heads,
        weights=dtype_named(settings.dtype),
    )


def build_llama2(settings: Llama2) -> Step:
    """Return the training step, with 32-bit weights."""
    return _training_step(
        settings,
        axes=_LLAMA2_AXES,
        batch=settings.batch * settings.mesh.device_count,
        kv_heads=settings.heads,
        weights=jnp.float32,
    )


def _training_step(
    settings: Llama2 | Llama3,
    *,
    axes: Mapping[str, tuple[str, ...]],
    batch: int,
    kv_heads: int,
    weights: Any,
) -> Step:
    """Return a step: forward, backward, clipping, AdamW and three norms; it replaces its state."""
    mesh = settings.mesh
    sizes = {
        "batch": batch,
        "sequence": settings.sequence,
        "embedding": settings.embedding,
        "norm": settings.embedding,
        "heads": settings.heads,
        "kv_heads": kv_heads,
        "head_size": settings.head_size,
        "mlp": settings.mlp,
        "vocabulary": settings.vocabulary,
        "layers": settings.layers,
    }
    divided = Divided(mesh=mesh, sizes=sizes, axes=axes)
    divided.check()
    decoder = Decoder(
        divided=divided,
        layers=settings.layers,
        rope_theta=settings.rope_theta,
        dtype=dtype_named(settings.dtype),
        remat=settings.remat,
        scan=settings.scan,
    )
    state = training_state(decoder.weights(weights), divided.array(dtype=jnp.int32))
    state_sharding = jax.tree.map(lambda leaf: leaf.sharding, state)
    metrics_sharding = dict.fromkeys(METRICS, NamedSharding(mesh.abstract(), PartitionSpec()))

    def train_step(state: dict[str, object], batch: dict[str, object]) -> object:
        return training_step(decoder.loss, state, batch)

    function = jax.jit(
        train_step, out_shardings=(state_sharding, metrics_sharding), donate_argnums=0
    )
    return Step(function=function, arguments=(state, decoder.batch()), mesh=mesh)


def _llama3(name: str, size: Llama3, summary: str) -> Model[Llama3]:
    return Model(name=name, summary=summary, settings=size, build=build_llama3)


def _square(embedding: int, heads: int, layers: int, mlp: int) -> Llama3:
    return Llama3(embedding=embedding, heads=heads, kv_heads=heads, layers=layers, mlp=mlp)


_TRAINING = partial("Llama-3-like training step, {} parameters".format)
MODELS = (
    _llama3("llama3-100m", _square(576, 9, 7, 2016), _TRAINING("190.7 M")),
    _llama3("llama3-200m", _square(832, 13, 10, 2912), _TRAINING("341.5 M")),
    _llama3("llama3-500m", _square(1280, 20, 16, 4480), _TRAINING("813.3 M")),
    _llama3("llama3-1b", _square(1792, 28, 22, 6272), _TRAINING("1.767 B")),
    _llama3("llama3-2b", _square(2240, 35, 28, 7840), _TRAINING("3.174 B")),
    _llama3("llama3-3b", _square(2624, 41, 32, 9184), _TRAINING("4.749 B")),
    _llama3(
        "llama3-8b",
        Llama3(embedding=4096, heads=32, kv_heads=8, layers=32, mlp=14336),
        "Llama-3-8B training step, 8.030 B parameters",
    ),
    Model(
        name="llama2-7b",
        summary="Llama-2-7B training step, sharded in the node, data parallel across nodes",
        settings=Llama2(),
        build=build_llama2,
    ),
    Model(
        name="llama2-7b-data-parallel",
        summary="Llama-2-7B training step, every device with all weights",
        settings=Llama2(mesh=MeshAxes(axes=(("data", 128),))),
        build=build_llama2,
    ),
)
