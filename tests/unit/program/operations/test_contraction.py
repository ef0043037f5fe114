from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.errors import CostError
from hespas.program.operations.contraction import WindowAxis, real_pairs
from hespas.program.work import Work

WorkOf = Callable[[str], Work]

_MATMUL = "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]"


def _dot(types: str, numbers: str = _MATMUL, more: str = "") -> str:
    attributes = f"{{dot_dimension_numbers = #stablehlo.dot<{numbers}>{more}}}"
    return f'"stablehlo.dot_general"(%0, %1) {attributes} : {types}'


def _matmul(left: str, right: str, result: str) -> str:
    return f"(tensor<3x5x{left}>, tensor<5x7x{right}>) -> tensor<3x7x{result}>"


@pytest.mark.parametrize(
    ("left", "right", "result", "key"),
    [
        ("bf16", "bf16", "bf16", "bf16"),
        ("bf16", "bf16", "f32", "bf16"),
        ("f16", "f16", "f32", "f16"),
        ("i8", "i8", "i32", "i8"),
        ("f8E4M3FN", "f8E5M2", "f32", "f8E4M3FN"),
        ("bf16", "f32", "f32", "tf32"),
        ("f64", "f64", "f64", "f64"),
    ],
)
def test_flops_count_under_what_is_multiplied(
    left: str, right: str, result: str, key: str, work_of: WorkOf
) -> None:
    work = work_of(_dot(_matmul(left, right, result)))

    assert work.flops == ((key, 2 * 3 * 5 * 7),)


def test_a_dot_reads_its_operands_once_and_writes_its_result(work_of: WorkOf) -> None:
    work = work_of(_dot(_matmul("bf16", "bf16", "f32")))

    assert (work.bytes_read, work.bytes_written) == (2 * (3 * 5 + 5 * 7), 4 * 3 * 7)


def test_dot_costs_what_dot_general_costs(work_of: WorkOf) -> None:
    types = _matmul("f32", "f32", "f32")

    assert work_of(f'"stablehlo.dot"(%0, %1) : {types}') == work_of(_dot(types))


@pytest.mark.parametrize(
    ("precision", "key"), [("DEFAULT", "tf32"), ("HIGH", "f32_high"), ("HIGHEST", "f32_highest")]
)
def test_products_of_f32_have_a_type_for_each_precision(
    precision: str, key: str, work_of: WorkOf
) -> None:
    one = f"#stablehlo<precision {precision}>"

    work = work_of(_dot(_matmul("f32", "f32", "f32"), more=f", precision_config = [{one}, {one}]"))

    assert work.flops == ((key, 2 * 3 * 5 * 7),)


def test_an_algorithm_decides_type_and_passes(work_of: WorkOf) -> None:
    algorithm = (
        ", algorithm = #stablehlo.dot_algorithm<lhs_precision_type = bf16, "
        "rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, "
        "rhs_component_count = 1, num_primitive_operations = 3, "
        "allow_imprecise_accumulation = false>"
    )

    work = work_of(_dot(_matmul("f32", "f32", "f32"), more=algorithm))

    assert work.flops == (("bf16", 3 * 2 * 3 * 5 * 7),)


def test_complex_products_count_eight_real_flops(work_of: WorkOf) -> None:
    element = "complex<f32>"

    work = work_of(_dot(_matmul(element, element, element)))

    assert work.flops == (("f32", 8 * 3 * 5 * 7),)


def test_batches_and_several_contracted_dimensions(work_of: WorkOf) -> None:
    numbers = (
        "lhs_batching_dimensions = [0], rhs_batching_dimensions = [2], "
        "lhs_contracting_dimensions = [1, 3], rhs_contracting_dimensions = [0, 1]"
    )
    types = "(tensor<2x3x4x5xbf16>, tensor<3x5x2x6xbf16>) -> tensor<2x4x6xbf16>"

    assert work_of(_dot(types, numbers)).total_flops == 2 * 2 * 4 * 6 * (3 * 5)


def test_an_einsum_counts_every_combination_of_indices(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.einsum"(%0, %1) {einsum_config = "bij,bjk->bik"} : '
        "(tensor<2x3x5xbf16>, tensor<2x5x7xbf16>) -> tensor<2x3x7xbf16>"
    )

    assert work.flops == (("bf16", 2 * 2 * 3 * 5 * 7),)


def test_a_unary_einsum_adds_up_what_it_drops(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.unary_einsum"(%0) {einsum_config = "ij->i"} : '
        "(tensor<3x5xf32>) -> tensor<3xf32>"
    )

    assert work.flops == (("f32", 3 * 5 - 3),)


def _convolution(numbers: str, window: str, types: str, groups: str = "") -> str:
    return (
        f'"stablehlo.convolution"(%0, %1) {{dimension_numbers = #stablehlo.conv<{numbers}>, '
        f"{window} batch_group_count = {1 if 'batch' not in groups else 2} : i64, "
        f"feature_group_count = {3 if 'feature' in groups else 1} : i64}} : {types}"
    )


# A 3 x 3 window over 8 x 6 without padding: 6 x 4 places, each with all of its 9 products.
_FLOPS = 2 * 2 * 5 * 4 * (6 * 3) * (4 * 3)


@pytest.mark.parametrize(
    ("numbers", "types"),
    [
        (
            "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
            "(tensor<2x8x6x5xbf16>, tensor<3x3x5x4xbf16>) -> tensor<2x6x4x4xbf16>",
        ),
        (
            "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]",
            "(tensor<2x5x8x6xbf16>, tensor<4x5x3x3xbf16>) -> tensor<2x4x6x4xbf16>",
        ),
        (
            "[f, 1, b, 0]x[1, o, 0, i]->[1, 0, f, b]",
            "(tensor<5x6x2x8xbf16>, tensor<3x4x3x5xbf16>) -> tensor<4x6x4x2xbf16>",
        ),
    ],
)
def test_the_layout_changes_nothing(numbers: str, types: str, work_of: WorkOf) -> None:
    work = work_of(_convolution(numbers, "", types))

    assert work == Work(
        flops=(("bf16", _FLOPS),),
        bytes_read=2 * (2 * 8 * 6 * 5 + 3 * 3 * 5 * 4),
        bytes_written=2 * (2 * 6 * 4 * 4),
    )


def test_a_convolution_may_have_one_or_three_dimensions(work_of: WorkOf) -> None:
    one = _convolution(
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "",
        "(tensor<2x9x5xbf16>, tensor<3x5x4xbf16>) -> tensor<2x7x4xbf16>",
    )
    three = _convolution(
        "[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]",
        "",
        "(tensor<2x9x8x7x5xbf16>, tensor<3x2x1x5x4xbf16>) -> tensor<2x7x7x7x4xbf16>",
    )

    assert work_of(one).total_flops == 2 * 2 * 5 * 4 * (7 * 3)
    assert work_of(three).total_flops == 2 * 2 * 5 * 4 * (7 * 3) * (7 * 2) * (7 * 1)


def test_padding_is_not_multiplied(work_of: WorkOf) -> None:
    text = _convolution(
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "padding = dense<[[1, 1]]> : tensor<1x2xi64>,",
        "(tensor<2x9x5xbf16>, tensor<3x5x4xbf16>) -> tensor<2x9x4xbf16>",
    )

    # 9 places of 3 products, of which one falls on the padding at each end.
    assert work_of(text).total_flops == 2 * 2 * 5 * 4 * (9 * 3 - 2)


def test_feature_groups_divide_the_work(work_of: WorkOf) -> None:
    text = _convolution(
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "",
        "(tensor<2x9x6xbf16>, tensor<3x2x12xbf16>) -> tensor<2x7x12xbf16>",
        groups="feature",
    )

    assert work_of(text).total_flops == 2 * 2 * (6 // 3) * 12 * (7 * 3)


def test_batch_groups_divide_the_work(work_of: WorkOf) -> None:
    text = _convolution(
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "",
        "(tensor<6x9x5xbf16>, tensor<3x5x4xbf16>) -> tensor<3x7x4xbf16>",
        groups="batch",
    )

    assert work_of(text).total_flops == 2 * (6 // 2) * 5 * 4 * (7 * 3)


def test_holes_of_a_dilated_input_are_not_multiplied(work_of: WorkOf) -> None:
    text = _convolution(
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "lhs_dilation = array<i64: 2>,",
        "(tensor<1x5x1xbf16>, tensor<3x1x1xbf16>) -> tensor<1x7x1xbf16>",
    )

    # x . x . x . x . x: windows of three hold two elements or one, in turn, beginning with two.
    assert work_of(text).total_flops == 2 * (2 + 1 + 2 + 1 + 2 + 1 + 2)


def test_a_dilated_kernel_reaches_further_and_multiplies_the_same(work_of: WorkOf) -> None:
    text = _convolution(
        "[b, 0, f]x[0, i, o]->[b, 0, f]",
        "rhs_dilation = array<i64: 2>,",
        "(tensor<1x9x1xbf16>, tensor<3x1x1xbf16>) -> tensor<1x5x1xbf16>",
    )

    assert work_of(text).total_flops == 2 * (5 * 3)


def test_a_million_positions_are_counted_in_a_second() -> None:
    size = 1_000_000
    axis = WindowAxis(
        input_size=size,
        kernel_size=size,
        output_size=size,
        stride=1,
        padding_low=size // 2,
        input_dilation=1,
        kernel_dilation=1,
    )

    # One by one, the pairs of a million by a million would take days.
    pairs = real_pairs(axis)
    # Of the N^2 pairs, those with o + k below N / 2 or from 3 N / 2 up fall outside.
    half = size // 2
    assert pairs == size**2 - half * (half + 1) // 2 - half * (half - 1) // 2


def test_positions_that_take_for_ever_to_count_are_refused() -> None:
    axis = WindowAxis(
        input_size=2**31,
        kernel_size=2**23,
        output_size=2**50,
        stride=1,
        padding_low=0,
        input_dilation=1,
        kernel_dilation=1,
    )

    with pytest.raises(CostError, match=r"has 8388608 positions, too many to count"):
        real_pairs(axis)
