"""Experts on 8 devices beside all on one: values and gradients, printed as JSON.

It runs in a process of its own, which JAX gives 8 virtual devices.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import json
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from hespas.models.architecture import LayerKind, Routing, Style
from hespas.models.model import parse_mesh
from hespas.models.runs import Training
from hespas.models.steps.layer import Layer
from hespas.models.steps.norms import Places
from hespas.models.steps.routing import through_experts
from hespas.models.steps.sharding import Divided

BATCH, EXPERTS, WIDTH, EXPERT_WIDTH = 8, 16, 16, 8
DIMENSIONS = {
    "router": ("norm", "choices"),
    "router_bias": ("choices",),
    "experts_gate": ("experts", "embedding", "expert_mlp"),
    "experts_up": ("experts", "embedding", "expert_mlp"),
    "experts_down": ("experts", "expert_mlp", "embedding"),
}
SIZES = {
    "norm": WIDTH,
    "embedding": WIDTH,
    "choices": EXPERTS,
    "experts": EXPERTS,
    "expert_mlp": EXPERT_WIDTH,
}
AXES = {"batch": ("expert",), "experts": ("expert",)}
OVER_TP = {"batch": ("expert",), "norm_sequence": ("tp",), "experts": ("expert", "tp")}
DIVIDED: dict[str, dict[str, tuple[str, ...]]] = {
    "expert": AXES,
    "expert+tp": OVER_TP,
    "tp": {"experts": ("tp",)},
}


class _Model:
    """What layers of experts ask of a model."""

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.style = Style()
        self.training = Training(mesh=parse_mesh("expert=1"))
        self.lora_modules = ()


def made(axes: str, weights: Any, tokens: Any, **settings: Any) -> Any:
    """Return what a layer makes, and the gradients of a loss of it."""
    routing = Routing(
        experts=EXPERTS,
        chosen=4,
        expert_mlp=EXPERT_WIDTH,
        gate="sigmoid",
        capacity_percent=1600,
        **settings,
    )
    mesh = parse_mesh(axes)
    divided = Divided(mesh=mesh, sizes=SIZES, axes=DIVIDED[routing.expert_axes])

    def layer(weights: Any, tokens: Any) -> Any:
        model: Any = _Model(routing)
        own = Layer(
            model=model,
            divided=divided,
            kind=LayerKind(is_routed=True),
            weights=weights,
            places=Places(turns={}),
        )
        return through_experts(own, tokens)

    def loss(weights: Any, tokens: Any) -> Any:
        return jnp.sum(jnp.sin(layer(weights, tokens)))

    sizes = tuple(size for _, size in mesh.axes)
    kinds = (AxisType.Auto,) * len(sizes)
    real = jax.make_mesh(sizes, mesh.names, kinds, devices=jax.devices()[: prod(sizes)])
    with jax.set_mesh(real):
        return jax.jit(layer)(weights, tokens), jax.jit(jax.grad(loss, (0, 1)))(weights, tokens)


def main() -> None:
    """Print the largest difference of each result, as a share of its largest value."""
    random = np.random.default_rng(0)
    weights = {
        name: jnp.asarray(random.normal(size=[SIZES[each] for each in named]) / 4, jnp.float32)
        for name, named in DIMENSIONS.items()
    }
    tokens = jnp.asarray(random.normal(size=(BATCH, 12, WIDTH)), jnp.float32)
    groups = {"expert_groups": 4, "chosen_groups": 2}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "groups": ("expert=8", groups),
        "groups, f8": ("expert=8", groups | {"exchange_dtype": "f8"}),
        "over tp": ("expert=4,tp=2", {"expert_axes": "expert+tp"}),
        "own": ("tp=8", {"expert_axes": "tp"}),
        "sorted": ("expert=4", {"dispatcher": "alltoall"}),
        "dropless": ("expert=4", {"dropless": True}),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (axes, settings) in cases.items():
        divided = made(axes, weights, tokens, **settings)
        whole = made("expert=1", weights, tokens, **(groups if "groups" in name else {}))
        leaves = zip(jax.tree.leaves(divided), jax.tree.leaves(whole), strict=True)
        found[name] = {
            str(at): float(np.abs(np.asarray(one) - np.asarray(other)).max())
            / (float(np.abs(np.asarray(other)).max()) or 1.0)
            for at, (one, other) in enumerate(leaves)
        }
    print(json.dumps(found))


main()
