from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.program.work import ZERO, Work

WorkOf = Callable[[str], Work]


@pytest.mark.parametrize(
    "text",
    [
        '"stablehlo.reshape"(%0) : (tensor<3x4xf32>) -> tensor<12xf32>',
        '"mhlo.bitcast"(%0) : (tensor<3x4xf32>) -> tensor<12xf32>',
        '"stablehlo.optimization_barrier"(%0) : (tensor<3xf32>) -> tensor<3xf32>',
        '"stablehlo.tuple"(%0) : (tensor<3xf32>) -> tuple<tensor<3xf32>>',
        (
            '"stablehlo.get_tuple_element"(%0) {index = 0 : i32} : '
            "(tuple<tensor<3xf32>>) -> tensor<3xf32>"
        ),
        '"stablehlo.constant"() {value = dense<1.0> : tensor<3xf32>} : () -> tensor<3xf32>',
        '"stablehlo.after_all"() : () -> !stablehlo.token',
    ],
)
def test_what_moves_nothing_is_free(text: str, work_of: WorkOf) -> None:
    assert work_of(text) == ZERO


@pytest.mark.parametrize(
    "text",
    [
        (
            '"stablehlo.transpose"(%0) {permutation = array<i64: 1, 0>} : '
            "(tensor<3x4xf32>) -> tensor<4x3xf32>"
        ),
        (
            '"stablehlo.reverse"(%0) {dimensions = array<i64: 1>} : '
            "(tensor<3x4xf32>) -> tensor<3x4xf32>"
        ),
        '"mhlo.copy"(%0) : (tensor<3x4xf32>) -> tensor<3x4xf32>',
    ],
)
def test_moving_reads_and_writes_once(text: str, work_of: WorkOf) -> None:
    assert work_of(text) == Work(bytes_read=48, bytes_written=48)


def test_a_broadcast_reads_its_operand_once(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.broadcast_in_dim"(%0) {broadcast_dimensions = array<i64: 1>} : '
        "(tensor<4xf32>) -> tensor<100x4xf32>"
    )

    assert work == Work(bytes_read=16, bytes_written=1600)


def test_iota_only_writes(work_of: WorkOf) -> None:
    work = work_of('"stablehlo.iota"() {iota_dimension = 0 : i64} : () -> tensor<9xi32>')

    assert work == Work(bytes_written=36)


def test_a_slice_reads_the_slice(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.slice"(%0) {start_indices = array<i64: 10>, '
        "limit_indices = array<i64: 40>, strides = array<i64: 3>} : "
        "(tensor<100xf32>) -> tensor<10xf32>"
    )

    assert work == Work(bytes_read=40, bytes_written=40)


def test_a_dynamic_slice_reads_the_slice_and_its_indices(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.dynamic_slice"(%0, %1, %2) {slice_sizes = array<i64: 5, 8>} : '
        "(tensor<100x8xbf16>, tensor<i32>, tensor<i32>) -> tensor<5x8xbf16>"
    )

    assert work == Work(bytes_read=2 * 40 + 2 * 4, bytes_written=2 * 40)


def test_a_dynamic_update_slice_touches_only_the_update(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.dynamic_update_slice"(%0, %1, %2, %3) : '
        "(tensor<100x8xbf16>, tensor<5x8xbf16>, tensor<i32>, tensor<i32>) -> tensor<100x8xbf16>"
    )

    assert work == Work(bytes_read=2 * 40 + 2 * 4, bytes_written=2 * 40)


def test_a_gather_reads_rows_and_indices_not_the_table(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.gather"(%0, %1) {dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
        "slice_sizes = array<i64: 1, 8>} : "
        "(tensor<128256x8xbf16>, tensor<5x1xi32>) -> tensor<5x8xbf16>"
    )

    assert work == Work(bytes_read=2 * 5 * 8 + 4 * 5, bytes_written=2 * 5 * 8)


def test_a_concatenation_reads_its_parts(work_of: WorkOf) -> None:
    work = work_of(
        '"stablehlo.concatenate"(%0, %1) {dimension = 0 : i64} : '
        "(tensor<3xf32>, tensor<5xf32>) -> tensor<8xf32>"
    )

    assert work == Work(bytes_read=12 + 20, bytes_written=32)


@pytest.mark.parametrize(("low", "size", "read"), [(2, 12, 10), (-4, 6, 6)])
def test_negative_padding_reads_what_is_left(
    low: int, size: int, read: int, work_of: WorkOf
) -> None:
    work = work_of(
        f'"stablehlo.pad"(%0, %1) {{edge_padding_low = array<i64: {low}>, '
        "edge_padding_high = array<i64: 0>, interior_padding = array<i64: 0>} : "
        f"(tensor<10xf32>, tensor<f32>) -> tensor<{size}xf32>"
    )

    assert work == Work(bytes_read=4 * read + 4, bytes_written=4 * size)


_BODY = """({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %RESULT : tensor<f32>
})"""
_NUMBERS = (
    "{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
    "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : "
    "(tensor<100x8xf32>, tensor<5x1xi32>, tensor<5x8xf32>) -> tensor<100x8xf32>"
)


def test_a_scatter_reads_updates_indices_and_what_it_adds_to(work_of: WorkOf) -> None:
    body = _BODY.replace("RESULT", "s")

    work = work_of(f'"stablehlo.scatter"(%0, %1, %2) {body} {_NUMBERS}')

    assert work == Work(
        flops=(("f32", 5 * 8),), bytes_read=4 * 40 + 4 * 5 + 4 * 40, bytes_written=4 * 40
    )


def test_a_scatter_that_replaces_does_not_read_what_it_replaces(work_of: WorkOf) -> None:
    body = _BODY.replace("RESULT", "b").replace("%s = stablehlo.add %a, %b : tensor<f32>\n", "")

    work = work_of(f'"stablehlo.scatter"(%0, %1, %2) {body} {_NUMBERS}')

    assert work == Work(bytes_read=4 * 40 + 4 * 5, bytes_written=4 * 40)
