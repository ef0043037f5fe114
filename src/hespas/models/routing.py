"""Layers of experts: which token goes to which, and back, over the devices that have them.

Tokens of a device are sorted by the expert that they chose; each expert takes as many as its
capacity, and an all-to-all over the mesh axis ``expert`` brings them to the device that has it.
Dropless products take all rows as they were sorted, with the count of each expert.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from hespas.models.feed_forward import activated
from hespas.models.language import LanguageModel, Routing, Style
from hespas.models.part import EXPERT
from hespas.models.products import grouped_product, product, stored_order
from hespas.models.sharding import Divided

Weights = Mapping[str, Any]
Shapes = dict[str, tuple[str, ...]]


def routing_weights(routing: Routing) -> Shapes:
    """Return the dimensions of the router's weights and of the experts'."""
    bias: Shapes = {"router_bias": ("choices",)} if routing.gate == "sigmoid" else {}
    return {
        "router": ("norm", "choices"),
        **bias,
        "experts_gate": ("experts", "embedding", "expert_mlp"),
        "experts_up": ("experts", "embedding", "expert_mlp"),
        "experts_down": ("experts", "expert_mlp", "embedding"),
    }


def through_experts(
    model: LanguageModel, divided: Divided, x: jax.Array, weights: Weights
) -> jax.Array:
    """Return what the experts make of (batch, sequence, embedding), each token's own summed."""
    routing = model.routing
    assert routing is not None  # noqa: S101 - for the type checker: routed layers have it
    own = {
        name: each if isinstance(each := weights[name], tuple) else each.astype(x.dtype)
        for name in routing_weights(routing)
    }
    # The width of an expert stays divided; all else of it is whole.
    widths = divided.spec("expert_mlp")[0]
    experts = divided.spec("experts")[0]
    specs = {
        "router": PartitionSpec(),
        "router_bias": PartitionSpec(),
        "experts_gate": PartitionSpec(experts, None, widths),
        "experts_up": PartitionSpec(experts, None, widths),
        "experts_down": PartitionSpec(experts, widths, None),
    }
    rows = divided.spec("batch", "sequence", None)
    mapped = jax.shard_map(
        partial(_routed, routing, model.style, divided),
        in_specs=({name: _spec(name, specs[name], each) for name, each in own.items()}, rows),
        out_specs=rows,
        check_vma=False,
    )
    return mapped(own, x)


def _spec(name: str, spec: PartitionSpec, weight: Any) -> Any:
    """Return how a weight is divided; one in 8 bits is stored in another order, with a scale."""
    if not isinstance(weight, tuple):
        return spec
    return PartitionSpec(*(spec[at] for at in stored_order(name, len(spec)))), PartitionSpec()


def _routed(
    routing: Routing, style: Style, divided: Divided, weights: Weights, x: jax.Array
) -> jax.Array:
    """Return what the experts make of a device's tokens."""
    tokens = x.reshape(-1, x.shape[-1])
    with jax.named_scope("router"):
        gates, chosen = _choice(routing, tokens, weights)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        counts = jnp.bincount(chosen.reshape(-1), length=routing.experts)
    through = _dropless if routing.dropless else _within_capacity
    made = through(routing, style, divided, weights, tokens, order, counts)
    with jax.named_scope("combine"):
        by_choice = made.reshape(*chosen.shape, -1)
        out = jnp.einsum("tk,tkd->td", gates.astype(x.dtype), by_choice)
        if divided.spec("expert_mlp")[0] is not None:
            out = lax.psum(out, divided.spec("expert_mlp")[0])
        return out.reshape(x.shape)


def _choice(routing: Routing, tokens: jax.Array, weights: Weights) -> tuple[jax.Array, jax.Array]:
    """Return the weights and the indices of the experts that each token chose."""
    logits = (tokens @ weights["router"]).astype(jnp.float32)
    if routing.gate == "softmax":
        best, chosen = lax.top_k(logits, routing.chosen)
        return jax.nn.softmax(best, -1), chosen
    scores = jax.nn.sigmoid(logits)
    _, chosen = lax.top_k(scores + weights["router_bias"].astype(jnp.float32), routing.chosen)
    best = jnp.take_along_axis(scores, chosen, -1)
    return best / jnp.sum(best, -1, keepdims=True), chosen


def _within_capacity(  # noqa: PLR0917 - the pieces of one layer
    routing: Routing,
    style: Style,
    divided: Divided,
    weights: Weights,
    tokens: jax.Array,
    order: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """Return what the experts make of each choice, a row for each; nothing where it is dropped."""
    choices = len(order)
    share = choices * routing.capacity_percent / (100 * routing.experts)
    capacity = max(1, round(share))
    with jax.named_scope("dispatch"):
        starts = jnp.cumsum(counts) - counts
        places = starts[:, None] + jnp.arange(capacity)[None]
        taken = jnp.arange(capacity)[None] < counts[:, None]
        picked = order[jnp.minimum(places, choices - 1)]
        sent = tokens[picked // routing.chosen] * taken[..., None].astype(tokens.dtype)
        # Every device sends each expert its tokens, and gets those of all for its own experts.
        arrived = _exchanged(divided, sent, split=0, joined=1)
    with jax.named_scope("experts"):
        gate = checkpoint_name(
            product("ecd,edf->ecf", arrived, weights["experts_gate"]), "mlp_gate"
        )
        up = checkpoint_name(product("ecd,edf->ecf", arrived, weights["experts_up"]), "mlp_up")
        made = product("ecf,efd->ecd", activated(style, gate) * up, weights["experts_down"])
        made = checkpoint_name(made, "mlp_down")
    with jax.named_scope("combine"):
        returned = _exchanged(divided, made, split=1, joined=0)
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(choices, dtype=order.dtype))
        expert = jnp.searchsorted(jnp.cumsum(counts), rank, side="right")
        at = rank - starts[expert]
        row = returned[expert, jnp.minimum(at, capacity - 1)]
        return row * (at < capacity)[:, None].astype(row.dtype)


def _dropless(  # noqa: PLR0917 - as above
    routing: Routing,
    style: Style,
    divided: Divided,
    weights: Weights,
    tokens: jax.Array,
    order: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """Return what the experts make of each choice, a row for each."""
    del divided
    with jax.named_scope("dispatch"):
        sent = tokens[order // routing.chosen]
    with jax.named_scope("experts"):
        gate = checkpoint_name(grouped_product(sent, weights["experts_gate"], counts), "mlp_gate")
        up = checkpoint_name(grouped_product(sent, weights["experts_up"], counts), "mlp_up")
        made = grouped_product(activated(style, gate) * up, weights["experts_down"], counts)
        made = checkpoint_name(made, "mlp_down")
    with jax.named_scope("combine"):
        back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        return made[back]


def _exchanged(divided: Divided, x: jax.Array, *, split: int, joined: int) -> jax.Array:
    if divided.mesh.size(EXPERT) == 1:
        return x
    return lax.all_to_all(x, EXPERT, split_axis=split, concat_axis=joined, tiled=True)
