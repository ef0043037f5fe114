from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.work.mosaic.scalars import Scalar, computed, number, opaque, same, unchanged

INTEGERS = st.integers(-1000, 1000)


def value(name: str, left: int, right: int) -> int:
    result = computed(f"arith.{name}", {}, [number(left, 1), number(right, 1)])
    assert result is not None
    return int(result.numbers[0])


@given(left=INTEGERS, right=INTEGERS.filter(bool))
def test_division_rounds_as_its_name_says(left: int, right: int) -> None:
    assert value("divsi", left, right) == int(left / right)
    assert value("remsi", left, right) == left - right * int(left / right)
    assert value("floordivsi", left, right) == left // right
    assert value("ceildivsi", left, right) == -(-left // right)


@pytest.mark.parametrize(
    ("predicate", "holds"), [(0, False), (1, True), (2, True), (3, True), (4, False), (5, False)]
)
def test_comparisons_have_the_numbers_of_mlir(predicate: int, *, holds: bool) -> None:
    attributes = {"predicate": f"{predicate} : i64"}
    result = computed("arith.cmpi", attributes, [number(-2, 1), number(3, 1)])
    assert result is not None
    assert bool(result.numbers[0]) is holds


def test_marks_are_equal_where_their_arguments_are() -> None:
    steps = Scalar(np.arange(4, dtype=np.int64) // 2)
    marks = opaque(7, 1, [steps]).numbers
    assert marks[0] == marks[1] != marks[2]
    assert not same(opaque(7, 1, [steps]), opaque(8, 1, [steps]))


def test_what_changes_nothing_is_seen_through() -> None:
    length = opaque(7, 1)
    halved = unchanged("arith.divsi", [length, number(2, 1)])
    assert halved is None
    for name, neutral in (("divsi", 1), ("muli", 1), ("addi", 0), ("subi", 0)):
        assert unchanged(f"arith.{name}", [length, number(neutral, 1)]) is length
    assert unchanged("arith.subi", [number(0, 1), length]) is None
