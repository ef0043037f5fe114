from __future__ import annotations

import pytest

from hespas.cost.expand import expand
from hespas.cost.structure import Leaf
from hespas.frontend.load import load_source
from hespas.fuse.fused import fused
from hespas.fuse.reductions import cut_of
from hespas.program.program import Program
from hespas.split.scheduled import FREE
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
    operations = [op for op in program.main.body.operations if op.kind not in FREE]
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
    cut = cut_of((32, 32768), (0, 1), (1,))
    assert cut is not None
    assert cut.sizes[cut.at] % cut.runs == 0
