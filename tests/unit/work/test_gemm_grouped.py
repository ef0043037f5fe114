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
    assert (grouped.rows, grouped.groups) == (4 * 16, 4)


@pytest.mark.parametrize(
    ("group_rows", "rows"),
    [
        ((1, 1, 0, 0), 2 * 16),
        ((17, 17, 17, 17), 4 * 32),
        ((100, 60), 128 + 128),
        ((300, 300), 2 * 384),
    ],
)
def test_groups_of_few_rows_have_small_tiles(group_rows: tuple[int, ...], rows: int) -> None:
    (grouped,) = grouped_gemms(_op(product_alone(), group_rows))
    assert grouped.rows == rows


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


@pytest.mark.parametrize(("rows", "matrices"), [(1, 1), (2, 2), (4, 3), (16, 4)])
def test_few_rows_read_the_matrices_that_they_meet_in_the_mean(rows: int, matrices: int) -> None:
    """Of 4 matrices 2 rows meet 1.75, and 4 rows 2.73, where each chooses any alike."""
    few = product_alone().replace("64x8", f"{rows}x8").replace("64x16", f"{rows}x16")
    op = _op(few)
    work = total(expand(op))
    assert work.bytes_read == 2 * (rows * 8 + matrices * 8 * 16) + 4 * 4
    (grouped,) = grouped_gemms(op)
    assert (grouped.groups, sum(grouped.group_rows)) == (matrices, rows)
