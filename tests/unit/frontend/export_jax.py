"""Write programs that today's JAX makes: ``python export_jax.py OUTPUT_DIRECTORY``.

A process of its own, because JAX counts its virtual devices when it starts.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LINE = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
SQUARE = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
ONE = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
MATRIX = jax.ShapeDtypeStruct((8, 8), jnp.float32)
VECTOR = jax.ShapeDtypeStruct((16,), jnp.float32)

Programs = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def sharded(body: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    along_x = {"mesh": LINE, "in_specs": P("x"), "out_specs": P("x")}
    return jax.shard_map(body, **(along_x | options))


def layernorm(x, scale):
    mean = x.mean(-1, keepdims=True)
    spread = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(spread + 1e-5) * scale


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), ()), lambda _, grad: (jnp.clip(grad, -1, 1),))


def nested_loops(x):
    def outer(i, carried):
        return lax.fori_loop(0, 3, lambda _, inner: inner + jnp.sin(inner), carried)

    return lax.fori_loop(0, 5, outer, x)


def single_device_programs() -> Programs:
    image = jax.ShapeDtypeStruct((2, 16, 3), jnp.float32)
    kernel = jax.ShapeDtypeStruct((3, 3, 4), jnp.float32)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return {
        "layernorm": (layernorm, (MATRIX, jax.ShapeDtypeStruct((8,), jnp.float32))),
        "cond": (lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), (flag, MATRIX)),
        "top_k": (lambda x: lax.top_k(x, 3), (MATRIX,)),
        "normal": (lambda k: jax.random.normal(k, (4, 4)), (jax.random.key(0),)),
        "conv1d": (
            lambda x, k: lax.conv_general_dilated(
                x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            ),
            (image, kernel),
        ),
        "scan": (lambda x: lax.scan(lambda c, row: (c + row, c), x[0], x), (MATRIX,)),
        "while_loop": (
            lambda x: lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, c[1] * 2), (0, x)),
            (MATRIX,),
        ),
        "dynamic_loop": (lambda n, x: lax.fori_loop(0, n, lambda _, c: c * 2, x), (count, MATRIX)),
        "nested_loops": (nested_loops, (MATRIX,)),
        "nested_jit": (lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) + 1)(x) * 2, (MATRIX,)),
        "checkpoint": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), (MATRIX,)),
        "custom_vjp": (jax.grad(lambda x: clipped(x).sum()), (MATRIX,)),
        "special": (lambda x: (lax.erf(x), jnp.arcsin(x), jnp.sinh(x), lax.lgamma(x)), (MATRIX,)),
        "one_device_mesh": (
            sharded(lambda x: lax.psum(x * 2, "x"), mesh=ONE, out_specs=P()),
            (jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(ONE, P("x"))),),
        ),
        "one_device_constraint": (
            lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(ONE, P("x"))),
            (jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(ONE, P("x"))),),
        ),
    }


def shifted(x):
    return lax.ppermute(x, "x", [(device, (device + 1) % 4) for device in range(4)])


def summed_scan(x):
    def step(carried, row):
        return lax.psum(carried * row, "x"), row

    return lax.scan(step, lax.pcast(jnp.ones(2), "x", to="varying"), x)[0]


def device_programs() -> Programs:
    square = {"mesh": SQUARE, "in_specs": P("x", "y"), "out_specs": P("x", "y")}
    scatter = sharded(lambda x: lax.psum_scatter(x, "x", tiled=True))
    shards = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(LINE, P("x")))
    return {
        "psum": (sharded(lambda x: lax.psum(x, "x"), out_specs=P()), (MATRIX,)),
        "psum_scan": (sharded(summed_scan, in_specs=P(None, "x"), check_vma=False), (MATRIX,)),
        "ppermute": (sharded(shifted), (VECTOR,)),
        "two_axes": (
            sharded(lambda x: lax.psum(x, ("x", "y")), **square, check_vma=False),
            (MATRIX,),
        ),
        "one_of_two_axes": (
            sharded(lambda x: lax.psum(x, "y"), **(square | {"out_specs": P("x")})),
            (MATRIX,),
        ),
        "all_to_all": (
            sharded(lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True)),
            (MATRIX,),
        ),
        "in_sequence": (lambda x: sharded(shifted)(sharded(jnp.sin)(x)), (VECTOR,)),
        "in_nested_jit": (jax.jit(sharded(shifted)), (VECTOR,)),
        "reduce_scatter": (scatter, (jax.ShapeDtypeStruct((64,), jnp.float32),)),
        "matching_arguments": (sharded(lambda x: lax.psum(x, "x"), out_specs=P()), (shards,)),
        "op_outside": (lambda x: sharded(shifted)(x * 2), (VECTOR,)),
        "resharded_between": (
            lambda x: sharded(jnp.sin, mesh=SQUARE, in_specs=P("y"), out_specs=P("y"))(
                sharded(jnp.cos, mesh=SQUARE, in_specs=P("x"), out_specs=P("x"))(x)
            ),
            (VECTOR,),
        ),
        "resharded_argument": (
            sharded(jnp.sin, mesh=SQUARE, in_specs=P("y"), out_specs=P("y")),
            (jax.ShapeDtypeStruct((16,), jnp.float32, sharding=NamedSharding(SQUARE, P("x"))),),
        ),
        "partly_manual": (
            sharded(
                lambda x: lax.psum(x, "x"),
                mesh=SQUARE,
                in_specs=P("x"),
                out_specs=P(),
                axis_names={"x"},
            ),
            (VECTOR,),
        ),
        "in_scan": (
            lambda x: lax.scan(lambda c, _: (sharded(shifted)(c), None), x, length=3)[0],
            (VECTOR,),
        ),
        "named_sharding": (lambda x: x @ x, (shards,)),
        "constraint": (
            lambda x: lax.with_sharding_constraint(x, NamedSharding(LINE, P("x"))) * 2,
            (MATRIX,),
        ),
        "gathered": (
            sharded(lambda x: lax.all_gather(x, "x"), in_specs=P(None, "x")),
            (MATRIX,),
        ),
    }


def main(directory: Path) -> None:
    for name, (function, arguments) in (single_device_programs() | device_programs()).items():
        lowered = jax.jit(function).lower(*arguments)
        (directory / f"{name}.mlir").write_text(lowered.as_text())
        if name in ("psum_scan", "while_loop", "dynamic_loop"):
            (directory / f"{name}.debug.mlir").write_text(lowered.as_text(debug_info=True))
    exported = jax.export.export(jax.jit(layernorm))(*single_device_programs()["layernorm"][1])
    (directory / "layernorm.portable.mlirbc").write_bytes(exported.mlir_module_serialized)
    jax.config.update("jax_use_shardy_partitioner", False)
    for name in ("named_sharding", "constraint", "psum"):
        function, arguments = device_programs()[name]
        (directory / f"{name}.gspmd.mlir").write_text(jax.jit(function).lower(*arguments).as_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
