"""Compile programs for this machine; keep what XLA says of their memory, and their HLO.

Usage: compile_programs.py DIRECTORY
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def train_step(weights: Any, momentum: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.sum(jnp.tanh(batch @ weights) @ weights.T)

    gradient = jax.grad(loss)(weights)
    momentum = 0.9 * momentum + gradient
    return weights - momentum, momentum, jnp.sum(gradient)


def scanned_step(layers: Any, momentum: Any, batch: Any) -> Any:
    def loss(layers: Any) -> Any:
        def layer(hidden: Any, weights: Any) -> Any:
            return jnp.tanh(hidden @ weights), None

        return jnp.mean(jax.lax.scan(layer, batch, layers)[0] ** 2)

    value, gradient = jax.value_and_grad(loss)(layers)
    momentum = 0.9 * momentum + gradient
    return layers - 0.1 * momentum, momentum, value


def rematerialised_gradient(layers: Any, batch: Any) -> Any:
    def loss(layers: Any) -> Any:
        @jax.checkpoint
        def layer(hidden: Any, weights: Any) -> Any:
            return jnp.tanh(jnp.tanh(hidden @ weights) @ weights.T), None

        return jnp.mean(jax.lax.scan(layer, batch, layers)[0] ** 2)

    return jax.grad(loss)(layers)


def branch(chosen: Any, matrix: Any) -> Any:
    return jax.lax.cond(
        chosen,
        lambda given: (given @ given.T) @ given,
        lambda given: jnp.sort(given, axis=0) * 2,
        matrix,
    )


def gather_and_scatter(table: Any, places: Any) -> Any:
    return jnp.cumsum(table[places] * 2, axis=0).at[places[:10]].add(1.0)


def convolution_step(kernel: Any, images: Any) -> Any:
    def loss(kernel: Any) -> Any:
        made = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jax.nn.relu(made) ** 2)

    return kernel - jax.grad(loss)(kernel)


def sharded_step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.sum(jnp.tanh(batch @ weights) ** 2)

    return weights - jax.grad(loss)(weights)


def shape(*sizes: int, of: str = "float32", along: str | None = None) -> jax.ShapeDtypeStruct:
    if along is None:
        return jax.ShapeDtypeStruct(sizes, of)
    mesh = jax.make_mesh((4,), ("devices",), axis_types=(AxisType.Auto,))
    return jax.ShapeDtypeStruct(sizes, of, sharding=NamedSharding(mesh, PartitionSpec(along)))


LAYERS = shape(6, 256, 256)
SHARDED = (shape(512, 512, along="devices"), shape(256, 512, along="devices"))
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...]]] = {
    "train_step": (train_step, (shape(512, 512), shape(512, 512), shape(64, 512)), (0, 1)),
    "train_step_kept": (train_step, (shape(512, 512), shape(512, 512), shape(64, 512)), ()),
    "scanned_step": (scanned_step, (LAYERS, LAYERS, shape(512, 256)), (0, 1)),
    "rematerialised_gradient": (rematerialised_gradient, (LAYERS, shape(1024, 256)), ()),
    "branch": (branch, (shape(of="bool"), shape(256, 256)), ()),
    "gather_and_scatter": (gather_and_scatter, (shape(1000, 64), shape(4000, of="int32")), ()),
    "convolution_step": (convolution_step, (shape(3, 3, 32, 32), shape(4, 28, 28, 32)), (0,)),
    "sharded_step": (sharded_step, SHARDED, (0,)),
    "sharded_step_kept": (sharded_step, SHARDED, ()),
}


def main() -> None:
    directory = Path(sys.argv[1])
    shown: dict[str, dict[str, int]] = {}
    for name, (function, arguments, donated) in PROGRAMS.items():
        compiled = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
        executable, said = compiled.runtime_executable(), compiled.memory_analysis()
        assert executable is not None
        assert said is not None
        module = executable.hlo_modules()[0]
        (directory / f"{name}.hlo.pb").write_bytes(module.as_serialized_hlo_module_proto())
        shown[name] = {
            "arguments": said.argument_size_in_bytes,
            "outputs": said.output_size_in_bytes,
            "aliases": said.alias_size_in_bytes,
            "temporaries": said.temp_size_in_bytes,
        }
    (directory / "memory.json").write_text(json.dumps(shown))


main()
