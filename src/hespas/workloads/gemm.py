"""Matrix products over several devices, by the dimension that is divided."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
from jax.sharding import NamedSharding

from hespas.workloads.dtypes import dtype_named
from hespas.workloads.mesh import MeshAxes
from hespas.workloads.model import Model, Step, one_of
from hespas.workloads.sharding import Divided

_DIVIDED = {"rows": "m", "columns": "n", "contracting": "k", "scattered": "k"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """An m x k matrix times a k x n one; ``divided`` says what the mesh divides.

    By rows nothing is communicated; by columns the result is gathered; by the contracting
    dimension it is summed, by an all-reduce, or scattered by a reduce-scatter.
    """

    m: int = 8192
    k: int = 8192
    n: int = 8192
    divided: str = "rows"
    mesh: MeshAxes = MeshAxes(axes=(("x", 4),))  # noqa: RUF009 - immutable
    dtype: str = "bf16"


def build(settings: Gemm) -> Step:
    """Make the product."""
    kind = one_of("divided", settings.divided, tuple(_DIVIDED))
    axes = tuple(name for name, _ in settings.mesh.axes)
    inner, result = _DIVIDED[kind], {"scattered": "m"}.get(kind, "")
    sizes = {"m": settings.m, "k": settings.k, "n": settings.n}
    divided = Divided(mesh=settings.mesh, sizes=sizes, axes={inner: axes})
    divided.check()
    replace(divided, axes={result: axes} if result else {inner: axes}).check()
    left, right = (
        divided.array(*names, dtype=dtype_named(settings.dtype))
        for names in (("m", "k"), ("k", "n"))
    )
    outcome = replace(divided, axes={result: axes} if result else {})
    if kind == "rows":
        outcome = divided
    sharding = NamedSharding(settings.mesh.abstract(), outcome.spec("m", "n"))

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    function = jax.jit(product, out_shardings=sharding)
    return Step(function=function, arguments=(left, right), mesh=settings.mesh)


_model = partial(Model, build=build)
MODELS = (
    _model(
        name="gemm",
        summary="One matrix product on one device",
        settings=Gemm(mesh=MeshAxes(axes=(("x", 1),))),
    ),
    _model(name="gemm-rows", summary="A product divided by rows", settings=Gemm()),
    _model(
        name="gemm-columns",
        summary="A product divided by columns, then gathered",
        settings=Gemm(divided="columns"),
    ),
    _model(
        name="gemm-contracting",
        summary="A product divided by the contracting dimension, then summed",
        settings=Gemm(divided="contracting"),
    ),
    _model(
        name="gemm-scattered",
        summary="A product divided by the contracting dimension, then summed and scattered",
        settings=Gemm(divided="scattered"),
    ),
)
