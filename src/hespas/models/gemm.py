"""Matrix products over several devices, by the dimension that is divided."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from hespas.models.catalogue import Gemm
from hespas.models.model import Step, one_of
from hespas.models.sharding import Divided, dtype_named

_DIVIDED = {"rows": "m", "columns": "n", "contracting": "k", "scattered": "k"}
_RESULT = {"rows": "m", "columns": "", "contracting": "", "scattered": "m"}
"""Which dimension is divided in the factors, and which in the product."""


def build(settings: Gemm) -> Step:
    """Make the product."""
    kind = one_of("divided", settings.divided, tuple(_DIVIDED))
    axes = tuple(name for name, _ in settings.mesh.axes)
    sizes = {"m": settings.m, "k": settings.k, "n": settings.n}
    divided = Divided(mesh=settings.mesh, sizes=sizes, axes={_DIVIDED[kind]: axes})
    divided.check()
    array = partial(divided.array, dtype=dtype_named(settings.dtype))
    result = Divided(mesh=settings.mesh, sizes=sizes, axes={_RESULT[kind]: axes})
    if _RESULT[kind]:
        result.check()
    sharding = NamedSharding(settings.mesh.abstract(), result.spec("m", "n"))
    function = _scattered(divided, result, axes) if kind == "scattered" else _product
    jitted = jax.jit(function, out_shardings=sharding)
    return Step(function=jitted, arguments=(array("m", "k"), array("k", "n")), mesh=settings.mesh)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


def _scattered(divided: Divided, result: Divided, axes: tuple[str, ...]) -> Any:
    """Write the reduce-scatter out: the partitioner would write an all-reduce and a slice."""

    def body(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(a @ b, axes, scatter_dimension=0, tiled=True)

    return jax.shard_map(
        body,
        mesh=divided.mesh.abstract(),
        in_specs=(divided.spec("m", "k"), divided.spec("k", "n")),
        out_specs=result.spec("m", "n"),
    )
