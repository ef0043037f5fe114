"""A layer of experts alone, whose tokens travel by all-to-all."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hespas.models.catalogue import Experts
from hespas.models.model import Step
from hespas.models.steps.routing import through_experts
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.weights import routing_weights


def build(settings: Experts) -> Step:
    """Build the layer's forward pass, or its gradients."""
    settings.check()
    model = settings.model
    divided = Divided(mesh=settings.mesh, sizes=model.sizes, axes=model.axes)
    array = partial(divided.array, dtype=dtype_named(settings.dtype))
    routing = model.routing
    assert routing is not None  # noqa: S101 - for the type checker
    weights = {name: array(*names) for name, names in routing_weights(model.style, routing).items()}

    def layer(weights: Any, x: jax.Array) -> jax.Array:
        return through_experts(model, divided, x, weights)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        output = layer(weights, x)
        with jax.named_scope("loss"):
            return jnp.mean(jnp.square(output.astype(jnp.float32)))

    function = jax.grad(loss) if settings.train else layer
    arguments = (weights, array("batch", "sequence", "row"))
    return Step(function=jax.jit(function), arguments=arguments, mesh=settings.mesh)
