from __future__ import annotations

from itertools import permutations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.lower.layouts import (
    default_order,
    layout_of,
    matching_order,
    operand_order,
    reshaped,
    result_orders,
    takes_order,
    transposed,
)
from hespas.program.attrs import DotAttrs

ATTENTION = DotAttrs(
    lhs_batching=(0, 2), rhs_batching=(0, 2), lhs_contracting=(3,), rhs_contracting=(3,)
)
HEADS = (1, 4096, 9, 128)


def addresses(shape: tuple[int, ...], order: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Return where each element lies, by its index."""
    steps = {order[at]: prod([shape[each] for each in order[at + 1 :]]) for at in range(len(order))}
    found: dict[tuple[int, ...], int] = {}
    for index in product(*map(range, shape)):
        found[index] = sum(steps.get(at, 0) * each for at, each in enumerate(index))
    return found


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("after", [(24,), (6, 4), (2, 12), (2, 3, 2, 2), (3, 8), (1, 24)])
def test_a_reshape_keeps_bytes_in_place(order: tuple[int, ...], after: tuple[int, ...]) -> None:
    before = (2, 3, 4)
    made = reshaped(order, before, after)
    if made is None:
        return
    lying = list(addresses(before, order).values())
    assert list(addresses(after, made).values()) == lying


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_a_transpose_keeps_bytes_in_place(order: list[int], permutation: list[int]) -> None:
    shape = (2, 3, 4, 5)
    after = tuple([shape[at] for at in permutation])
    made = transposed(tuple(order), tuple(permutation))
    before = addresses(shape, tuple(order))
    for index, address in addresses(after, made).items():
        place = [0] * 4
        for at, dimension in enumerate(permutation):
            place[dimension] = index[at]
        assert before[tuple(place)] == address


def test_a_batch_has_to_be_slowest() -> None:
    assert not takes_order(ATTENTION, 0, default_order(HEADS), HEADS)
    assert takes_order(ATTENTION, 0, operand_order(ATTENTION, 0, HEADS), HEADS)


def test_both_operands_contract_in_one_order() -> None:
    dot = DotAttrs(lhs_batching=(), rhs_batching=(), lhs_contracting=(1, 2), rhs_contracting=(0, 1))
    assert matching_order(dot, (0, 2, 1), (0, 1, 2), (8, 4, 16)) == (1, 0, 2)


def test_a_product_is_written_by_rows_or_by_columns() -> None:
    order = (2, 3, 1)
    assert result_orders(ATTENTION, order, order, (4, 4)) == [(1, 2, 3), (1, 3, 2)]


def test_layouts_name_the_fastest_dimension_first() -> None:
    assert layout_of((2, 3, 1), HEADS) == (1, 3, 2, 0)
