"""What the stages read of each family of operations."""

from __future__ import annotations

import pytest

from hespas.program.attrs import (
    Attrs,
    BitcastAttrs,
    CompareAttrs,
    ConvolutionAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    EinsumAttrs,
    FftAttrs,
    GatherAttrs,
    NoAttrs,
    SliceAttrs,
    WindowAttrs,
)
from programs import ADD_BODY, main_function, only, read


def attrs_of(line: str, kind: str, *, arguments: str, result: str) -> Attrs:
    text = main_function(f"{line}\nreturn %r : {result}", arguments=arguments, results=result)
    return only(read(text), kind).attrs


A23 = "%a: tensor<2x3xf32>"


@pytest.mark.parametrize(
    ("line", "arguments", "result", "expected"),
    [
        (
            (
                "%r = stablehlo.dot_general %a, %b, batching_dims = [0] x [1], "
                "contracting_dims = [2] x [0], precision = [HIGHEST, DEFAULT] : "
                "(tensor<5x2x3xf32>, tensor<3x5x4xf32>) -> tensor<5x2x4xf32>"
            ),
            "%a: tensor<5x2x3xf32>, %b: tensor<3x5x4xf32>",
            "tensor<5x2x4xf32>",
            DotAttrs(
                lhs_batching=(0,),
                rhs_batching=(1,),
                lhs_contracting=(2,),
                rhs_contracting=(0,),
                precision=("HIGHEST", "DEFAULT"),
            ),
        ),
        (
            (
                '%r = "stablehlo.dot_general"(%a, %b) <{dot_dimension_numbers = #stablehlo.dot<'
                "lhs_contracting_dimensions = [1, 2], rhs_contracting_dimensions = [0, 1]>}> : "
                "(tensor<2x3x4xbf16>, tensor<3x4x5xbf16>) -> tensor<2x5xf32>"
            ),
            "%a: tensor<2x3x4xbf16>, %b: tensor<3x4x5xbf16>",
            "tensor<2x5xf32>",
            DotAttrs(
                lhs_batching=(), rhs_batching=(), lhs_contracting=(1, 2), rhs_contracting=(0, 1)
            ),
        ),
        (
            "%r = stablehlo.dot %a, %b : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>",
            "%a: tensor<2x3xf32>, %b: tensor<3x4xf32>",
            "tensor<2x4xf32>",
            DotAttrs(lhs_batching=(), rhs_batching=(), lhs_contracting=(1,), rhs_contracting=(0,)),
        ),
        (
            "%r = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>",
            A23,
            "tensor<3x2xf32>",
            DimensionsAttrs(dimensions=(1, 0)),
        ),
        (
            (
                "%r = stablehlo.broadcast_in_dim %a, dims = [0, 2] : "
                "(tensor<2x3xf32>) -> tensor<2x7x3xf32>"
            ),
            A23,
            "tensor<2x7x3xf32>",
            DimensionsAttrs(dimensions=(0, 2)),
        ),
        (
            "%r = stablehlo.slice %a [0:2:1, 1:3:2] : (tensor<2x3xf32>) -> tensor<2x1xf32>",
            A23,
            "tensor<2x1xf32>",
            SliceAttrs(start=(0, 1), limit=(2, 3), strides=(1, 2)),
        ),
        (
            (
                "%r = stablehlo.dynamic_slice %a, %i, %i, sizes = [1, 2] : "
                "(tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>"
            ),
            f"{A23}, %i: tensor<i32>",
            "tensor<1x2xf32>",
            GatherAttrs(slice_sizes=(1, 2)),
        ),
        (
            (
                "%r = stablehlo.compare GE, %a, %a, FLOAT : "
                "(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>"
            ),
            A23,
            "tensor<2x3xi1>",
            CompareAttrs(direction="GE"),
        ),
        (
            (
                "%r = stablehlo.concatenate %a, %a, dim = 1 : "
                "(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>"
            ),
            A23,
            "tensor<2x6xf32>",
            DimensionAttrs(dimension=1),
        ),
        (
            (
                "%r = stablehlo.fft %a, type = RFFT, length = [2, 3] : "
                "(tensor<2x3xf32>) -> tensor<2x2xcomplex<f32>>"
            ),
            A23,
            "tensor<2x2xcomplex<f32>>",
            FftAttrs(kind="RFFT", lengths=(2, 3)),
        ),
        (
            (
                '%r = "stablehlo.einsum"(%a, %b) <{einsum_config = "ij,jk->ik"}> : '
                "(tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>"
            ),
            "%a: tensor<2x3xf32>, %b: tensor<3x4xf32>",
            "tensor<2x4xf32>",
            EinsumAttrs(equation="ij,jk->ik"),
        ),
        (
            (
                f'%r = "stablehlo.reduce_window"(%a, %i) <{{window_dimensions = array<i64: 1, 2>, '
                f"padding = dense<[[0, 0], [1, 0]]> : tensor<2x2xi64>}}> {ADD_BODY} : "
                "(tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>"
            ),
            f"{A23}, %i: tensor<f32>",
            "tensor<2x3xf32>",
            WindowAttrs(
                size=(1, 2),
                strides=(1, 1),
                base_dilation=(1, 1),
                window_dilation=(1, 1),
                padding=((0, 0), (1, 0)),
            ),
        ),
        (
            (
                "%r = mhlo.bitcast %a {result_layout = dense<[0, 1]> : tensor<2xindex>, "
                "source_layout = dense<[1, 0]> : tensor<2xindex>} : "
                "(tensor<2x3xf32>) -> tensor<3x2xf32>"
            ),
            A23,
            "tensor<3x2xf32>",
            BitcastAttrs(source_layout=(1, 0), result_layout=(0, 1)),
        ),
        (
            '%r = "mhlo.bitcast"(%a) : (tensor<2x3xf32>) -> tensor<6xf32>',
            A23,
            "tensor<6xf32>",
            BitcastAttrs(source_layout=None, result_layout=None),
        ),
        (
            "%r = mhlo.copy %a : tensor<2x3xf32>",
            A23,
            "tensor<2x3xf32>",
            NoAttrs(),
        ),
    ],
)
def test_readings(line: str, arguments: str, result: str, expected: Attrs) -> None:
    kind = line.partition("stablehlo." if "stablehlo." in line.split("=")[1] else "mhlo.")[2]
    name = kind.split("(")[0].split(" ")[0].strip('"')
    assert attrs_of(line, name, arguments=arguments, result=result) == expected


def test_a_convolution_with_every_attribute() -> None:
    convolution = attrs_of(
        "%r = stablehlo.convolution(%a, %k) dim_numbers = [b, 1, f, 0]x[i, 0, 1, o]->[f, 0, 1, b],"
        " window = {stride = [2, 1], pad = [[0, 1], [-1, 2]], lhs_dilate = [1, 2], "
        "rhs_dilate = [2, 1]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64, "
        "precision_config = [#stablehlo<precision HIGH>, #stablehlo<precision DEFAULT>]} : "
        "(tensor<2x9x6x8xf32>, tensor<3x3x2x4xf32>) -> tensor<4x3x17x2xf32>",
        "convolution",
        arguments="%a: tensor<2x9x6x8xf32>, %k: tensor<3x3x2x4xf32>",
        result="tensor<4x3x17x2xf32>",
    )
    assert convolution == ConvolutionAttrs(
        input_batch=0,
        input_feature=2,
        input_spatial=(3, 1),
        kernel_input_feature=0,
        kernel_output_feature=3,
        kernel_spatial=(1, 2),
        output_batch=3,
        output_feature=0,
        output_spatial=(1, 2),
        strides=(2, 1),
        padding=((0, 1), (-1, 2)),
        lhs_dilation=(1, 2),
        rhs_dilation=(2, 1),
        feature_group_count=2,
        batch_group_count=1,
        precision=("HIGH", "DEFAULT"),
    )
