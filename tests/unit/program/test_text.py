from __future__ import annotations

from collections.abc import Hashable

import pytest

from hespas.frontend.overrides import LoadOptions
from hespas.program.attrs import NO_ATTRS, CaseAttrs, DimensionsAttrs
from hespas.program.program import Block, Op, Program, Value
from hespas.program.text import (
    attributes_text,
    fingerprint,
    function_text,
    module_text,
    quoted_symbol,
    structure_key,
)
from hespas.program.types import TokenType, TupleType, size_bytes, tensor_type, tensors
from programs import VECTOR, check_verifies, main_function, read, text_of, vector_main

LOOP = main_function(
    """
    %r:2 = stablehlo.while(%i = %n, %x = %a) : tensor<i32>, tensor<8xf32>
    cond {
      %l = stablehlo.constant dense<9> : tensor<i32>
      %c = stablehlo.compare LT, %i, %l : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.tanh %x : tensor<8xf32>
      stablehlo.return %j, %y : tensor<i32>, tensor<8xf32>
    }
    return %r#1 : tensor<8xf32>""",
    arguments="%n: tensor<i32>, %a: tensor<8xf32>",
    results=VECTOR,
)
CASE = main_function(
    f"""
    %r = "stablehlo.case"(%i) ({{
      %x = stablehlo.abs %a : {VECTOR}
      stablehlo.return %x : {VECTOR}
    }}, {{
      stablehlo.return %a : {VECTOR}
    }}) {{mhlo.sharding = "{{replicated}}"}} : (tensor<i32>) -> {VECTOR}
    return %r : {VECTOR}""",
    arguments=f"%i: tensor<i32>, %a: {VECTOR}",
    results=VECTOR,
)


def key(program: Program) -> object:
    operations = program.main.body.operations[:-1]
    return structure_key(operations, program.main.results)


def test_the_text_of_a_loop() -> None:
    program = read(LOOP, options=LoadOptions(trip_counts={"": 4}))
    text = text_of(program.functions)
    assert text == (
        "  func.func private @main(%arg0: tensor<i32>, %arg1: tensor<8xf32>) -> (tensor<8xf32>) {\n"
        '    %0:2 = "stablehlo.while"(%arg0, %arg1) ({\n'
        "    ^bb0(%b1_0: tensor<i32>, %b1_1: tensor<8xf32>):\n"
        '      %2 = "stablehlo.constant"() {value = dense<9> : tensor<i32>} : () -> tensor<i32>\n'
        '      %3 = "stablehlo.compare"(%b1_0, %2) {comparison_direction = '
        "#stablehlo<comparison_direction LT>} : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        '      "stablehlo.return"(%3) : (tensor<i1>) -> ()\n'
        "    }, {\n"
        "    ^bb0(%b4_0: tensor<i32>, %b4_1: tensor<8xf32>):\n"
        '      %5 = "stablehlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>\n'
        '      %6 = "stablehlo.add"(%b4_0, %5) : (tensor<i32>, tensor<i32>) -> tensor<i32>\n'
        '      %7 = "stablehlo.tanh"(%b4_1) : (tensor<8xf32>) -> tensor<8xf32>\n'
        '      "stablehlo.return"(%6, %7) : (tensor<i32>, tensor<8xf32>) -> ()\n'
        "    }) : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)  // runs 4 times\n"
        "    return %0#1 : tensor<8xf32>\n"
        "  }\n"
    )
    check_verifies(module_text(text))


@pytest.mark.parametrize(
    ("text", "shown", "other"),
    [
        (LOOP, LoadOptions(trip_counts={"": 4}), LoadOptions(trip_counts={"": 5})),
        (LOOP, LoadOptions(trip_counts={"": 4}), LoadOptions()),
        (
            CASE,
            LoadOptions(branch_weights={"": (0.5, 0.5)}),
            LoadOptions(branch_weights={"": (0.25, 0.75)}),
        ),
        (CASE, LoadOptions(branch_weights={"": (0.5, 0.5)}), LoadOptions()),
    ],
)
def test_what_the_user_says_makes_another_text(
    text: str, shown: LoadOptions, other: LoadOptions
) -> None:
    one, two, again = (read(text, options=options) for options in (shown, other, shown))
    assert text_of(one.functions) != text_of(two.functions)
    assert text_of(one.functions) == text_of(again.functions)
    assert key(one) != key(two)
    assert key(one) == key(again)


def test_annotations_of_shardings_are_left_out() -> None:
    assert "sharding" not in text_of(read(CASE).functions)
    assert attributes_text((("sdy.sharding", "x"), ("z", "unit"))) == " {z}"
    assert attributes_text(()) == ""


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("abs %a : tensor<8xf32>", "negate %a : tensor<8xf32>"),
        ("add %a, %b : tensor<8xf32>", "add %b, %a : tensor<8xf32>"),
        ("add %a, %a : tensor<8xf32>", "add %a, %b : tensor<8xf32>"),
        ("iota dim = 0 : tensor<8xf32>", "constant dense<0.0> : tensor<8xf32>"),
        ("constant dense<1.0> : tensor<8xf32>", "constant dense<0.0> : tensor<8xf32>"),
    ],
)
def test_different_computations_have_different_keys(one: str, two: str) -> None:
    programs = [
        read(
            main_function(
                f"%r = stablehlo.{line}\nreturn %r : {VECTOR}",
                arguments=f"%a: {VECTOR}, %b: {VECTOR}",
                results=VECTOR,
            )
        )
        for line in (one, two)
    ]
    # Inputs are numbered in order of use: add(a, b) and add(b, a) are one computation.
    keys = {
        structure_key(
            program.main.body.operations[:-1],
            (*program.main.results, *program.main.body.operations[0].operands),
        )
        for program in programs
    }
    texts = {fingerprint(text_of(program.functions)) for program in programs}
    assert len(texts) == 2
    assert len(keys) == (1 if one == "add %a, %b : tensor<8xf32>" else 2)


def test_names_and_places_do_not_count() -> None:
    body = f"%0 = stablehlo.abs %a : {VECTOR}\n%r = stablehlo.add %0, %a : {VECTOR}"
    one = read(vector_main(body))
    two = read("\n\n" + vector_main(body.replace("%0", "%other")).replace("%a", "%given"))
    assert text_of(one.functions) == text_of(two.functions)
    assert key(one) == key(two)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("main", "main"),
        ("region_0.1$x", "region_0.1$x"),
        ("x-y", '"x-y"'),
        ("0abc", '"0abc"'),
        ("a b", '"a b"'),
        ("é", '"é"'),
        ("", '""'),
    ],
)
def test_symbols_are_quoted_where_they_need_it(name: str, printed: str) -> None:
    assert quoted_symbol(name) == printed


def test_sizes_of_what_is_no_tensor() -> None:
    pair = TupleType(members=(tensor_type("f32", 3), TokenType()))
    nested = TupleType(members=(pair, tensor_type("i1", 2)))
    assert size_bytes(nested) == 14
    assert tensors(nested) == (tensor_type("f32", 3), tensor_type("i1", 2))
    assert str(nested) == "tuple<tuple<tensor<3xf32>, !stablehlo.token>, tensor<2xi1>>"


def _op(kind: str, operands: tuple[Value, ...], *regions: Block) -> Op:
    results = (Value(type=tensor_type("f32")),)
    return Op(
        dialect="mhlo",
        kind=kind,
        operands=operands,
        results=results,
        attrs=NO_ATTRS,
        regions=regions,
    )


def test_arguments_of_a_body_that_is_used_twice_are_reported_apart() -> None:
    left, right = Value(type=tensor_type("f32")), Value(type=tensor_type("f32"))
    bodies = [
        Block(arguments=(left, right), operations=(_op("negate", (value,)),))
        for value in (left, right)
    ]

    def key(second: Block) -> Hashable:
        outer = Value(type=left.type)
        return structure_key(
            [_op("fusion", (outer, outer), bodies[0]), _op("fusion", (outer, outer), second)], ()
        )

    assert key(bodies[0]) == key(bodies[0])
    assert key(bodies[0]) != key(bodies[1])


def test_typed_attributes_without_text_are_strings_but_for_loops_and_branches() -> None:
    predicate, value = Value(type=tensor_type("i1")), Value(type=tensor_type("f32", 2))
    result = Value(type=value.type)
    end = Op(dialect="stablehlo", kind="return", operands=(value,), results=(), attrs=NO_ATTRS)
    branch = Block(arguments=(), operations=(end,))
    choice = Op(
        dialect="stablehlo",
        kind="if",
        operands=(predicate,),
        results=(result,),
        attrs=CaseAttrs(weights=None),
        regions=(branch, branch),
    )
    turned = Op(
        dialect="stablehlo",
        kind="reverse",
        operands=(result,),
        results=(Value(type=value.type),),
        attrs=DimensionsAttrs(dimensions=(0,)),
    )
    text = function_text("main", (predicate, value), (choice, turned), turned.results)
    assert '{dimensions = "(0,)"}' in text
    assert "weights" not in text
