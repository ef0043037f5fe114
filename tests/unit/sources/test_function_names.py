"""Name stacks survive export and both partitioners."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from hespas.frontend.load import load_source
from hespas.program.program import Program, is_communication_op, nested_ops
from hespas.program.scopes import merged_layers, read_scope
from hespas.sources.exported import Exported, partitioned
from hespas.sources.function import (
    export_function,
    export_lowered,
    export_model,
    export_serialized,
)

NO_WORK = frozenset({"constant", "return"})


def layer(a: jax.Array, b: jax.Array) -> jax.Array:
    with jax.named_scope("layer"):
        return jnp.tanh(a @ b)


MATRIX = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def sharded(function: object) -> Exported:
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = jax.ShapeDtypeStruct(
        (64, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x", None))
    )
    return export_function(function, rows, rows)


def program_of(text: bytes) -> Program:
    return load_source(text, name="test")


def scopes_of(program: Program) -> dict[str, str]:
    return {op.kind: op.scope for op in program.main.body.operations}


def test_an_exported_function_keeps_names_and_its_innermost_lines() -> None:
    program = program_of(export_function(layer, MATRIX, MATRIX).content)
    (dot,) = (op for op in program.main.body.operations if op.kind == "dot_general")
    assert dot.scope == "jit(layer)/layer/dot_general"
    file, line, _ = dot.source_location.rsplit(":", 2)
    assert Path(file) == Path(__file__)
    assert "a @ b" in Path(file).read_text().splitlines()[int(line) - 1]


def test_who_exports_leaves_no_trace() -> None:
    def called_from_elsewhere() -> bytes:
        return export_model("gemm").content

    first, second = called_from_elsewhere(), export_model("gemm").content
    assert first == second
    assert str(Path.cwd()).encode() not in first
    assert b'"hespas/models/steps/alone.py"' in first


def test_jax_is_left_as_it_was() -> None:
    names = ("jax_traceback_in_locations_limit", "jax_hlo_source_file_canonicalization_regex")
    before = [getattr(jax.config, name) for name in names]
    export_model("gemm")
    assert [getattr(jax.config, name) for name in names] == before


def test_lowered_and_serialized_functions_keep_names() -> None:
    lowered = export_lowered(jax.jit(layer).lower(MATRIX, MATRIX))
    assert scopes_of(program_of(lowered.content))["tanh"] == "jit(layer)/layer/tanh"
    # As jax.export writes it: a module as bytecode, its length in front.
    module: bytes = jax.export.export(jax.jit(layer))(MATRIX, MATRIX).mlir_module_serialized
    artifact = b"head" + len(module).to_bytes(4, "little") + module
    serialized = export_serialized(artifact, name="test")
    assert scopes_of(program_of(serialized.content))["tanh"] == "jit(layer)/layer/tanh"


def test_xla_partitions_with_names() -> None:
    program = program_of(partitioned(sharded(layer)).content)
    scopes = scopes_of(program)
    assert scopes["tanh"] == "jit(layer)/layer/tanh"
    assert scopes["dot"] == "jit(layer)/layer/dot_general"
    assert any(is_communication_op(op) and op.scope for op in program.main.body.operations)


def test_a_program_without_names_is_partitioned_without() -> None:
    text = b"\n".join(
        line.partition(b" loc(")[0]
        for line in jax.jit(layer).lower(MATRIX, MATRIX).as_text().encode().splitlines()
    )
    assert b"loc(" not in text
    assert not any(scopes_of(program_of(text)).values())


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "llama3-100m",
            {"layers": "2"},
            {
                "embedding",
                "layers/attention",
                "layers/mlp",
                "layers/norm",
                "logits",
                "loss",
                "metrics",
                "norm",
                "optimiser/adamw",
                "optimiser/clip",
            },
        ),
        (
            "llama3-100m",
            {"layers": "2", "scan": "true"},
            {"embedding", "layers/attention", "layers/mlp", "loss", "optimiser/adamw"},
        ),
        (
            "resnet50",
            {"stages": "1-1-1-1", "image": "32"},
            {"first/convolution", "stage1/block", "stage4/block", "dense", "loss", "optimiser"},
        ),
        ("moe-training", {}, {"router", "dispatch", "experts", "combine", "loss"}),
    ],
)
def test_models_of_the_zoo_say_what_they_consist_of(
    name: str, options: dict[str, str], expected: set[str]
) -> None:
    program = program_of(partitioned(export_model(name, options)).content)
    counts: dict[str, int] = defaultdict(int)
    unnamed = 0
    for function in program.functions.values():
        for op in nested_ops(function.body):
            if op.kind not in NO_WORK:
                path = merged_layers(read_scope(op.scope).path)
                counts["/".join(path[:2])] += 1
                unnamed += not op.scope
    assert expected <= set(counts)
    assert unnamed <= 0.02 * sum(counts.values())
