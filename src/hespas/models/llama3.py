"""Training steps of Llama-3-like models, fully sharded (FSDP), with tensor parallelism if asked.

The six sizes of the published comparison have as many key-value heads as heads, and everything
in bf16, Adam's moments too; llama3-8b is the real model's shape.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.models.adamw import METRICS, training_state, training_step
from hespas.models.decoder import Decoder
from hespas.models.dtypes import dtype_named
from hespas.models.mesh import MeshAxes
from hespas.models.model import Model, Step
from hespas.models.sharding import Divided

_FSDP_4 = MeshAxes(axes=(("fsdp", 4),))
_AXES = {
    "batch": ("data", "fsdp"),
    "embedding": ("fsdp",),
    "heads": ("tp",),
    "kv_heads": ("tp",),
    "mlp": ("tp",),
    "vocabulary": ("tp",),
}


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


def build(settings: Llama3) -> Step:
    """Make the training step: forward, backward, clipping, AdamW and three norms."""
    mesh = settings.mesh
    sizes = {
        "batch": settings.batch * mesh.size("data", "fsdp"),
        "sequence": settings.sequence,
        "embedding": settings.embedding,
        "norm": settings.embedding,
        "heads": settings.heads,
        "kv_heads": settings.kv_heads,
        "head_size": settings.head_size,
        "mlp": settings.mlp,
        "vocabulary": settings.vocabulary,
        "layers": settings.layers,
    }
    divided = Divided(mesh=mesh, sizes=sizes, axes=_AXES)
    divided.check()
    dtype = dtype_named(settings.dtype)
    decoder = Decoder(
        divided=divided,
        layers=settings.layers,
        rope_theta=settings.rope_theta,
        dtype=dtype,
        remat=settings.remat,
        scan=settings.scan,
    )
    state = training_state(decoder.weights(dtype), divided.array(dtype=jnp.int32))
    return training(decoder, state)


def training(decoder: Decoder, state: dict[str, object]) -> Step:
    """Make the training step of a decoder; its state is replaced in place."""
    mesh = decoder.divided.mesh
    kept = jax.tree.map(lambda leaf: leaf.sharding, state)
    told = dict.fromkeys(METRICS, NamedSharding(mesh.abstract(), PartitionSpec()))

    def train_step(state: dict[str, object], batch: dict[str, object]) -> object:
        return training_step(decoder.loss, state, batch)

    function = jax.jit(train_step, out_shardings=(kept, told), donate_argnums=0)
    return Step(function=function, arguments=(state, decoder.batch()), mesh=mesh)


def _model(name: str, size: Llama3, summary: str) -> Model[Llama3]:
    return Model(name=name, summary=summary, settings=size, build=build)


def _square(embedding: int, heads: int, layers: int, mlp: int) -> Llama3:
    return Llama3(embedding=embedding, heads=heads, kv_heads=heads, layers=layers, mlp=mlp)


_TRAINING = partial("Llama-3-like training step, {} parameters".format)
MODELS = (
    _model("llama3-100m", _square(576, 9, 7, 2016), _TRAINING("190.7 M")),
    _model("llama3-200m", _square(832, 13, 10, 2912), _TRAINING("341.5 M")),
    _model("llama3-500m", _square(1280, 20, 16, 4480), _TRAINING("813.3 M")),
    _model("llama3-1b", _square(1792, 28, 22, 6272), _TRAINING("1.767 B")),
    _model("llama3-2b", _square(2240, 35, 28, 7840), _TRAINING("3.174 B")),
    _model("llama3-3b", _square(2624, 41, 32, 9184), _TRAINING("4.749 B")),
    _model(
        "llama3-8b",
        Llama3(embedding=4096, heads=32, kv_heads=8, layers=32, mlp=14336),
        "Llama-3-8B training step, 8.030 B parameters",
    ),
)
