from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.errors import CostError, ProgramError
from hespas.frontend.load import load_source
from hespas.frontend.overrides import LoadOptions
from hespas.program.attrs import NO_ATTRS, CallAttrs
from hespas.program.program import Block, Function, Op, Program
from hespas.program.work import ZERO, OperandTraffic, StatedWork, Work
from hespas.work.expand import Branch, Cost, Leaf, Loop, assumptions, expand, total
from live_costs import without_loops

ProgramOf = Callable[[str], Program]

_WHILE = """
func.func @main(%limit: tensor<i32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %seven = stablehlo.constant dense<7> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<4xf32>
    cond { %c = stablehlo.compare LT, %i, %LIMIT : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %c : tensor<i1> }
    do { %n = stablehlo.add %i, %one : tensor<i32>
         %w = stablehlo.multiply %v, %v : tensor<4xf32>
         stablehlo.return %n, %w : tensor<i32>, tensor<4xf32> }
  return %r#1 : tensor<4xf32>
}
"""

_IF = """
func.func @main(%p: tensor<i1>, %x: tensor<4x4xf64>) -> tensor<4x4xf64> {
  %r = "stablehlo.if"(%p) ({
    %a = stablehlo.add %x, %x : tensor<4x4xf64>
    stablehlo.return %a : tensor<4x4xf64>
  }, {
    %b = stablehlo.dot %x, %x : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
    stablehlo.return %b : tensor<4x4xf64>
  }) : (tensor<i1>) -> tensor<4x4xf64>
  return %r : tensor<4x4xf64>
}
"""


def _costs(program: Program) -> tuple[Cost, ...]:
    return expand(program.main.body.operations, program.functions)


def test_a_loop_counts_condition_and_body_as_often_as_it_runs(program_of: ProgramOf) -> None:
    costs = _costs(program_of(_WHILE.replace("%LIMIT", "%seven")))

    loops = [cost for cost in costs if isinstance(cost, Loop)]
    assert [loop.count for loop in loops] == [7]
    # compare, add, and four products; the condition and the counter are i32
    assert total(costs).flops == (("f32", 7 * 4), ("i32", 7 * (1 + 1)))
    assert total(without_loops(costs)).flops == (("f32", 4), ("i32", 1 + 1))


def test_a_loop_whose_count_is_unknown_is_an_error_with_name_place_and_mend(
    program_of: ProgramOf,
) -> None:
    program = program_of(_WHILE.replace("%LIMIT", "%limit"))

    with pytest.raises(CostError) as caught:
        _costs(program)

    assert "test.mlir:6" in str(caught.value)
    assert "stablehlo.while" in str(caught.value)
    assert "give trip_count" in str(caught.value)


def test_a_branch_costs_as_much_as_its_most_expensive_alternative(program_of: ProgramOf) -> None:
    costs = _costs(program_of(_IF))

    assert [len(cost.alternatives) for cost in costs if isinstance(cost, Branch)] == [2]
    assert total(costs).flops == (("f64", 2 * 4 * 4 * 4),)


def test_the_caller_says_which_alternative_is_most_expensive(program_of: ProgramOf) -> None:
    costs = _costs(program_of(_IF))

    assert total(costs, choose=lambda work: -work.total_flops).flops == (("f64", 4 * 4),)


def test_weights_of_branches_are_kept(program_of: ProgramOf) -> None:
    options = LoadOptions(branch_weights={"": (0.75, 0.25)})
    costs = _costs(load_source(_IF.encode(), name="test.mlir", options=options))

    assert total(costs).flops == (("f64", round(0.75 * 16 + 0.25 * 128)),)


def test_calls_and_composites_stand_open(program_of: ProgramOf) -> None:
    costs = _costs(
        program_of("""
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = call @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b = stablehlo.composite "my.square" %a {decomposition = @square}
       : (tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func private @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = call @square(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b = call @square(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func private @square(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = stablehlo.multiply %x, %x : tensor<4xf32>
  return %a : tensor<4xf32>
}
""")
    )

    assert [cost.op.kind for cost in costs] == ["multiply"] * 3
    assert total(costs).total_flops == 3 * 4


def _calling(name: str, *callees: str) -> Function:
    calls = [
        Op(dialect="func", kind="call", operands=(), results=(), attrs=CallAttrs(callee=callee))
        for callee in callees
    ]
    end = Op(dialect="func", kind="return", operands=(), results=(), attrs=NO_ATTRS)
    return Function(name=name, body=Block(arguments=(), operations=(*calls, end)))


def test_a_function_that_calls_itself_is_an_error() -> None:
    functions = {"a": _calling("a", "b"), "b": _calling("b", "a")}

    with pytest.raises(ProgramError, match="calls itself"):
        expand(functions["a"].body.operations, functions)


def test_a_missing_function_is_an_error() -> None:
    with pytest.raises(ProgramError, match="@gone is called but not defined"):
        expand(_calling("a", "gone").body.operations, {})


def test_calls_ten_thousand_deep_open() -> None:
    depth = 10_000
    functions = {str(number): _calling(str(number), str(number + 1)) for number in range(depth)}
    functions[str(depth)] = _calling(str(depth))

    assert expand(functions["0"].body.operations, functions) == ()


def test_a_diamond_of_calls_is_opened_once_each() -> None:
    functions = {
        str(number): _calling(str(number), str(number + 1), str(number + 1)) for number in range(60)
    }
    functions["60"] = _calling("60")

    assert expand(functions["0"].body.operations, functions) == ()


def test_calls_that_open_into_too_much_are_an_error() -> None:
    leaf = Op(dialect="stablehlo", kind="reshape", operands=(), results=(), attrs=NO_ATTRS)
    functions = {
        str(number): _calling(str(number), str(number + 1), str(number + 1)) for number in range(40)
    }
    functions["40"] = Function(name="40", body=Block(arguments=(), operations=(leaf,)))

    with pytest.raises(CostError, match="calls open into more than"):
        expand(functions["0"].body.operations, functions)


def test_an_asynchronous_start_does_the_work_of_what_it_starts(program_of: ProgramOf) -> None:
    costs = _costs(
        program_of("""
func.func private @reduce(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {execution_thread = "main"} {
  %a = "stablehlo.all_reduce"(%x) ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = "mhlo.async_start"(%x) {called_computation = @reduce, execution_thread = "main"}
    : (tensor<4xf32>) -> !mhlo.async_bundle<tensor<4xf32>, tensor<4xf32>>
  %d = "mhlo.async_done"(%s)
    : (!mhlo.async_bundle<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
  return %d : tensor<4xf32>
}
""")
    )

    assert [cost.op.kind for cost in costs] == ["all_reduce", "async_done"]
    assert total(costs) == Work(flops=(("f32", 4),))


_CUSTOM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = stablehlo.custom_call @TARGET(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %a : tensor<4xf32>
}
"""


def test_an_unknown_custom_call_is_an_error_with_name_place_and_mend(
    program_of: ProgramOf,
) -> None:
    with pytest.raises(CostError) as caught:
        _costs(program_of(_CUSTOM.replace("TARGET", "my_kernel")))

    assert "'my_kernel'" in str(caught.value)
    assert "test.mlir:3" in str(caught.value)
    assert caught.value.hint


def test_a_misspelt_custom_call_gets_a_suggestion(program_of: ProgramOf) -> None:
    with pytest.raises(CostError, match="did you mean Sharding"):
        _costs(program_of(_CUSTOM.replace("TARGET", "Shardin")))


def test_a_stated_custom_call_costs_what_is_stated_and_says_so(program_of: ProgramOf) -> None:
    program = program_of(_CUSTOM.replace("TARGET", "my_kernel"))
    stated = Work(flops=(("bf16", 1000),), bytes_read=16, bytes_written=16)

    costs = expand(
        program.main.body.operations, custom_calls={"my_kernel": StatedWork(work=stated)}
    )

    assert total(costs) == stated
    assert assumptions(costs) == ("custom call my_kernel: work as the user states it",)


def test_a_custom_call_may_cost_its_traffic_and_says_so(program_of: ProgramOf) -> None:
    program = program_of(_CUSTOM.replace("TARGET", "my_kernel"))

    costs = expand(program.main.body.operations, custom_calls={"my_kernel": OperandTraffic()})

    assert total(costs) == Work(bytes_read=16, bytes_written=16)
    assert len(assumptions(costs)) == 1


@pytest.mark.parametrize("target", ["LayoutConstraint", "PrepareAsyncCallStart", "MoveToDevice"])
def test_an_annotation_does_nothing(target: str, program_of: ProgramOf) -> None:
    costs = _costs(program_of(_CUSTOM.replace("TARGET", target)))

    assert total(costs) == ZERO
    assert not assumptions(costs)


@pytest.mark.parametrize("kind", ["uniform_quantize", "dynamic_conv", "teleport"])
def test_an_operation_without_a_rule_is_an_error(kind: str) -> None:
    op = Op(
        dialect="stablehlo",
        kind=kind,
        operands=(),
        results=(),
        attrs=NO_ATTRS,
        source_location="a.mlir:3:1",
    )

    with pytest.raises(CostError, match=rf"a.mlir:3:1: stablehlo.{kind}"):
        expand(op)


def test_each_of_five_thousand_operations_is_opened(program_of: ProgramOf) -> None:
    program = program_of("""
func.func @main(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %a = stablehlo.add %x, %x : tensor<64x128xf32>
  return %a : tensor<64x128xf32>
}
""")
    ops = (program.main.body.operations[0],) * 5000

    assert sum(isinstance(cost, Leaf) for cost in expand(ops)) == 5000
