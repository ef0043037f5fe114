"""Loops, branches and collectives."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from registry import gradients, program, shape


def _layers(values: Any, weights: Any) -> Any:
    def layer(carry: Any, weight: Any) -> tuple[Any, Any]:
        return jnp.tanh(carry @ weight), carry.sum()

    return lax.scan(layer, values, weights)[0]


@program(shape(4, 8), shape(5, 8, 8))
def scan(values: Any, weights: Any) -> Any:
    return _layers(values, weights)


@program(shape(4, 8), shape(5, 8, 8))
def scan_gradient(values: Any, weights: Any) -> Any:
    return gradients(_layers, values, weights)


@program(shape(4, 8), shape(3, 5, 8, 8))
def scan_nested(values: Any, weights: Any) -> Any:
    return lax.scan(lambda carry, group: (_layers(carry, group), None), values, weights)[0]


@program(shape(4, 8), shape(5, 8, 8))
def scan_rematerialised(values: Any, weights: Any) -> Any:
    return gradients(jax.checkpoint(_layers), values, weights)


@program(shape(8, 8))
def fori(values: Any) -> Any:
    return lax.fori_loop(2, 9, lambda at, carry: jnp.sin(carry) @ carry + at, values)


@program(shape(of="bool"), shape(8, 8))
def cond(chosen: Any, values: Any) -> Any:
    return lax.cond(chosen, lambda at: at @ at, lambda at: jnp.exp(at) + at, values)


@program(shape(of="int32"), shape(8, 8))
def switch(chosen: Any, values: Any) -> Any:
    branches: list[Callable[[Any], Any]] = [jnp.tanh, jnp.sin, lambda at: at @ at @ at]
    return lax.switch(chosen, branches, values)


@program(shape(of="bool"), shape(8, 8), shape(5, 8, 8))
def cond_of_scans(chosen: Any, values: Any, weights: Any) -> Any:
    return lax.cond(chosen, _layers, lambda at, _: jnp.exp(at), values, weights)


@program(shape(8, 8))
def calls(values: Any) -> Any:
    inner = jax.jit(lambda at: jnp.tanh(at) @ at)
    return inner(inner(values)) + inner(values)


def _on_mesh(function: Callable[..., Any], *, split_out: bool = True) -> Callable[..., Any]:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    along = PartitionSpec("x")
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=along,
        out_specs=along if split_out else PartitionSpec(),
        check_vma=False,
    )


@program(shape(16, 8))
def shard_map_psum(values: Any) -> Any:
    return _on_mesh(lambda at: lax.psum(jnp.tanh(at).sum(0), "x"), split_out=False)(values)


@program(shape(16, 8))
def shard_map_pmax(values: Any) -> Any:
    return _on_mesh(lambda at: lax.pmax(at * 2.0, "x"), split_out=False)(values)


@program(shape(16, 8))
def shard_map_all_gather(values: Any) -> Any:
    return _on_mesh(lambda at: at @ lax.all_gather(at, "x", tiled=True).T)(values)


@program(shape(16, 8))
def shard_map_permute(values: Any) -> Any:
    ring = [(at, (at + 1) % 4) for at in range(4)]
    return _on_mesh(lambda at: at + lax.ppermute(at, "x", ring))(values)


@program(shape(16, 8))
def shard_map_reduce_scatter(values: Any) -> Any:
    scatter = partial(lax.psum_scatter, axis_name="x", tiled=True)
    return _on_mesh(lambda at: scatter(at) * 2.0)(values)


@program(shape(16, 8))
def shard_map_all_to_all(values: Any) -> Any:
    exchange = partial(lax.all_to_all, axis_name="x", split_axis=1, concat_axis=0, tiled=True)
    return _on_mesh(lambda at: exchange(at) + lax.axis_index("x"))(values)
