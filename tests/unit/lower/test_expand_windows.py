from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.expand import OPENED_WINDOWS
from hespas.program.program import Op
from hespas.work.expand import Leaf, expand
from programs import main_function
from rewriting import rewritten

IMAGE, POOLED = "tensor<8x16xf32>", "tensor<4x8xf32>"
GRADIENT = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = "stablehlo.select_and_scatter"(%x, %g, %zero) ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }}, {{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }}) {{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>}}
      : ({IMAGE}, {POOLED}, tensor<f32>) -> {IMAGE}
    return %r : {IMAGE}"""


def flops(operations: list[Op]) -> int:
    leaves = [leaf for leaf in expand(operations) if isinstance(leaf, Leaf)]
    return sum(count for leaf in leaves for _, count in leaf.work.flops)


def test_the_gradient_of_a_maximum_is_found_and_scattered_in_as_many_steps() -> None:
    text = main_function(GRADIENT, arguments=f"%x: {IMAGE}, %g: {POOLED}", results=IMAGE)
    operations = list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])
    opened = rewritten(operations, OPENED_WINDOWS)
    kinds = [op.kind for op in opened]
    assert [kinds.count(each) for each in ("reduce_window", "scatter", "reshape")] == [1, 1, 2]
    assert flops(opened) == flops(operations)
    assert opened[-1].results == operations[-1].results
