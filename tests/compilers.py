"""Marks of tests that need a compiler, which are skipped without it; a job and its result."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import pytest

from hespas.compile.job import CompiledProgram, Job
from hespas.compile.targets import TpuTarget
from hespas.program.kernels import CompiledKernels, KernelLaunch
from hespas.xla.compile.messages import CompileRequest, MemoryAnalysis, TpuSlice

_REQUIRED = os.environ.get("HESPAS_COMPILERS") == "required"


def _needs(module: str, extra: str) -> pytest.MarkDecorator:
    missing = not _REQUIRED and find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"needs hespas[{extra}]")


needs_gpu = _needs("jax_plugins", "gpu")
needs_tpu = _needs("libtpu", "tpu")

JOB = Job(
    source=b"module {}",
    name="a.mlir",
    target=TpuTarget(name="TPUv5e", generation="v5e"),
    request=CompileRequest(
        name="a.mlir", accelerator=TpuSlice(generation="v5e", topology=None), devices=4
    ),
    flags={"xla_a": "1", "xla_b": "2"},
    versions={"jaxlib": "1", "libtpu": "2"},
)
LAUNCH = KernelLaunch(
    instruction="add.1", kernel="add_1", grid=(2, 1, 1), block=(128, 1, 1), shared_memory_bytes=0
)
RESULT = CompiledProgram(
    name="a.mlir",
    target="TPUv5e",
    topology="v5e:2x2",
    replicas=1,
    partitions=4,
    hlo_proto=import_module("jaxlib._hlo")
    .hlo_module_from_text("HloModule a\nENTRY main { ROOT x = f32[] parameter(0) }")
    .as_serialized_hlo_module_proto(),
    hlo_text="HloModule a",
    kernels=CompiledKernels(launches=(LAUNCH,), ptx={"add_1": ".visible .entry"}),
    memory=MemoryAnalysis(
        argument_bytes=1, output_bytes=2, alias_bytes=1, temporary_bytes=3, generated_code_bytes=4
    ),
    flags={"xla_a": "1", "xla_b": "2"},
    versions={"jaxlib": "1"},
    notes=("a note",),
    log="said",
)
