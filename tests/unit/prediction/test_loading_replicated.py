"""Devices that repeat computation: known from the FLOPs of all of them together."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import hespas
from compilers import needs_gpu
from hespas.sources.function import export_function

DEVICES = 4
IN, OUT, MIDDLE = "tensor<1024x2048xbf16>", "tensor<8192x2048xbf16>", "tensor<1024x8192xbf16>"
WEIGHTS = "tensor<2048x8192xbf16>"
WHOLE, ROWS = "<@mesh, [{}, {}]>", '<@mesh, [{"data"}, {}]>'
FLOPS = 2 * 1024 * 2048 * 8192
"""Of each of two products."""


def _step(file: Path, *, is_divided: bool) -> Path:
    """Write two products, the first of rows that a constraint divides, or gathers."""
    at = ROWS if is_divided else WHOLE
    file.write_text(f"""
module attributes {{mhlo.num_partitions = {DEVICES} : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["data"={DEVICES}]>
  func.func public @main(%x: {IN} {{sdy.sharding = #sdy.sharding{ROWS}}},
                         %a: {WEIGHTS}, %b: {OUT}) -> {IN} {{
    %0 = sdy.sharding_constraint %x {at} : {IN}
    %1 = stablehlo.dot_general %0, %a, contracting_dims = [1] x [0]
      : ({IN}, {WEIGHTS}) -> {MIDDLE} loc("jit(step)/mlp/dot_general")
    %2 = sdy.sharding_constraint %1 {at} : {MIDDLE}
    %3 = stablehlo.tanh %2 : {MIDDLE}
    %4 = sdy.sharding_constraint %3 {ROWS} : {MIDDLE}
    %5 = stablehlo.dot_general %4, %b, contracting_dims = [1] x [0]
      : ({MIDDLE}, {OUT}) -> {IN} loc("jit(step)/out/dot_general")
    return %5 : {IN}
  }}
}}""")
    return file


FIDELITIES = ["exported", "fused", pytest.param("compiled", marks=needs_gpu)]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_products_that_every_device_computes_are_a_warning(fidelity: str, tmp_path: Path) -> None:
    """One of two equal products is computed by all of 4 devices: (4 + 1) / 2 of the FLOPs."""
    file = _step(tmp_path / "step.mlir", is_divided=False)
    step = hespas.predict(file, cluster=f"{DEVICES}xH100_80GB", fidelity=fidelity)
    (warning,) = [text for text in step.warnings if text.startswith("devices repeat")]
    assert f"{(DEVICES + 1) / 2:g} x those of the undivided program (mlp {DEVICES} x)" in warning
    assert f"{FLOPS * (DEVICES + 1) / 1e9:.1f} GFLOP" in warning
    again = hespas.predict(file, cluster=f"{DEVICES}xH100_80GB", fidelity=fidelity)
    assert again.warnings == step.warnings, "what was kept says the same"
    divided = _step(tmp_path / "divided.mlir", is_divided=True)
    step = hespas.predict(divided, cluster=f"{DEVICES}xH100_80GB", fidelity=fidelity)
    assert not any(text.startswith("devices repeat") for text in step.warnings)


@pytest.mark.parametrize("scan", [True, False])
def test_a_model_whose_devices_share_all_products_has_no_warning(*, scan: bool) -> None:
    settings = {"layers": "2"}
    step = hespas.predict(
        "llama3-100m", cluster="4xH100_80GB", mesh="fsdp=4", scan=scan, settings=settings,
        sequence=256, fidelity="fused",
    )  # fmt: skip
    assert not any(text.startswith("devices repeat") for text in step.warnings)


def _block(*, is_constrained: bool) -> bytes:
    """Return a block whose tokens every device has; a constraint divides their activations.

    The table is divided, so that what is looked up is gathered.
    """
    mesh = AbstractMesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))
    divided = NamedSharding(mesh, PartitionSpec("data"))

    def step(
        tokens: jax.Array, table: jax.Array, square: jax.Array, up: jax.Array, down: jax.Array
    ) -> jax.Array:
        x = table[tokens]
        if is_constrained:
            x = jax.lax.with_sharding_constraint(x, divided)
        with jax.named_scope("attention"):
            seen = x @ square
            scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", seen, seen))
            x = x + jnp.einsum("bqk,bkd->bqd", scores, seen) @ square
        with jax.named_scope("mlp"):
            return x + jax.nn.gelu(x @ up) @ down

    whole = NamedSharding(mesh, PartitionSpec())
    tokens = jax.ShapeDtypeStruct((16, 256), jnp.int32, sharding=whole)
    table = jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16, sharding=divided)
    square, up, down = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=whole)
        for shape in ((512, 512), (512, 2048), (2048, 512))
    )
    return export_function(step, tokens, table, square, up, down).content


@pytest.mark.parametrize("is_constrained", [True, False])
def test_a_block_without_its_constraint_is_a_warning_that_names_its_modules(
    *, is_constrained: bool, tmp_path: Path
) -> None:
    """Where a user forgets one line, all devices compute all of every product."""
    rows, width = 16 * 256, 512
    flops = 2 * rows * width * (2 * width + 2 * 256 + 2 * 4 * width)
    file = tmp_path / "block.mlir"
    file.write_bytes(_block(is_constrained=is_constrained))
    step = hespas.predict(file, cluster=f"{DEVICES}xH100_80GB", fidelity="fused")
    found = [text for text in step.warnings if text.startswith("devices repeat")]
    assert len(found) == (0 if is_constrained else 1)
    for text in found:
        assert f"{DEVICES * flops / 1e9:.2f} GFLOP together, {DEVICES} x those of the" in text
        assert f"mlp {DEVICES} x" in text
        assert f"attention {DEVICES} x" in text
