from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.program.work import Work

WorkOf = Callable[[str], Work]


def _fusion(arguments: dict[str, str], body: str, result: str) -> str:
    names = ", ".join(f"%{number}" for number in range(len(arguments)))
    block = ", ".join(f"%{name}: {kind}" for name, kind in arguments.items())
    kinds = ", ".join(arguments.values())
    return (
        f'"mhlo.fusion"({names}) ({{ ^bb0({block}):\n{body}\n}}) '
        f"{{fusion_kind = #mhlo<fusion_kind kLoop>}} : ({kinds}) -> {result}"
    )


_VECTOR = "tensor<100xf32>"


def test_values_in_between_never_reach_memory(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"x": _VECTOR, "y": _VECTOR},
            f"""%a = stablehlo.add %x, %y : {_VECTOR}
                %b = stablehlo.exponential %a : {_VECTOR}
                %c = stablehlo.multiply %b, %x : {_VECTOR}
                mhlo.return %c : {_VECTOR}""",
            _VECTOR,
        )
    )

    assert work == Work(
        flops=(("f32", 200),), transcendentals=100, bytes_read=2 * 400, bytes_written=400
    )


def test_an_operand_that_is_only_sliced_is_read_by_its_slice(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"x": "tensor<1000x8xf32>", "at": "tensor<i32>"},
            """%h = stablehlo.negate %x : tensor<1000x8xf32>
               %s = "stablehlo.dynamic_slice"(%h, %at, %at) {slice_sizes = array<i64: 5, 8>}
                 : (tensor<1000x8xf32>, tensor<i32>, tensor<i32>) -> tensor<5x8xf32>
               mhlo.return %s : tensor<5x8xf32>""",
            "tensor<5x8xf32>",
        )
    )

    assert (work.bytes_read, work.bytes_written) == (4 * 40 + 4, 4 * 40)


def test_two_slices_of_an_operand_are_both_read(work_of: WorkOf) -> None:
    slices = "\n".join(
        f'%{name} = "stablehlo.slice"(%x) {{start_indices = array<i64: {start}>, '
        f"limit_indices = array<i64: {start + 10}>, strides = array<i64: 1>}} : "
        f"({_VECTOR}) -> tensor<10xf32>"
        for name, start in (("s", 0), ("t", 50))
    )
    end = "%a = stablehlo.add %s, %t : tensor<10xf32>\n mhlo.return %a : tensor<10xf32>"

    work = work_of(_fusion({"x": _VECTOR}, f"{slices}\n{end}", "tensor<10xf32>"))

    assert work.bytes_read == 4 * 20


def test_an_operand_that_is_also_used_whole_is_read_whole(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"x": _VECTOR, "zero": "tensor<f32>"},
            f"""%s = "stablehlo.slice"(%x) {{start_indices = array<i64: 0>,
                 limit_indices = array<i64: 1>, strides = array<i64: 1>}}
                 : ({_VECTOR}) -> tensor<1xf32>
                %b = "stablehlo.broadcast_in_dim"(%s) {{broadcast_dimensions = array<i64: 0>}}
                 : (tensor<1xf32>) -> {_VECTOR}
                %a = stablehlo.add %x, %b : {_VECTOR}
                mhlo.return %a : {_VECTOR}""",
            _VECTOR,
        )
    )

    assert work.bytes_read == 400


def test_an_unused_operand_is_not_read(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"x": _VECTOR, "y": _VECTOR},
            f"%a = stablehlo.negate %x : {_VECTOR}\n mhlo.return %a : {_VECTOR}",
            _VECTOR,
        )
    )

    assert work.bytes_read == 400


def test_an_update_in_place_writes_only_the_update(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"cache": "tensor<1000x8xf32>", "new": "tensor<2x8xf32>", "at": "tensor<i32>"},
            """%n = stablehlo.negate %new : tensor<2x8xf32>
               %u = "stablehlo.dynamic_update_slice"(%cache, %n, %at, %at)
                 : (tensor<1000x8xf32>, tensor<2x8xf32>, tensor<i32>, tensor<i32>)
                 -> tensor<1000x8xf32>
               mhlo.return %u : tensor<1000x8xf32>""",
            "tensor<1000x8xf32>",
        )
    )

    assert (work.bytes_read, work.bytes_written) == (4 * 16 + 4, 4 * 16)


def test_a_gather_in_a_fusion_reads_its_rows(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"table": "tensor<128256x8xbf16>", "rows": "tensor<5x1xi32>"},
            """%g = "stablehlo.gather"(%table, %rows) {dimension_numbers =
                 #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
                 start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}
                 : (tensor<128256x8xbf16>, tensor<5x1xi32>) -> tensor<5x8xbf16>
               %c = stablehlo.convert %g : (tensor<5x8xbf16>) -> tensor<5x8xf32>
               mhlo.return %c : tensor<5x8xf32>""",
            "tensor<5x8xf32>",
        )
    )

    assert (work.bytes_read, work.bytes_written) == (2 * 40 + 4 * 5, 4 * 40)


def test_nested_fusions_are_one_kernel(work_of: WorkOf) -> None:
    work = work_of(
        _fusion(
            {"x": "tensor<1000xf32>"},
            """%i = "mhlo.fusion"(%x) ({ ^bb0(%y: tensor<1000xf32>):
                 %n = stablehlo.negate %y : tensor<1000xf32>
                 %s = "stablehlo.slice"(%n) {start_indices = array<i64: 0>,
                   limit_indices = array<i64: 10>, strides = array<i64: 1>}
                   : (tensor<1000xf32>) -> tensor<10xf32>
                 mhlo.return %s : tensor<10xf32>
               }) {fusion_kind = #mhlo<fusion_kind kLoop>} : (tensor<1000xf32>) -> tensor<10xf32>
               %a = stablehlo.exponential %i : tensor<10xf32>
               mhlo.return %a : tensor<10xf32>""",
            "tensor<10xf32>",
        )
    )

    assert work == Work(flops=(("f32", 1000),), transcendentals=10, bytes_read=40, bytes_written=40)


_SCATTERED = (
    "indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<"
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1>, unique_indices = false"
)


@pytest.mark.parametrize(("combined", "read"), [("%s", 8 * 20 * 4), ("%b", 0)])
def test_a_scatter_in_place_touches_the_rows_that_it_changes(
    work_of: WorkOf, combined: str, read: int
) -> None:
    table, rows, places = "tensor<100x20xf32>", "tensor<8x20xf32>", "tensor<8x1xi32>"
    work = work_of(
        _fusion(
            {"t": table, "i": places, "u": rows},
            f"""%r = "stablehlo.scatter"(%t, %i, %u) ({{
                ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                  %s = stablehlo.add %a, %b : tensor<f32>
                  stablehlo.return {combined} : tensor<f32>
                }}) {{{_SCATTERED}}} : ({table}, {places}, {rows}) -> {table}
                mhlo.return %r : {table}""",
            table,
        )
    )

    assert work.bytes_read == 8 * 4 + 8 * 20 * 4 + read
    assert work.bytes_written == 8 * 20 * 4
