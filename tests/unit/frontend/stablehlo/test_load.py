"""Operations that hold or name others, and the forms that a file may spell them in."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.program.attrs import (
    CallAttrs,
    CustomCallAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    FusionAttrs,
)
from hespas.program.program import Alias, Value
from hespas.program.types import TensorType
from programs import ADD_BODY, main_function, only, ops_of, read, text_of

A23 = "%a: tensor<2x3xf32>"


def test_custom_calls_that_return_tuples() -> None:
    text = """
    func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %0 = stablehlo.custom_call @pair(%a) {called_computations = [@helper], \
backend_config = "a\\22b"} : (tensor<2xf32>) -> tuple<tensor<2xf32>, tensor<i32>>
      %1 = stablehlo.get_tuple_element %0[1] : \
(tuple<tensor<2xf32>, tensor<i32>>) -> tensor<i32>
      %2 = stablehlo.get_tuple_element %0[0] : \
(tuple<tensor<2xf32>, tensor<i32>>) -> tensor<2xf32>
      %3 = stablehlo.after_all %t, %t : !stablehlo.token
      return %2 : tensor<2xf32>
    }
    func.func private @helper(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }
    """
    program = read(text)
    assert only(program, "custom_call").attrs == CustomCallAttrs(
        target="pair", backend_config='"a\\22b"', called_functions=("helper",)
    )
    indices = [op.attrs for op in ops_of(program, "get_tuple_element")]
    assert indices == [DimensionAttrs(dimension=1), DimensionAttrs(dimension=0)]
    assert set(program.functions) == {"main", "helper"}


def test_pretty_and_generic_forms_are_one_program() -> None:
    kind = "tensor<2x3xf32>"
    types = f"({kind}, tensor<f32>) -> tensor<2xf32>"
    pretty = (
        "%r = stablehlo.reduce(%a init: %i) applies stablehlo.add across dimensions = [1] : "
        + types
    )
    generic = (
        f'%r = "stablehlo.reduce"(%a, %i) <{{dimensions = array<i64: 1>}}> {ADD_BODY} : {types}'
    )
    texts = [
        main_function(
            f"{line}\nreturn %r : tensor<2xf32>",
            arguments=f"{A23}, %i: tensor<f32>",
            results="tensor<2xf32>",
        )
        for line in (pretty, generic)
    ]
    assert text_of(read(texts[0]).functions) == text_of(read(texts[1]).functions)
    assert only(read(texts[0]), "reduce").attrs == DimensionsAttrs(dimensions=(1,))


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("%r = chlo.square %a : tensor<4xf32> -> tensor<4xf32>", "multiply"),
        ("%r = chlo.erf %a : tensor<4xf32> -> tensor<4xf32>", "clamp"),
        ("%r = chlo.asin %a : tensor<4xf32> -> tensor<4xf32>", "atan2"),
        ("%r = chlo.sinh %a : tensor<4xf32> -> tensor<4xf32>", "exponential"),
        (("%v, %i = chlo.top_k(%a, k = 4) : tensor<4xf32> -> (tensor<4xf32>, tensor<4xi32>)\n"
         "%r = stablehlo.abs %v : tensor<4xf32>"), "sort"),
    ],
)  # fmt: skip
def test_chlo_is_legalised(line: str, made: str) -> None:
    text = main_function(
        f"{line}\nreturn %r : tensor<4xf32>", arguments="%a: tensor<4xf32>", results="tensor<4xf32>"
    )
    program = read(text)
    assert ops_of(program, made)
    assert {op.dialect for op in program.main.body.operations} == {"stablehlo", "func"}


def test_fusions_have_their_kind_and_body() -> None:
    body = """
    %r = "mhlo.fusion"(%a) <{fusion_kind = #mhlo<fusion_kind kLoop>}> ({
    ^bb0(%x: tensor<4xf32>):
      %y = stablehlo.tanh %x : tensor<4xf32>
      mhlo.return %y : tensor<4xf32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %r : tensor<4xf32>"""
    text = main_function(body, arguments="%a: tensor<4xf32>", results="tensor<4xf32>")
    op = only(read(text), "fusion")
    assert op.attrs == FusionAttrs(kind="kLoop")
    assert [inner.kind for inner in op.regions[0].operations] == ["tanh", "return"]


def test_composites_and_calls_name_what_they_run() -> None:
    text = """
    func.func private @before(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }
    func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = call @before(%a) : (tensor<2xf32>) -> tensor<2xf32>
      %1 = stablehlo.composite "my.op" %0 {decomposition = @"odd name"} : \
(tensor<2xf32>) -> tensor<2xf32>
      return %1 : tensor<2xf32>
    }
    func.func private @"odd name"(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.abs %a : tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    func.func private @unused(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }
    """
    program = read(text)
    assert only(program, "call").attrs == CallAttrs(callee="before")
    assert only(program, "composite").attrs == CallAttrs(callee="odd name")
    assert set(program.functions) == {"main", "before", "odd name"}


@pytest.mark.parametrize(
    ("shown", "layouts"),
    [
        ('result_layout = dense<[0, 1]> : tensor<2xindex>, xla_shape = "f32[2,3]{0,1}"', [(0, 1)]),
        ("result_layout = dense<[0, 1]> : tensor<2xindex>", [(0, 1)]),
        ("result_layout = dense<[1, 0]> : tensor<2xindex>", [None]),
    ],
)
def test_layouts_of_optimised_stablehlo(shown: str, layouts: list[tuple[int, ...] | None]) -> None:
    program = read(
        main_function(
            f"%r = mhlo.copy %a {{{shown}}} : tensor<2x3xf32>\nreturn %r : tensor<2x3xf32>",
            arguments=A23,
            results="tensor<2x3xf32>",
        )
    )
    assert [_layout(value) for value in only(program, "copy").results] == layouts


def test_each_result_of_a_fusion_has_its_own_layout() -> None:
    body = f"""
    %f:2 = "mhlo.fusion"(%a) <{{fusion_kind = #mhlo<fusion_kind kLoop>}}> ({{
    ^bb0({A23.replace("%a", "%x")}):
      mhlo.return %x, %x : tensor<2x3xf32>, tensor<2x3xf32>
    }}) {{xla_shape = "(f32[2,3]{{1,0}}, f32[2,3]{{0,1:T(8,128)}})"}}
      : (tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    return %f#1 : tensor<2x3xf32>
    """
    program = read(main_function(body, arguments=A23, results="tensor<2x3xf32>"))
    assert [_layout(value) for value in only(program, "fusion").results] == [None, (0, 1)]


def _layout(value: Value) -> tuple[int, ...] | None:
    assert isinstance(value.type, TensorType)
    return value.type.layout


MAIN = """func.func @main(%a: tensor<4xf32>{0}, %b: tensor<4xf32>{1}, %c: tensor<2xi32>{2})
    -> (tensor<2xi32>, tensor<4xf32>, tensor<4xf32>) {{
  return %c, %a, %b : tensor<2xi32>, tensor<4xf32>, tensor<4xf32>
}}"""
DONOR = " {jax.buffer_donor = true}"


def aliases(*attributes: str, module: str = "") -> list[tuple[int, int]]:
    text = f"module attributes {{{module}}} {{ {MAIN.format(*attributes)} }}"
    entries = load_source(text.encode(), name="here").aliases
    assert all(isinstance(alias, Alias) for alias in entries)
    return [(alias.result, alias.argument) for alias in entries]


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
