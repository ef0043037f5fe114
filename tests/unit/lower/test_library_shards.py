"""FSDP2 copies weights and gradients; FSDP1 puts gradients together and divides them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import Writer, fused
from hespas.lower.library import ShardCopies
from hespas.models.model import parse_mesh
from hespas.prediction.loading import load
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.program.program import Op, Program
from hespas.sources.options import ModelOptions
from hespas.work.expand import expand, total
from programs import main_function, on_devices

GROUPS = "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"
BODY = f"""%w = "stablehlo.all_gather"(%a) {{all_gather_dim = 0 : i64,
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = {GROUPS}, use_global_device_ids}} : (tensor<2x6xbf16>) -> tensor<8x6xbf16>
    %g = "stablehlo.reduce_scatter"(%b) ({{
      ^bb0(%x: tensor<bf16>, %y: tensor<bf16>):
        %s = stablehlo.add %x, %y : tensor<bf16>
        stablehlo.return %s : tensor<bf16>
    }}) {{scatter_dimension = 0 : i64,
      channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>,
      replica_groups = {GROUPS}, use_global_device_ids}} : (tensor<8x6xbf16>) -> tensor<2x6xbf16>
    return %w, %g : tensor<8x6xbf16>, tensor<2x6xbf16>"""
ALL = frozenset({frozenset(range(4))})
WHOLE, SHARD = 8 * 6, 2 * 6


def made(groups: frozenset[frozenset[int]], version: Literal[1, 2] = 2) -> Program:
    text = main_function(
        BODY,
        arguments="%a: tensor<2x6xbf16>, %b: tensor<8x6xbf16>",
        results="tensor<8x6xbf16>, tensor<2x6xbf16>",
    )
    program = load_source(on_devices(text).encode(), name="test.mlir")
    copied = ShardCopies(groups=groups, version=version) if groups else None
    return fused(program, writer=Writer.LIBRARY, shard_copies=copied)


ALONG_ROWS = f"""%w = "stablehlo.all_gather"(%a) {{all_gather_dim = 1 : i64,
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = {GROUPS}, use_global_device_ids}} : (tensor<8x2xbf16>) -> tensor<8x8xbf16>
    %g = "stablehlo.reduce_scatter"(%b) ({{
      ^bb0(%x: tensor<bf16>, %y: tensor<bf16>):
        %s = stablehlo.add %x, %y : tensor<bf16>
        stablehlo.return %s : tensor<bf16>
    }}) {{scatter_dimension = 1 : i64,
      channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>,
      replica_groups = {GROUPS}, use_global_device_ids}} : (tensor<8x8xbf16>) -> tensor<8x2xbf16>
    return %w, %g : tensor<8x8xbf16>, tensor<8x2xbf16>"""


def mentions_fsdp(program: Program) -> bool:
    return any("FSDP" in assumption for assumption in program.assumptions)


def copies(program: Program) -> list[Op]:
    return [op for op in program.main.body.operations if op.kind == "fusion"]


def test_each_array_is_copied_once_and_gradients_are_summed_in_f32() -> None:
    program = made(ALL)
    moved = sorted(total(expand(op)).bytes_moved for op in copies(program))
    assert moved == sorted([(2 + 2) * WHOLE, (2 + 4) * WHOLE, (4 + 2) * SHARD])
    started = [op for op in program.main.body.operations if op.kind == "async_start"]
    assert sorted(str(op.operands[0].type) for op in started) == [
        "tensor<2x6xbf16>",
        "tensor<8x6xf32>",
    ]
    assert mentions_fsdp(program)


def test_fsdp_1_puts_gradients_together_and_divides_them() -> None:
    program = made(ALL, version=1)
    moved = [total(expand(op)).bytes_moved for op in copies(program)]
    assert moved == [(2 + 2) * WHOLE, (2 + 2) * WHOLE]
    started = [op for op in program.main.body.operations if op.kind == "async_start"]
    assert sorted(str(op.operands[0].type) for op in started) == [
        "tensor<2x6xbf16>",
        "tensor<8x6xbf16>",
    ]


def test_collectives_of_other_groups_have_none() -> None:
    assert not copies(made(frozenset({frozenset({0, 1}), frozenset({2, 3})})))
    assert not mentions_fsdp(made(frozenset()))


@pytest.mark.parametrize(("version", "copied"), [(2, 2), (1, 0)])
def test_dtensor_copies_what_lies_along_another_dimension(
    version: Literal[1, 2], copied: int
) -> None:
    text = main_function(
        ALONG_ROWS,
        arguments="%a: tensor<8x2xbf16>, %b: tensor<8x8xbf16>",
        results="tensor<8x8xbf16>, tensor<8x2xbf16>",
    )
    program = load_source(on_devices(text).encode(), name="test.mlir")
    of_others = ShardCopies(groups=frozenset(), version=version)
    program = fused(program, writer=Writer.LIBRARY, shard_copies=of_others)
    moved = [total(expand(op)).bytes_moved for op in copies(program)]
    assert moved == [(2 + 2) * 64] * copied


@pytest.mark.parametrize(
    ("software", "mesh", "is_copied"),
    [
        ("torchtitan-2024", "fsdp=4", True),
        ("torchtitan-2024", "tp=4", True),
        ("llm-foundry-2023", "fsdp=4", True),
        ("megatron", "fsdp=4", False),
    ],
)
def test_the_framework_and_the_mesh_decide(software: str, mesh: str, is_copied: bool) -> None:
    settings = {"layers": "1", "vocabulary": "512", "sequence": "256"}
    options = PredictOptions(
        program=ProgramOptions(
            file=Path("meta-llama/Llama-3.1-8B"),
            model=ModelOptions(mesh=parse_mesh(mesh), software=software, settings=settings),
        ),
        compile=CompileChoice(fidelity=Fidelity.LIBRARY),
        estimate=EstimateOptions(node="H100_80GB"),
        network=NetworkOptions(system="4xH100_80GB"),
    )
    assert mentions_fsdp(load(options)) is is_copied
