from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.program.work import ZERO, Work

WorkOf = Callable[[str], Work]

_PAIR = "(tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>"


@pytest.mark.parametrize("kind", ["add", "subtract", "multiply", "divide", "maximum", "remainder"])
def test_one_flop_for_each_element(kind: str, work_of: WorkOf) -> None:
    assert work_of(f'"stablehlo.{kind}"(%0, %1) : {_PAIR}') == Work(
        flops=(("f32", 3 * 5),), bytes_read=2 * 3 * 5 * 4, bytes_written=3 * 5 * 4
    )


@pytest.mark.parametrize("kind", ["floor", "ceil", "negate", "sign", "abs", "round_nearest_even"])
def test_one_flop_for_each_element_of_one_operand(kind: str, work_of: WorkOf) -> None:
    work = work_of(f'"stablehlo.{kind}"(%0) : (tensor<7xbf16>) -> tensor<7xbf16>')

    assert work == Work(flops=(("bf16", 7),), bytes_read=14, bytes_written=14)


@pytest.mark.parametrize("kind", ["shift_left", "shift_right_logical", "and", "xor"])
def test_integer_operations_count_under_their_type(kind: str, work_of: WorkOf) -> None:
    text = f'"stablehlo.{kind}"(%0, %1) : (tensor<7xui32>, tensor<7xui32>) -> tensor<7xui32>'

    assert work_of(text).flops == (("ui32", 7),)


@pytest.mark.parametrize(
    "kind", ["exponential", "tanh", "sqrt", "rsqrt", "log", "logistic", "cbrt"]
)
def test_transcendental_functions_are_no_flops(kind: str, work_of: WorkOf) -> None:
    work = work_of(f'"stablehlo.{kind}"(%0) : (tensor<7xf32>) -> tensor<7xf32>')

    assert work == Work(transcendentals=7, bytes_read=28, bytes_written=28)


def test_a_value_used_twice_is_read_once(work_of: WorkOf) -> None:
    work = work_of('"stablehlo.multiply"(%0, %0) : (tensor<7xf32>, tensor<7xf32>) -> tensor<7xf32>')

    assert work.bytes_read == 7 * 4


def test_a_boolean_is_a_byte(work_of: WorkOf) -> None:
    compare = work_of(
        '"stablehlo.compare"(%0, %1) '
        "{comparison_direction = #stablehlo<comparison_direction LT>} : "
        "(tensor<9xf32>, tensor<9xf32>) -> tensor<9xi1>"
    )
    select = work_of(
        '"stablehlo.select"(%0, %1, %2) : '
        "(tensor<9xi1>, tensor<9xbf16>, tensor<9xbf16>) -> tensor<9xbf16>"
    )

    assert compare == Work(flops=(("f32", 9),), bytes_read=2 * 36, bytes_written=9)
    assert select == Work(flops=(("bf16", 9),), bytes_read=9 + 2 * 18, bytes_written=18)


def test_converting_counts_under_the_type_converted_from(work_of: WorkOf) -> None:
    work = work_of('"stablehlo.convert"(%0) : (tensor<8xf32>) -> tensor<8xbf16>')

    assert work == Work(flops=(("f32", 8),), bytes_read=32, bytes_written=16)


def test_converting_to_the_same_type_is_nothing(work_of: WorkOf) -> None:
    assert work_of('"stablehlo.convert"(%0) : (tensor<8xf32>) -> tensor<8xf32>') == ZERO


@pytest.mark.parametrize(
    ("kind", "flops"), [("add", 2), ("subtract", 2), ("multiply", 6), ("divide", 11)]
)
def test_complex_arithmetic_counts_as_complex(kind: str, flops: int, work_of: WorkOf) -> None:
    tensor = "tensor<4xcomplex<f32>>"

    work = work_of(f'"stablehlo.{kind}"(%0, %1) : ({tensor}, {tensor}) -> {tensor}')

    assert work == Work(flops=(("f32", 4 * flops),), bytes_read=2 * 4 * 8, bytes_written=4 * 8)


def test_a_complex_modulus_is_a_root_of_two_squares(work_of: WorkOf) -> None:
    work = work_of('"stablehlo.abs"(%0) : (tensor<4xcomplex<f64>>) -> tensor<4xf64>')

    assert work == Work(flops=(("f64", 4 * 3),), transcendentals=4, bytes_read=64, bytes_written=32)
