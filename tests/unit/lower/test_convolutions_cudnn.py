from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.frontend.load import load_source
from hespas.lower.assign import Assignment
from hespas.lower.convolutions import CUDNN_CALLS, WRITTEN_IMAGES, cudnn_orders
from hespas.program.attrs import (
    CONVOLUTION_BACKWARD_FILTER,
    CONVOLUTION_BACKWARD_INPUT,
    CONVOLUTION_FORWARD,
    CustomCallAttrs,
)
from hespas.program.program import Block, Op, Program
from programs import main_function
from rewriting import rewritten

IMAGE, KERNEL = "tensor<4x16x32x32xbf16>", "tensor<64x16x3x3xbf16>"
PLAIN = "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"


def program(body: str, *, arguments: str, results: str) -> Program:
    text = main_function(body, arguments=arguments, results=results)
    return load_source(text.encode(), name="test.mlir")


def called(text: Program) -> list[Op]:
    *operations, end = text.main.body.operations
    return rewritten(operations, WRITTEN_IMAGES, CUDNN_CALLS, results=end.operands)


def forward(element: str = "bf16") -> Program:
    """Return a convolution of 3 x 3 with features before places."""
    names = (IMAGE, KERNEL, "tensor<4x64x32x32xbf16>")
    image, kernel, made = [name.replace("bf16", element) for name in names]
    return program(
        f"""%r = stablehlo.convolution(%x, %k)
      dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{pad = [[1, 1], [1, 1]]}}
      {PLAIN} : ({image}, {kernel}) -> {made}
    return %r : {made}""",
        arguments=f"%x: {image}, %k: {kernel}",
        results=made,
    )


def of_image(stride: int) -> Program:
    """Return the gradient of the image of one, as JAX writes it."""
    size = 32 // stride
    padding = "[[1, 2], [1, 2]]" if stride == 2 else "[[1, 1], [1, 1]]"
    grad = f"tensor<4x64x{size}x{size}xbf16>"
    return program(
        f"""%b = stablehlo.reverse %k, dims = [2, 3] : {KERNEL}
    %r = stablehlo.convolution(%g, %b)
      dim_numbers = [b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1],
      window = {{pad = {padding}, lhs_dilate = [{stride}, {stride}]}}
      {PLAIN} : ({grad}, {KERNEL}) -> {IMAGE}
    return %r : {IMAGE}""",
        arguments=f"%g: {grad}, %k: {KERNEL}",
        results=IMAGE,
    )


def of_kernel(stride: int) -> Program:
    """Return the gradient of the kernel of one, as JAX writes it."""
    size = 32 // stride
    padding = "[[1, 0], [1, 0]]" if stride == 2 else "[[1, 1], [1, 1]]"
    grad = f"tensor<4x64x{size}x{size}xbf16>"
    return program(
        f"""%r = stablehlo.convolution(%x, %g)
      dim_numbers = [f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1],
      window = {{pad = {padding}, rhs_dilate = [{stride}, {stride}]}}
      {PLAIN} : ({IMAGE}, {grad}) -> {KERNEL}
    return %r : {KERNEL}""",
        arguments=f"%x: {IMAGE}, %g: {grad}",
        results=KERNEL,
    )


def call_of(operations: list[Op]) -> CustomCallAttrs:
    (call,) = [op.attrs for op in operations if isinstance(op.attrs, CustomCallAttrs)]
    return call


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("made", "target"),
    [(of_image, CONVOLUTION_BACKWARD_INPUT), (of_kernel, CONVOLUTION_BACKWARD_FILTER)],
)
def test_gradients_are_called_with_the_window_of_the_forward_convolution(
    made: Callable[[int], Program], target: str, stride: int
) -> None:
    operations = called(made(stride))
    assert [op.kind for op in operations] == ["custom_call"]
    call = call_of(operations)
    assert call.target == target
    attrs = call.convolution
    assert attrs is not None
    assert (attrs.input_batch, attrs.input_feature, attrs.input_spatial) == (0, 1, (2, 3))
    assert (attrs.kernel_output_feature, attrs.kernel_input_feature) == (0, 1)
    assert (attrs.output_batch, attrs.output_feature, attrs.output_spatial) == (0, 1, (2, 3))
    assert attrs.padding == ((1, 1), (1, 1))
    assert attrs.strides == (stride, stride)
    assert attrs.lhs_dilation == attrs.rhs_dilation == (1, 1)


def test_a_window_that_is_small_is_a_forward_convolution() -> None:
    assert call_of(called(forward())).target == CONVOLUTION_FORWARD


def test_a_reversal_of_one_place_is_none() -> None:
    kernel, made = "tensor<64x16x1x1xbf16>", "tensor<4x16x32x32xbf16>"
    text = program(
        f"""%b = stablehlo.reverse %k, dims = [2, 3] : {kernel}
    %r = stablehlo.convolution(%g, %b)
      dim_numbers = [b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1], window = {{}}
      {PLAIN} : (tensor<4x64x32x32xbf16>, {kernel}) -> {made}
    return %r : {made}""",
        arguments=f"%g: tensor<4x64x32x32xbf16>, %k: {kernel}",
        results=made,
    )
    operations = called(text)
    assert [op.kind for op in operations] == ["custom_call"]
    assert call_of(operations).target == CONVOLUTION_FORWARD


def test_an_image_that_changed_places_with_its_kernel_makes_no_kernel() -> None:
    grad = "tensor<4x64x64x64xbf16>"
    text = program(
        f"""%r = stablehlo.convolution(%x, %g)
      dim_numbers = [f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1],
      window = {{pad = [[2, 2], [2, 2]], lhs_dilate = [2, 2]}}
      {PLAIN} : ({IMAGE}, {grad}) -> tensor<64x16x4x4xbf16>
    return %r : tensor<64x16x4x4xbf16>""",
        arguments=f"%x: {IMAGE}, %g: {grad}",
        results="tensor<64x16x4x4xbf16>",
    )
    operations = called(text)
    assert [op.kind for op in operations] == ["reverse", "custom_call"]
    call = call_of(operations)
    assert call.target == CONVOLUTION_FORWARD
    assert call.convolution is not None
    # What XLA compiles for H100: window={size=32x32 pad=1_1x1_1 rhs_dilate=2x2}.
    assert call.convolution.padding == ((1, 1), (1, 1))
    assert call.convolution.rhs_dilation == (2, 2)


LAST, FIRST = (0, 2, 3, 1), (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("element", "capability", "order"),
    [
        ("bf16", 9.0, LAST),
        ("f32", 9.0, LAST),
        ("f32", 8.0, FIRST),
        ("bf16", 8.0, LAST),
        ("f64", 10.0, FIRST),
        ("bf16", None, LAST),
    ],
)
def test_features_are_the_fastest_where_tensor_cores_multiply(
    element: str, capability: float | None, order: tuple[int, ...]
) -> None:
    (op,) = called(forward(element))
    assert cudnn_orders(op, capability) == ((order, order), order)


def test_arguments_and_results_are_copied_and_values_between_are_not() -> None:
    made = "tensor<4x64x32x32xbf16>"
    second = "tensor<64x64x3x3xbf16>"
    text = program(
        f"""%r = stablehlo.convolution(%x, %k)
      dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{pad = [[1, 1], [1, 1]]}}
      {PLAIN} : ({IMAGE}, {KERNEL}) -> {made}
    %t = stablehlo.tanh %r : {made}
    %s = stablehlo.convolution(%t, %l)
      dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{pad = [[1, 1], [1, 1]]}}
      {PLAIN} : ({made}, {second}) -> {made}
    return %s : {made}""",
        arguments=f"%x: {IMAGE}, %k: {KERNEL}, %l: {second}",
        results=made,
    )
    end = text.main.body.operations[-1]
    block = Block(arguments=text.main.body.arguments, operations=(*called(text), end))
    assigned = Assignment(compute_capability=9.0).block(block)
    kinds = [op.kind for op in assigned.operations]
    # Two arguments, the second kernel, the result: what is between them stays as it lies.
    expected = ["copy", "copy", "custom_call", "tanh", "copy", "custom_call", "copy", "return"]
    assert kinds == expected
