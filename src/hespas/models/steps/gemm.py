"""Matrix products over several devices, by divided dimension."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from hespas.models.catalogue import Gemm
from hespas.models.model import Step
from hespas.models.steps.sharding import Divided, dtype_named


def build(settings: Gemm) -> Step:
    """Make the product."""
    settings.check()
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
