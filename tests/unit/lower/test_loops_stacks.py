"""Libraries have no stacks of layers: what only cuts them or fills them moves nothing."""

from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.fused import Writer, fused
from hespas.memory.usage import memory_use
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
