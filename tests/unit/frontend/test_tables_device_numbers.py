"""Integers that a device's own number decides, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hespas.frontend.load import load_source
from hespas.frontend.tables import (
    DeviceNumbers,
    computed,
    kinds_of_device,
    on_all,
    on_each,
)
from hespas.program.program import Op, Program, all_ops


def program(kind: str, element: str = "i32") -> Program:
    t = f"tensor<3x{element}>"
    text = f"""func.func @main(%a: {t}, %b: {t}) -> {t} {{
      %r = stablehlo.{kind} %a, %b : {t}
      return %r : {t}
    }}"""
    return load_source(text.encode(), name="test")


def only(kind: str, of: Program) -> Op:
    (op,) = [candidate for candidate in all_ops(of) if candidate.kind == kind]
    return op


@pytest.mark.parametrize("start", [(0, 0, 0), (0, 4, 0), (0, 2, 1), (0, 7, 9), (0, -3, 0)])
def test_a_slice_is_cut_as_stablehlo_says(start: tuple[int, int, int]) -> None:
    text = """func.func @main(%t: tensor<1x8x4xi16>, %i: tensor<i32>) -> tensor<1x3x2xi16> {
      %r = stablehlo.dynamic_slice %t, %i, %i, %i, sizes = [1, 3, 2]
        : (tensor<1x8x4xi16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x2xi16>
      return %r : tensor<1x3x2xi16>
    }"""
    op = only("dynamic_slice", load_source(text.encode(), name="test"))
    array = np.arange(32).reshape(1, 8, 4)
    i, j = np.clip(start[1], 0, 5), np.clip(start[2], 0, 2)
    operands = [on_all(tuple(array.reshape(-1).tolist())), *[on_all((index,)) for index in start]]
    expected = tuple(array[:, i : i + 3, j : j + 2].reshape(-1).tolist())
    assert computed(op, operands) == on_all(expected)


def test_sums_differ_where_an_operand_does() -> None:
    mine = on_each([(1, 2, 3), (1, 2, 3), (4, 5, 6)])
    added = computed(only("add", program("add")), [mine, on_all((10, 20, 30))])
    assert added == DeviceNumbers(rows=((11, 22, 33), (14, 25, 36)), row_of=(0, 0, 1))
    assert kinds_of_device([mine]) == {(0,): 2, (1,): 1}


@pytest.mark.parametrize("bounds", ["tensor<i32>", "tensor<3xi32>"])
def test_numbers_are_kept_between_bounds(bounds: str) -> None:
    text = f"""func.func @main(%a: tensor<3xi32>, %b: {bounds}) -> tensor<3xi32> {{
      %r = stablehlo.clamp %b, %a, %b : ({bounds}, tensor<3xi32>, {bounds}) -> tensor<3xi32>
      return %r : tensor<3xi32>
    }}"""
    op = only("clamp", load_source(text.encode(), name="test"))
    count = 1 if bounds == "tensor<i32>" else 3
    mine = on_each([(-5, 3, 9), (2, 2, 2)])
    operands = [on_all((0,) * count), mine, on_all((7,) * count)]
    assert computed(op, operands) == on_each([(0, 3, 7), (2, 2, 2)])


@pytest.mark.parametrize(
    ("kind", "element", "left"),
    [("subtract", "ui32", 0), ("multiply", "i8", 127), ("xor", "i32", 1)],
)
def test_what_wraps_around_or_has_no_rule_is_not_known(kind: str, element: str, left: int) -> None:
    op = only(kind, program(kind, element))
    assert computed(op, [on_all((left,) * 3), on_all((2,) * 3)]) is None
