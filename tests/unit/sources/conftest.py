"""What JAX and XLA write for others to read, made once in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import struct
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
rows = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P("x", None)))
def step(a, b): return jnp.tanh(a @ b).sum()
def other(a): return a + 1
lowered = jax.jit(step).lower(rows, rows)
flags = {"xla_dump_to": "whole", "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True,
         "xla_dump_hlo_pass_re": "spmd-partitioning"}
lowered.compile(compiler_options=flags)
lowered.compile(compiler_options=flags | {"xla_dump_to": "before", "xla_dump_hlo_pass_re": ""})
for function, arguments in ((step, (rows, rows)), (other, (rows,))):
    jax.jit(function).lower(*arguments).compile(
        compiler_options={"xla_dump_to": "several", "xla_dump_hlo_as_text": True})
exported = jax.export.export(jax.jit(step))(rows, rows).mlir_module_serialized
open("step.jax_export", "wb").write(b"head" + struct.pack("<I", len(exported)) + exported + b"tail")
"""


@pytest.fixture(scope="session")
def jax_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with dumps of XLA (whole, before, several) and a jax.export artifact."""
    home = tmp_path_factory.mktemp("jax")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    subprocess.run([sys.executable, "-c", _PROGRAM], cwd=home, env=environment, check=True)
    return home
