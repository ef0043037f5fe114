from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.program.work import Work

WorkOf = Callable[[str], Work]


def _body(*kinds: str, element: str = "f32") -> str:
    lines = "".join(
        f"%{position + 10} = stablehlo.{kind} %a, %b : tensor<{element}>\n"
        for position, kind in enumerate(kinds)
    )
    last = f"stablehlo.return %{len(kinds) + 9} : tensor<{element}>"
    return f"({{ ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):\n {lines} {last} }})"


_COMPARE = """({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
})"""


def test_a_reduction_applies_its_body_inputs_less_outputs_times(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce"(%0, %1) {_body("add", element="bf16")} {{dimensions = array<i64: 1>}}'
        " : (tensor<3x5xbf16>, tensor<bf16>) -> tensor<3xbf16>"
    )

    assert work == Work(flops=(("bf16", 3 * 5 - 3),), bytes_read=2 * 15 + 2, bytes_written=2 * 3)


def test_a_reduction_of_nothing_writes_the_initial_value(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce"(%0, %1) {_body("add")} {{dimensions = array<i64: 1>}}'
        " : (tensor<3x0xf32>, tensor<f32>) -> tensor<3xf32>"
    )

    assert work == Work(bytes_read=4, bytes_written=4 * 3)


def test_a_body_of_several_operations_counts_them_all(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce"(%0, %1) {_body("add", "multiply", "power")} '
        "{dimensions = array<i64: 1>} : (tensor<3x5xf32>, tensor<f32>) -> tensor<3xf32>"
    )

    assert (work.total_flops, work.transcendentals) == (2 * (15 - 3), 15 - 3)


def test_a_window_applies_its_body_size_less_one_times_for_each_result(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce_window"(%0, %1) {_body("maximum")} '
        "{window_dimensions = array<i64: 3, 3>, window_strides = array<i64: 2, 2>} : "
        "(tensor<9x7xf32>, tensor<f32>) -> tensor<4x3xf32>"
    )

    assert work == Work(
        flops=(("f32", 4 * 3 * (3 * 3 - 1)),), bytes_read=4 * 63 + 4, bytes_written=4 * 12
    )


@pytest.mark.parametrize("padding", ["[0, 0], [6, 0]", "[0, 0], [0, 6]"])
def test_a_cumulative_window_is_a_scan(padding: str, work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce_window"(%0, %1) {_body("add")} '
        "{window_dimensions = array<i64: 1, 7>, "
        f"padding = dense<[{padding}]> : tensor<2x2xi64>}} : "
        "(tensor<9x7xf32>, tensor<f32>) -> tensor<9x7xf32>"
    )

    assert work == Work(
        flops=(("f32", 9 * 2 * (7 - 1)),), bytes_read=4 * 63 + 4, bytes_written=4 * 63
    )


def test_a_window_that_is_padded_on_both_sides_is_no_scan(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.reduce_window"(%0, %1) {_body("add")} '
        "{window_dimensions = array<i64: 7>, padding = dense<[[3, 3]]> : tensor<1x2xi64>} : "
        "(tensor<7xf32>, tensor<f32>) -> tensor<7xf32>"
    )

    assert work.total_flops == 7 * (7 - 1)


def _windowed(size: str, padding: str, shapes: tuple[str, str], more: str = "") -> str:
    operand, result = shapes
    return (
        f'"stablehlo.reduce_window"(%0, %1) {_body("add")} '
        f"{{window_dimensions = array<i64: {size}>, padding = dense<{padding}> : "
        f"tensor<{size.count(',') + 1}x2xi64>{more}}} : "
        f"(tensor<{operand}xf32>, tensor<f32>) -> tensor<{result}xf32>"
    )


@pytest.mark.parametrize("padding", ["[0, 0], [7, 0]", "[0, 0], [0, 7]"])
def test_a_cumulative_window_may_leave_out_its_own_place(padding: str, work_of: WorkOf) -> None:
    work = work_of(_windowed("1, 7", f"[{padding}]", ("9x7", "9x8")))

    assert work.total_flops == 9 * 2 * (7 - 1)


@pytest.mark.parametrize(
    ("size", "padding", "shapes"),
    [
        ("1, 13", "[[0, 0], [6, 6]]", ("9x7", "9x7")),
        ("1, 15", "[[0, 0], [6, 8]]", ("9x7", "9x7")),
        ("1, 7", "[[0, 0], [0, 0]]", ("9x7", "9x1")),
        ("1, 9", "[[0, 0], [2, 2]]", ("9x7", "9x3")),
        ("13, 1", "[[6, 6], [0, 0]]", ("7x9", "7x9")),
    ],
)
def test_windows_that_cover_everything_are_one_reduction(
    size: str, padding: str, shapes: tuple[str, str], work_of: WorkOf
) -> None:
    work = work_of(_windowed(size, padding, shapes))

    reduced = work_of(
        f'"stablehlo.reduce"(%0, %1) {_body("add")} {{dimensions = array<i64: 1>}}'
        " : (tensor<9x7xf32>, tensor<f32>) -> tensor<9xf32>"
    )
    assert work.flops == reduced.flops


def test_windows_that_cover_two_axes_reduce_both(work_of: WorkOf) -> None:
    work = work_of(_windowed("9, 13", "[[4, 4], [6, 6]]", ("5x7", "5x7")))

    assert work.total_flops == 5 * 7 - 1


def test_a_scan_of_what_is_reduced_first(work_of: WorkOf) -> None:
    work = work_of(_windowed("9, 7", "[[4, 4], [6, 0]]", ("5x7", "5x7")))

    assert work.total_flops == 7 * (5 - 1) + 2 * (7 - 1)


def test_windows_that_reach_neither_end_are_counted_each(work_of: WorkOf) -> None:
    dilated = work_of(_windowed("7", "[[6, 6]]", ("7", "7"), ", window_dilations = array<i64: 2>"))
    narrow = work_of(_windowed("3", "[[1, 1]]", ("7", "7")))

    assert dilated.total_flops == 7 * (7 - 1)
    assert narrow.total_flops == 7 * (3 - 1)


def test_select_and_scatter_selects_in_each_window_and_scatters_once(work_of: WorkOf) -> None:
    scatter = _body("add")[1:-1]
    work = work_of(
        f'"stablehlo.select_and_scatter"(%0, %1, %2) {_COMPARE[:-1]}, {scatter}) '
        "{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>} : "
        "(tensor<4x6xf32>, tensor<2x3xf32>, tensor<f32>) -> tensor<4x6xf32>"
    )

    assert work == Work(
        flops=(("f32", 6 * ((2 * 2 - 1) + 1)),),
        bytes_read=4 * (24 + 6 + 1),
        bytes_written=4 * 24,
    )


def test_map_applies_its_body_to_each_element(work_of: WorkOf) -> None:
    work = work_of(
        f'"stablehlo.map"(%0, %1) {_body("add", "atan2")} {{dimensions = array<i64: 0>}} : '
        "(tensor<7xf32>, tensor<7xf32>) -> tensor<7xf32>"
    )

    assert work == Work(flops=(("f32", 7),), transcendentals=7, bytes_read=2 * 28, bytes_written=28)
