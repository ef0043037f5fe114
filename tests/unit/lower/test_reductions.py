from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.lower.reductions import cut_of
from hespas.price.kernel import NARROW_REDUCTION, kernel_of
from hespas.program.program import Program
from hespas.work.expand import Leaf, expand
from programs import main_function


def reduced(shape: str, dimensions: str, result: str) -> Program:
    text = main_function(
        f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %r = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions =
          [{dimensions}] : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{result}f32>
        return %r : tensor<{result}f32>""",
        arguments=f"%a: tensor<{shape}xf32>",
        results=f"tensor<{result}f32>",
    )
    return load_source(text.encode(), name="test.mlir")


def flops(program: Program) -> int:
    operations = [op for op in program.main.body.operations if not op.traits.runs_nothing]
    leaves = [leaf for leaf in expand(operations) if isinstance(leaf, Leaf)]
    return sum(count for leaf in leaves for _, count in leaf.work.flops)


@pytest.mark.parametrize(
    ("shape", "dimensions", "result", "kernels"),
    [
        ("576x2016", "0, 1", "", 2),
        ("64x1024", "1", "64x", 1),
        ("4096x128256", "1", "4096x", 2),
        ("100352x64", "0", "64x", 2),
        ("2048x576", "0", "576x", 1),
    ],
)
def test_long_reductions_are_two_kernels_that_add_as_often(
    shape: str, dimensions: str, result: str, kernels: int
) -> None:
    program = reduced(shape, dimensions, result)
    made = fused(program)
    names = [op for op in made.main.body.operations if op.kind == "fusion"]
    assert len(names) == kernels
    assert flops(made) == flops(program)
    assert made.main.results[0].type == program.main.results[0].type


def test_a_cut_divides_the_long_dimension() -> None:
    count = cut_of(((32, False), (32768, True)), (1,))
    assert count > 1
    assert 32768 % count == 0


# Compiled, it is one kernel, whose result has the columns of what it reads in another order.
def test_what_is_reshaped_is_reduced_as_it_lies() -> None:
    text = main_function(
        """%lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %t = stablehlo.transpose %a, dims = [0, 3, 2, 1]
          : (tensor<4x512x64x16xf32>) -> tensor<4x16x64x512xf32>
        %h = stablehlo.reshape %t : (tensor<4x16x64x512xf32>) -> tensor<2x32x64x512xf32>
        %r = stablehlo.reduce(%h init: %lowest) applies stablehlo.maximum across dimensions = [3]
          : (tensor<2x32x64x512xf32>, tensor<f32>) -> tensor<2x32x64xf32>
        return %r : tensor<2x32x64xf32>""",
        arguments="%a: tensor<4x512x64x16xf32>",
        results="tensor<2x32x64xf32>",
    )
    program = load_source(text.encode(), name="test.mlir")
    (kernel,) = [op for op in fused(program).main.body.operations if not op.traits.runs_nothing]
    assert kernel_of(kernel).category == NARROW_REDUCTION
    assert "copy" not in [op.kind for region in kernel.regions for op in region.operations]


def test_a_dimension_that_a_reshape_makes_is_reduced_after_it() -> None:
    text = main_function(
        """%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %t = stablehlo.transpose %a, dims = [1, 0] : (tensor<64x512xf32>) -> tensor<512x64xf32>
        %h = stablehlo.reshape %t : (tensor<512x64xf32>) -> tensor<512x8x8xf32>
        %r = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [2]
          : (tensor<512x8x8xf32>, tensor<f32>) -> tensor<512x8xf32>
        return %r : tensor<512x8xf32>""",
        arguments="%a: tensor<64x512xf32>",
        results="tensor<512x8xf32>",
    )
    program = load_source(text.encode(), name="test.mlir")
    made = fused(program)
    assert flops(made) == flops(program)
