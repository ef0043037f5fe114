"""A mixture-of-experts layer whose tokens travel to their experts and back by all-to-all."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from hespas.models.catalogue import Experts
from hespas.models.model import Step
from hespas.models.sharding import Divided, dtype_named


def build(settings: Experts) -> Step:
    """Make the layer's forward pass; with ``train`` also the gradients of its weights."""
    settings.check()
    divided = Divided(mesh=settings.mesh, sizes=settings.sizes, axes=settings.axes)
    array = partial(divided.array, dtype=dtype_named(settings.dtype))
    weights = {
        "router": array("embedding", "choices"),
        "gate": array("experts", "embedding", "mlp"),
        "up": array("experts", "embedding", "mlp"),
        "down": array("experts", "mlp", "embedding"),
    }
    specs = {name: weight.sharding.spec for name, weight in weights.items()}
    tokens = PartitionSpec("expert")
    layer = jax.shard_map(
        partial(_layer, settings),
        mesh=settings.mesh.abstract(),
        in_specs=(specs, tokens),
        out_specs=tokens,
        check_vma=False,
    )
    function = _gradients(layer) if settings.train else layer
    arguments = (weights, array("batch", "sequence", "embedding"))
    return Step(function=jax.jit(function), arguments=arguments, mesh=settings.mesh)


def _gradients(layer: Any) -> Any:
    def loss(weights: Any, x: jax.Array) -> jax.Array:
        made = layer(weights, x)
        with jax.named_scope("loss"):
            return jnp.mean(jnp.square(made.astype(jnp.float32)))

    return jax.grad(loss)


def _layer(settings: Experts, weights: Any, x: jax.Array) -> jax.Array:
    tokens = x.reshape(-1, settings.embedding)
    share = len(tokens) * settings.chosen / settings.experts
    capacity = max(1, round(share * settings.capacity_percent / 100))
    with jax.named_scope("router"):
        dispatch, combine = _routed(settings, tokens @ weights["router"], capacity)
    with jax.named_scope("dispatch"):
        sent = jnp.einsum("tec,td->ecd", dispatch, tokens)
        # Every device sends each expert its tokens, and gets those of all for its own experts.
        taken = lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
    with jax.named_scope("experts"):
        gate = jnp.einsum("ecd,edf->ecf", taken, weights["gate"])
        up = jnp.einsum("ecd,edf->ecf", taken, weights["up"])
        made = jnp.einsum("ecf,efd->ecd", jax.nn.silu(gate) * up, weights["down"])
    with jax.named_scope("combine"):
        returned = lax.all_to_all(made, "expert", split_axis=1, concat_axis=0, tiled=True)
        return jnp.einsum("tec,ecd->td", combine, returned).reshape(x.shape)


def _routed(settings: Experts, logits: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Return which token goes to which position of which expert, and with which weight."""
    scores = jax.nn.softmax(logits.astype(jnp.float32))
    best, experts = lax.top_k(scores, settings.chosen)
    chosen = jax.nn.one_hot(experts, settings.experts, dtype=jnp.int32)
    earlier = jnp.cumsum(chosen.reshape(-1, settings.experts), 0).reshape(chosen.shape) - 1
    position = jax.nn.one_hot(
        jnp.where(chosen > 0, earlier, capacity), capacity, dtype=logits.dtype
    )
    dispatch = jnp.sum(position, 1)
    return dispatch, jnp.einsum("tk,tkec->tec", best.astype(logits.dtype), position)
