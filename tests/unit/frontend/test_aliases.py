from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.program.program import Alias

MAIN = """func.func @main(%a: tensor<4xf32>{0}, %b: tensor<4xf32>{1}, %c: tensor<2xi32>{2})
    -> (tensor<2xi32>, tensor<4xf32>, tensor<4xf32>) {{
  return %c, %a, %b : tensor<2xi32>, tensor<4xf32>, tensor<4xf32>
}}"""
DONOR = " {jax.buffer_donor = true}"


def aliases(*attributes: str, module: str = "") -> list[tuple[int, int]]:
    text = f"module attributes {{{module}}} {{ {MAIN.format(*attributes)} }}"
    found = load_source(text.encode(), name="here").aliases
    assert all(isinstance(alias, Alias) for alias in found)
    return [(alias.result, alias.argument) for alias in found]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (("", "", ""), []),
        ((" {tf.aliasing_output = 2 : i32}", "", ""), [(2, 0)]),
        (("", "", DONOR), [(0, 2)]),
        ((DONOR, DONOR, ""), [(1, 0), (2, 1)]),
        ((" {tf.aliasing_output = 1 : i32}", DONOR, DONOR), [(0, 2), (1, 0), (2, 1)]),
    ],
)
def test_what_jax_says_of_the_arguments(
    attributes: tuple[str, ...], expected: list[tuple[int, int]]
) -> None:
    assert aliases(*attributes) == expected


def test_a_donor_that_fits_no_result_is_an_argument_like_any() -> None:
    text = """func.func @main(%a: tensor<4xf32> {jax.buffer_donor = true}) -> tensor<4xi1> {
      %0 = stablehlo.is_finite %a : (tensor<4xf32>) -> tensor<4xi1>
      return %0 : tensor<4xi1>
    }"""
    assert load_source(text.encode(), name="here").aliases == ()


def test_what_xla_lists_on_the_module() -> None:
    entry = '{{alias = {{kind = "may_alias", parameter_index = array<i64>, \
parameter_number = {0} : i64}}, output_index = array<i64: {1}>}}'
    listed = ", ".join([entry.format(1, 2), entry.format(2, 0)])
    assert aliases("", "", "", module=f"mhlo.input_output_alias = [{listed}]") == [(0, 2), (2, 1)]
