from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.program.program import Op
from hespas.program.work import Work
from hespas.work.expand import expand, total
from hlo_programs import entry_ops

WorkOf = Callable[[str], Work]


_COMPARE = """({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
})"""


@pytest.mark.parametrize(("dimension", "comparisons"), [(0, 3), (1, 4)])
def test_a_sort_compares_n_log_n_times_in_each_row(
    dimension: int, comparisons: int, work_of: WorkOf
) -> None:
    work = work_of(
        f'"stablehlo.sort"(%0) {_COMPARE} {{dimension = {dimension} : i64}} : '
        "(tensor<8x16xf32>) -> tensor<8x16xf32>"
    )

    assert work == Work(flops=(("f32", 8 * 16 * comparisons),), bytes_read=512, bytes_written=512)


def _work(op: Op) -> Work:
    return total(expand(op))


def test_a_radix_sort_passes_once_for_each_byte() -> None:
    op, *_ = entry_ops(
        """
        k = u32[1024] parameter(0)
        v = s32[1024] parameter(1)
        s = (u32[1024], s32[1024], u8[4096]) custom-call(k, v),
          custom_call_target="__cub$DeviceRadixSort"
        ROOT r = u32[1024] get-tuple-element(s), index=0
        """
    )
    work = _work(op)
    assert work.total_flops == 1024 * 10
    assert (work.bytes_read, work.bytes_written) == (4096 + 4 * 8192, 4 * 8192)


def test_rows_are_sorted_a_few_bits_at_a_time_with_a_histogram_for_each() -> None:
    op, *_ = entry_ops(
        """
        k = u32[64,1024] parameter(0)
        v = f32[64,1024] parameter(1)
        s = (u32[64,1024], f32[64,1024], u8[4096]) custom-call(k, v),
          custom_call_target="xla.gpu.ext.cub_sort_pairs"
        ROOT r = f32[64,1024] get-tuple-element(s), index=1
        """
    )
    work, size = _work(op), 64 * 1024 * 4
    assert work.total_flops == 64 * 1024 * 10
    assert (work.bytes_read, work.bytes_written) == (6 * 3 * size, 6 * 2 * size)
