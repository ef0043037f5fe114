"""Libraries have no stacks of layers: what only cuts them or fills them moves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import Writer, fused
from hespas.memory.usage import memory_use
from hespas.models.model import parse_mesh
from hespas.prediction.options import (
    CompileChoice,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.passes import Footprint, PassCost
from hespas.prediction.staged import predict_pipeline
from hespas.sources.options import ModelOptions
from programs import main_function

STACK = "tensor<4x64x32xbf16>"
TURN = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %four = stablehlo.constant dense<4> : tensor<i32>
    %made:3 = stablehlo.while(%i = %zero, %w = %weights, %kept = %stack)
      : tensor<i32>, {STACK}, {STACK}
    cond {{
      %more = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %cut = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 64, 32]
        : ({STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x32xbf16>
      %own = stablehlo.reshape %cut : (tensor<1x64x32xbf16>) -> tensor<64x32xbf16>
      %x = stablehlo.dot_general %own, %rows, contracting_dims = [1] x [0]
        : (tensor<64x32xbf16>, tensor<32x32xbf16>) -> tensor<64x32xbf16>
      %row = stablehlo.reshape %x : (tensor<64x32xbf16>) -> tensor<1x64x32xbf16>
      %put = stablehlo.dynamic_update_slice %kept, %row, %i, %zero, %zero
        : ({STACK}, tensor<1x64x32xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> {STACK}
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %w, %put : tensor<i32>, {STACK}, {STACK}
    }}
    return %made#2 : {STACK}"""


def test_libraries_move_no_layer_between_its_array_and_a_stack() -> None:
    arguments = f"%weights: {STACK}, %stack: {STACK}, %rows: tensor<32x32xbf16>"
    program = load_source(
        main_function(TURN, arguments=arguments, results=STACK).encode(), name="test.mlir"
    )
    kinds: dict[Writer, list[str]] = {}
    for writer in (Writer.GPU, Writer.LIBRARY):
        made = fused(program, writer=writer)
        (loop,) = [op for op in made.main.body.operations if op.kind == "while"]
        kinds[writer] = [op.kind for op in loop.regions[1].operations if not op.traits.runs_nothing]
        assert memory_use(made).peak_bytes > 0
    assert any("fusion" in kind or "slice" in kind for kind in kinds[Writer.GPU])
    assert [kind for kind in kinds[Writer.LIBRARY] if "dot" not in kind] == ["fusion"]


def part_cost(*, scan: bool, remat: str = "elementwise") -> tuple[PassCost, Footprint]:
    settings = {"layers": "6", "sequence_parallel": "true"}
    model = ModelOptions(
        mesh=parse_mesh("pipe=1,fsdp=2,tp=4"),
        software="megatron",
        remat=remat,
        scan=scan,
        global_batch=8,
        micro_batch=1,
        settings=settings,
    )
    options = PredictOptions(
        program=ProgramOptions(file=Path("llama3-8b"), model=model),
        network=NetworkOptions(cluster="8xH100_80GB"),
        compile=CompileChoice(fidelity=Fidelity.LIBRARY),
    )
    (cost,) = predict_pipeline(options).costs.values()
    return cost.passes, cost.footprint


@pytest.mark.parametrize("remat", ["elementwise", "whole"])
def test_layers_of_a_loop_cost_what_layers_written_out_do(remat: str) -> None:
    loop, written = (part_cost(scan=scan, remat=remat) for scan in (True, False))
    for of_loop, of_written in zip(
        (loop[0].forward, loop[0].backward), (written[0].forward, written[0].backward), strict=True
    ):
        assert of_loop.total_ps == pytest.approx(of_written.total_ps, rel=0.02)
    assert loop[1].kept_bytes <= 1.02 * written[1].kept_bytes


def test_a_value_is_kept_as_it_is() -> None:
    body = """%0 = stablehlo.reduce_precision %a, format = e8m7 : tensor<4x8xbf16>
    %1 = stablehlo.reduce_precision %b, format = e8m7 : tensor<4x8xf32>
    return %0, %1 : tensor<4x8xbf16>, tensor<4x8xf32>"""
    text = main_function(
        body,
        arguments="%a: tensor<4x8xbf16>, %b: tensor<4x8xf32>",
        results="tensor<4x8xbf16>, tensor<4x8xf32>",
    )
    program = load_source(text.encode(), name="test.mlir")
    kernels = fused(program, writer=Writer.LIBRARY).main.body.operations[:-1]
    assert [op.results[0].type for op in kernels] == [program.main.results[1].type]
