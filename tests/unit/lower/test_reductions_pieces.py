from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from hespas.frontend.load import load_source
from hespas.lower.assign import Assignment
from hespas.lower.reductions import first_reduced, runs_of
from hespas.program.attrs import DimensionsAttrs
from hespas.program.program import Op
from hespas.program.types import TensorType
from programs import main_function


def shape_of(op: Op, operand: int = 0) -> tuple[int, ...]:
    kind = op.operands[operand].type
    assert isinstance(kind, TensorType)
    return kind.shape


def test_groups_of_features_that_are_fastest_are_reduced_by_places_first() -> None:
    body = """%z = stablehlo.constant dense<0.0> : tensor<f32>
    %g = stablehlo.reshape %x : (tensor<4x64x64x128xf32>) -> tensor<4x64x64x32x4xf32>
    %r = stablehlo.reduce(%g init: %z) applies stablehlo.add across dimensions = [1, 2, 4]
      : (tensor<4x64x64x32x4xf32>, tensor<f32>) -> tensor<4x32xf32>
    return %r : tensor<4x32xf32>"""
    text = main_function(body, arguments="%x: tensor<4x64x64x128xf32>", results="tensor<4x32xf32>")
    program = load_source(text.encode(), name="test.mlir")
    operations = Assignment().block(program.main.body).operations
    reductions = [op for op in operations if op.kind == "reduce"]
    # As XLA compiles it: f32[4,32,4] of f32[4,4096,32,4], and f32[4,32] of that.
    assert [shape_of(op) for op in reductions] == [(4, 4096, 32, 4), (128, 4)]
    assert [op.attrs for op in reductions] == [
        DimensionsAttrs(dimensions=(1,)),
        DimensionsAttrs(dimensions=(1,)),
    ]
    assert operations[-2].results[0].type == program.main.body.operations[-2].results[0].type


def test_small_dimensions_are_a_loop() -> None:
    assert first_reduced(((64, False), (8, True), (32, False), (8, True))) == (1, 3)


def test_a_long_dimension_that_is_reduced_first_is_cut() -> None:
    body = """%z = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1, 3]
      : (tensor<2x65536x32x16xf32>, tensor<f32>) -> tensor<2x32xf32>
    return %r : tensor<2x32xf32>"""
    text = main_function(
        body, arguments="%x: tensor<2x65536x32x16xf32>", results="tensor<2x32xf32>"
    )
    program = load_source(text.encode(), name="test.mlir")
    operations = Assignment().block(program.main.body).operations
    reductions = [shape_of(op) for op in operations if op.kind == "reduce"]
    assert reductions == [(2, 256, 256, 32, 16), (2, 256, 32, 16), (64, 16)]


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_runs_hold_all_elements(order: list[int], dimensions: set[int]) -> None:
    shape = (2, 3, 5, 7)
    runs = runs_of(shape, tuple(order), tuple(dimensions))
    assert prod(size for size, _ in runs) == prod(shape)
    taken = [size for size, is_reduced in runs if is_reduced]
    assert prod(taken) == prod(shape[at] for at in dimensions)
    assert all(one[1] != other[1] for one, other in pairwise(runs))
