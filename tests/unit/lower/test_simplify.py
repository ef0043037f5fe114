from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.collectives import FOLDED_SUMS, JOINED_SUMS, SCATTERED_SUMS
from hespas.lower.simplify import Simplifier
from hespas.program.attrs import CollectiveAttrs
from hespas.program.program import values_read
from programs import VECTOR, all_reduce, main_function, on_devices, vector_main
from rewriting import rewritten


def kinds(text: str) -> list[str]:
    program = load_source(text.encode(), name="test.mlir")
    return [op.kind for op in Simplifier().block(program.main.body).operations[:-1]]


def test_equal_operations_are_one_and_unread_ones_none() -> None:
    body = f"""%b = stablehlo.tanh %a : {VECTOR}
    %c = stablehlo.tanh %a : {VECTOR}
    %d = stablehlo.exponential %a : {VECTOR}
    %r = stablehlo.add %b, %c : {VECTOR}"""
    assert kinds(vector_main(body)) == ["tanh", "add"]


def test_a_barrier_keeps_what_is_computed_again() -> None:
    body = f"""%b = stablehlo.tanh %a : {VECTOR}
    %o = stablehlo.optimization_barrier %a : {VECTOR}
    %c = stablehlo.tanh %o : {VECTOR}
    %r = stablehlo.add %b, %c : {VECTOR}"""
    assert kinds(vector_main(body)) == ["tanh", "optimization_barrier", "tanh", "add"]


def test_what_changes_nothing_is_dropped() -> None:
    body = f"""%b = stablehlo.reshape %a : ({VECTOR}) -> {VECTOR}
    %c = stablehlo.convert %b : ({VECTOR}) -> {VECTOR}
    %d = stablehlo.transpose %c, dims = [0] : ({VECTOR}) -> {VECTOR}
    %e = stablehlo.slice %d [0:8] : ({VECTOR}) -> {VECTOR}
    %r = stablehlo.tanh %e : {VECTOR}"""
    assert kinds(vector_main(body)) == ["tanh"]


def test_a_wider_type_and_back_is_nothing_but_a_narrower_one_rounds() -> None:
    wide, narrow = "tensor<8xf64>", "tensor<8xbf16>"
    body = f"""%b = stablehlo.convert %a : ({VECTOR}) -> {wide}
    %c = stablehlo.convert %b : ({wide}) -> {VECTOR}
    %d = stablehlo.convert %c : ({VECTOR}) -> {narrow}
    %r = stablehlo.convert %d : ({narrow}) -> {VECTOR}"""
    assert kinds(vector_main(body)) == ["convert", "convert"]


def test_a_reduction_of_one_element_each_is_a_reshape() -> None:
    column = "tensor<8x1xf32>"
    body = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
    %b = stablehlo.tanh %a : {VECTOR}
    %c = stablehlo.reshape %b : ({VECTOR}) -> {column}
    %r = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [1]
        : ({column}, tensor<f32>) -> {VECTOR}"""
    assert kinds(vector_main(body)) == ["tanh", "reshape", "reshape"]


SLICED = f"""{all_reduce("%s", "%a")}
    %id = stablehlo.partition_id : tensor<ui32>
    %two = stablehlo.constant dense<2> : tensor<ui32>
    %at = stablehlo.multiply %id, %two : tensor<ui32>
    %r = stablehlo.dynamic_slice %s, %at, sizes = [2] : ({VECTOR}, tensor<ui32>) -> tensor<2xf32>
    """


def scattered(body: str, *, result: str, kind: str) -> list[str]:
    text = main_function(f"{body}return {result} : {kind}", arguments=f"%a: {VECTOR}", results=kind)
    program = load_source(on_devices(text).encode(), name="test.mlir")
    block = program.main.body
    operations = rewritten(
        block.operations[:-1], SCATTERED_SUMS, results=block.operations[-1].operands
    )
    return [op.kind for op in operations]


def test_a_reduced_value_of_which_each_device_keeps_a_part_is_scattered() -> None:
    assert scattered(SLICED, result="%r", kind="tensor<2xf32>") == ["reduce_scatter"]


def test_a_reduced_value_that_is_read_whole_is_not_scattered() -> None:
    assert "all_reduce" in scattered(SLICED, result="%s", kind=VECTOR)


SUMMED = f"""{all_reduce("%s", "%a")}
    {all_reduce("%t", "%b")}
    %r = stablehlo.add %s, %t : {VECTOR}
    """


@pytest.mark.parametrize(
    ("results", "kinds"),
    [
        (("%r",), ["add", "all_reduce"]),
        # What something else reads is reduced by itself.
        (("%r", "%t"), ["all_reduce", "all_reduce", "add"]),
    ],
)
def test_sums_of_reduced_values_are_reduced_once(
    results: tuple[str, ...], kinds: list[str]
) -> None:
    types = ", ".join([VECTOR] * len(results))
    text = main_function(
        f"{SUMMED}return {', '.join(results)} : {types}",
        arguments=f"%a: {VECTOR}, %b: {VECTOR}",
        results=types,
    )
    program = load_source(on_devices(text).encode(), name="test.mlir")
    block = program.main.body
    operations = rewritten(
        block.operations[:-1], JOINED_SUMS, results=block.operations[-1].operands
    )
    assert [op.kind for op in operations] == kinds


ACROSS, PAIRS, ALL = ((0, 2), (1, 3)), ((0, 1), (2, 3)), ((0, 1, 2, 3),)
Groups = tuple[tuple[int, ...], ...]


@pytest.mark.parametrize(("outer", "sizes"), [(ACROSS, [4]), (PAIRS, [2, 2]), (ALL, [2, 4])])
def test_a_sum_of_sums_over_other_devices_is_one(outer: Groups, sizes: list[int]) -> None:
    text = main_function(
        f"""{all_reduce("%b", "%a", groups=PAIRS)}
        {all_reduce("%c", "%b", groups=outer)}
        return %c : {VECTOR}""",
        arguments=f"%a: {VECTOR}",
        results=VECTOR,
    )
    block = load_source(on_devices(text).encode(), name="test.mlir").main.body
    sums = rewritten(block.operations[:-1], FOLDED_SUMS, results=block.operations[-1].operands)
    attributes = [op.attrs for op in sums if isinstance(op.attrs, CollectiveAttrs)]
    assert [each.groups.group_size for each in attributes] == sizes


def test_a_loop_makes_what_it_would_carry_unchanged() -> None:
    text = main_function(
        f"""%i = stablehlo.constant dense<0> : tensor<i32>
        %c = stablehlo.constant dense<1.0> : tensor<f32>
        %m = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {VECTOR}
        %n:3 = stablehlo.while(%j = %i, %x = %a, %y = %m) : tensor<i32>, {VECTOR}, {VECTOR}
          cond {{
            %limit = stablehlo.constant dense<5> : tensor<i32>
            %less = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %less : tensor<i1>
          }} do {{
            %one = stablehlo.constant dense<1> : tensor<i32>
            %next = stablehlo.add %j, %one : tensor<i32>
            %z = stablehlo.add %x, %y : {VECTOR}
            stablehlo.return %next, %z, %y : tensor<i32>, {VECTOR}, {VECTOR}
          }}
        return %n#1, %n#2 : {VECTOR}, {VECTOR}""",
        arguments=f"%a: {VECTOR}",
        results=f"{VECTOR}, {VECTOR}",
    )
    program = load_source(text.encode(), name="test.mlir")
    block = Simplifier().block(program.main.body)
    (loop,) = [op for op in block.operations if op.kind == "while"]
    assert len(loop.operands) == len(loop.results) == 2
    inner = [op.kind for op in loop.regions[1].operations]
    assert inner == ["constant", "add", "constant", "broadcast_in_dim", "add", "return"]


def test_a_loop_carries_what_is_no_constant() -> None:
    wide = "tensor<4x8xf32>"
    text = main_function(
        f"""%i = stablehlo.constant dense<0> : tensor<i32>
        %m = stablehlo.broadcast_in_dim %b, dims = [1] : ({VECTOR}) -> {wide}
        %n:3 = stablehlo.while(%j = %i, %x = %a, %y = %m) : tensor<i32>, {wide}, {wide}
          cond {{
            %limit = stablehlo.constant dense<5> : tensor<i32>
            %less = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %less : tensor<i1>
          }} do {{
            %one = stablehlo.constant dense<1> : tensor<i32>
            %next = stablehlo.add %j, %one : tensor<i32>
            %z = stablehlo.add %x, %y : {wide}
            stablehlo.return %next, %z, %y : tensor<i32>, {wide}, {wide}
          }}
        return %n#1 : {wide}""",
        arguments=f"%a: {wide}, %b: {VECTOR}",
        results=wide,
    )
    program = load_source(text.encode(), name="test.mlir")
    block = Simplifier().block(program.main.body)
    (loop,) = [op for op in block.operations if op.kind == "while"]
    assert len(loop.operands) == 3


def test_comparators_read_the_constants_that_remain() -> None:
    body = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
    %same = stablehlo.constant dense<0.0> : tensor<f32>
    %wide = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {VECTOR}
    %b = stablehlo.add %a, %wide : {VECTOR}
    %r = "stablehlo.sort"(%b) <{{dimension = 0 : i64, is_stable = true}}> ({{
    ^bb0(%one: tensor<f32>, %other: tensor<f32>):
      %key = stablehlo.maximum %one, %same : tensor<f32>
      %before = stablehlo.compare LT, %key, %other : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %before : tensor<i1>
    }}) : ({VECTOR}) -> {VECTOR}"""
    program = load_source(vector_main(body).encode(), name="test.mlir")
    block = Simplifier().block(program.main.body)
    constant, *_, sort, _ = block.operations
    assert [op.kind for op in block.operations].count("constant") == 1
    assert constant.results[0] in values_read(sort)
