from __future__ import annotations

import pytest
from msgspec.structs import replace

from expert_programs import gradient_alone, product_alone
from hespas.frontend.load import load_source
from hespas.program.attrs import DotAttrs
from hespas.program.program import Op
from hespas.work.expand import expand, total
from hespas.work.gemm import GroupedGemm, gemms, grouped_gemms


def _op(text: str, rows: tuple[int, ...] = ()) -> Op:
    op = load_source(text.encode(), name="p.mlir").main.body.operations[0]
    assert isinstance(op.attrs, DotAttrs)
    return replace(op, attrs=replace(op.attrs, group_rows=rows))


@pytest.mark.parametrize("text", [product_alone(), gradient_alone()])
def test_a_row_meets_the_one_matrix_of_its_group(text: str) -> None:
    op = _op(text)
    assert total(expand(op)).flops == (("bf16", 2 * 64 * 8 * 16),)
    assert gemms(op) == ()
    (grouped,) = grouped_gemms(op)
    assert grouped == GroupedGemm(
        batch=1,
        group_rows=(16, 16, 16, 16),
        n=16,
        k=8,
        is_divided=text == gradient_alone(),
        multiplied="bf16",
        flops_per_product=2,
        operand_bits=(16, 16),
    )
    assert (grouped.rows, grouped.groups) == (4 * 128, 4)


def test_rows_of_no_group_are_neither_multiplied_nor_moved() -> None:
    work = total(expand(_op(product_alone(), (24, 8, 0, 0))))
    assert work.total_flops == 2 * 32 * 8 * 16
    # Half of the rows, the matrices of two groups, and the sizes of all.
    assert work.bytes_read == 2 * (32 * 8 + 2 * 8 * 16) + 4 * 4
    assert work.bytes_written == 2 * 32 * 16


def test_a_gradient_is_written_for_groups_without_rows_too() -> None:
    work = total(expand(_op(gradient_alone(), (24, 8, 0, 0))))
    assert work.total_flops == 2 * 32 * 8 * 16
    assert work.bytes_read == 2 * 32 * (8 + 16) + 4 * 4
    assert work.bytes_written == 2 * 4 * 8 * 16


def test_fewer_rows_than_groups_read_as_many_matrices() -> None:
    few = product_alone().replace("64x8", "2x8").replace("64x16", "2x16")
    work = total(expand(_op(few)))
    assert work.bytes_read == 2 * (2 * 8 + 2 * 8 * 16) + 4 * 4
