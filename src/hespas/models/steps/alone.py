"""One layer alone: a product over several devices, or experts."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from hespas.models.architecture import LayerKind
from hespas.models.catalogue import Experts, Gemm
from hespas.models.model import Step
from hespas.models.steps.layer import Layer
from hespas.models.steps.norms import Places
from hespas.models.steps.routing import through_experts
from hespas.models.steps.sharding import Divided, dtype_named
from hespas.models.weights import routing_weights


def build(settings: Gemm | Experts) -> Step:
    """Make the product, or the layer of experts."""
    settings.check()
    return _product_step(settings) if isinstance(settings, Gemm) else _experts_step(settings)


def _product_step(settings: Gemm) -> Step:
    mesh, sizes = settings.mesh, settings.sizes
    divided = Divided(mesh=mesh, sizes=sizes, axes=settings.axes)
    array = partial(divided.array, dtype=dtype_named(settings.dtype))
    result = Divided(mesh=mesh, sizes=sizes, axes=settings.result_axes)
    sharding = NamedSharding(mesh.abstract(), result.spec("m", "n"))
    function = (
        _scattered(divided, result, mesh.names) if settings.divided == "scattered" else _product
    )
    jitted = jax.jit(function, out_shardings=sharding)
    return Step(function=jitted, arguments=(array("m", "k"), array("k", "n")), mesh=mesh)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


def _scattered(divided: Divided, result: Divided, axes: tuple[str, ...]) -> Any:
    """Write the reduce-scatter out."""

    def body(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(a @ b, axes, scatter_dimension=0, tiled=True)

    return jax.shard_map(
        body,
        mesh=divided.mesh.abstract(),
        in_specs=(divided.spec("m", "k"), divided.spec("k", "n")),
        out_specs=result.spec("m", "n"),
    )


def _experts_step(settings: Experts) -> Step:
    model = settings.model
    divided = Divided(mesh=settings.mesh, sizes=model.sizes, axes=model.axes)
    array = partial(divided.array, dtype=dtype_named(settings.dtype))
    routing = model.routing
    assert routing is not None  # noqa: S101 - for the type checker
    weights = {name: array(*names) for name, names in routing_weights(model.style, routing).items()}

    kind = LayerKind(is_routed=True)

    def layer(weights: Any, x: jax.Array) -> jax.Array:
        own = Layer(
            model=model, divided=divided, kind=kind, weights=weights, places=Places(turns={})
        )
        return through_experts(own, x)

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        output = layer(weights, x)
        with jax.named_scope("loss"):
            return jnp.mean(jnp.square(output.astype(jnp.float32)))

    function = jax.grad(loss) if settings.train else layer
    arguments = (weights, array("batch", "sequence", "row"))
    return Step(function=jax.jit(function), arguments=arguments, mesh=settings.mesh)
