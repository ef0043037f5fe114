from __future__ import annotations

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.overrides import LoadOptions
from hespas.split.flatten import flatten
from hespas.split.options import SplitOptions
from hespas.split.regions import FlatProgram
from hespas.split.strategies import split_program
from programs import VECTOR, all_reduce, main_function, on_devices, read, settled, vector_main


def kinds(flat: FlatProgram) -> list[str]:
    return [op.kind for op in flat.operations if op.kind != "constant"]


def loop(body: str, *, limit: str = "constant dense<3>", extra: str = "") -> str:
    return f"""
    %n = stablehlo.{limit} : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    {extra}
    %w:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {VECTOR}
    cond {{
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %j = stablehlo.add %i, %one : tensor<i32>
      {body}
      stablehlo.return %j, %y : tensor<i32>, {VECTOR}
    }}
    %r = stablehlo.negate %w#1 : {VECTOR}"""


def test_a_loop_without_collectives_stays_whole() -> None:
    program = settled(vector_main(loop(f"%y = stablehlo.tanh %x : {VECTOR}")))
    graph = split_program(program, SplitOptions())
    (region,) = graph.compute_regions
    assert [op.kind for op in region.operations] == ["while", "negate"]
    assert [op.kind for op in region.constants] == ["constant"] * 3


def test_a_loop_with_a_collective_is_opened() -> None:
    text = on_devices(vector_main(loop(all_reduce("%y", "%x"))))
    flat = flatten(settled(text))
    assert kinds(flat) == [*["compare", "add", "all_reduce"] * 3, "compare", "negate"]
    reduces = [op for op in flat.operations if op.kind == "all_reduce"]
    assert reduces[0].operands == flat.arguments
    assert reduces[1].operands == reduces[0].results
    assert flat.operations[-1].operands == reduces[2].results
    assert len({id(op.results[0]) for op in flat.operations}) == len(flat.operations)


def test_nested_loops_and_calls_are_opened_together() -> None:
    helper = f"""
    func.func private @f(%v: {VECTOR}) -> {VECTOR} {{
      {all_reduce("%g", "%v")}
      return %g : {VECTOR}
    }}
    """
    inner = f"""
      %zero2 = stablehlo.constant dense<0> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %q:2 = stablehlo.while(%k = %zero2, %z = %x) : tensor<i32>, {VECTOR}
      cond {{
        %d = stablehlo.compare LT, %k, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %d : tensor<i1>
      }} do {{
        %k1 = stablehlo.add %k, %one : tensor<i32>
        %z1 = func.call @f(%z) : ({VECTOR}) -> {VECTOR}
        stablehlo.return %k1, %z1 : tensor<i32>, {VECTOR}
      }}
      %y = stablehlo.tanh %q#1 : {VECTOR}"""
    flat = flatten(settled(on_devices(helper + vector_main(loop(inner)))))
    assert kinds(flat).count("all_reduce") == 6
    assert kinds(flat).count("tanh") == 3


def test_a_loop_of_unknown_count_needs_one_only_where_it_communicates() -> None:
    unknown = "abs %m"
    extra = main_function(
        loop(all_reduce("%y", "%x"), limit=unknown) + f"\nreturn %r : {VECTOR}",
        arguments=f"%a: {VECTOR}, %m: tensor<i32>",
        results=VECTOR,
    )
    with pytest.raises(
        ProgramError, match=r"while: the trip count of this loop is unknown; give trip_count"
    ):
        flatten(read(on_devices(extra)))
    shown = read(on_devices(extra), options=LoadOptions(trip_counts={"": 2}))
    assert kinds(flatten(shown)).count("all_reduce") == 2
    graph = split_program(shown, SplitOptions())
    assert graph.assumptions == shown.assumptions
    assert "runs 2 times, as the user says" in graph.assumptions[0]


def test_a_loop_that_never_runs() -> None:
    text = on_devices(vector_main(loop(all_reduce("%y", "%x"), limit="constant dense<0>")))
    flat = flatten(settled(text))
    assert kinds(flat) == ["compare", "negate"]
    assert flat.operations[-1].operands == flat.arguments


def test_opening_too_much_is_an_error() -> None:
    text = on_devices(vector_main(loop(all_reduce("%y", "%x"), limit="constant dense<9999999>")))
    with pytest.raises(UnsupportedError, match=r"over .* operations; give smaller counts"):
        flatten(settled(text))


CASE = f"""
    %i = stablehlo.constant dense<0> : tensor<i32>
    %0 = "stablehlo.case"(%i) ({{
      %x0 = stablehlo.tanh %a : {VECTOR}
      stablehlo.return %x0 : {VECTOR}
    }}, {{
      {all_reduce("%x1", "%a")}
      stablehlo.return %x1 : {VECTOR}
    }}) : (tensor<i32>) -> {VECTOR}
    %r = stablehlo.negate %0 : {VECTOR}"""


def test_the_branch_that_communicates_most_is_taken_and_reported() -> None:
    flat = flatten(settled(on_devices(vector_main(CASE))))
    assert kinds(flat) == ["all_reduce", "negate"]
    assert flat.assumptions == (
        "test.mlir:5:10: stablehlo.case: branch 1 is taken, the one that communicates most",
    )


def test_weights_decide_where_given() -> None:
    options = LoadOptions(branch_weights={"": (0.9, 0.1)})
    flat = flatten(read(on_devices(vector_main(CASE)), options=options))
    assert kinds(flat) == ["tanh", "negate"]
    assert flat.assumptions[-1].endswith("branch 0 is taken, the heaviest")


BUNDLE = "!mhlo.async_bundle<tensor<8xf32>, tensor<8xf32>, tensor<i32>>"
THREAD = 'called_computation = @f, execution_thread = "main"'
STARTED = f"""
func.func private @f(%v: {VECTOR}) -> {VECTOR} attributes {{execution_thread = "main"}} {{
  {all_reduce("%g", "%v")}
  return %g : {VECTOR}
}}
"""


def test_asynchronous_collectives_may_overlap_what_lies_between() -> None:
    body = f"""
    %0 = "mhlo.async_start"(%a) {{{THREAD}}} : ({VECTOR}) -> {BUNDLE}
    %1 = stablehlo.tanh %a : {VECTOR}
    %2 = "mhlo.async_update"(%0) {{{THREAD}}} : ({BUNDLE}) -> {BUNDLE}
    %3 = "mhlo.async_done"(%2) {{{THREAD}}} : ({BUNDLE}) -> {VECTOR}
    %r = stablehlo.add %1, %3 : {VECTOR}"""
    graph = split_program(settled(on_devices(STARTED + vector_main(body))), SplitOptions())
    assert [[op.kind for op in region.operations] for region in graph.compute_regions] == [
        ["tanh", "add"]
    ]
    individual = flatten(settled(on_devices(STARTED + vector_main(body))))
    assert kinds(individual) == ["all_reduce", "tanh", "add"]
    assert individual.operations[1].operands == individual.arguments


def test_an_asynchronous_region() -> None:
    body = f"""
    %0 = "stablehlo.async_start"(%a) ({{
    ^bb0(%v: {VECTOR}):
      {all_reduce("%g", "%v")}
      stablehlo.return %g : {VECTOR}
    }}) : ({VECTOR}) -> !stablehlo.future<{VECTOR}>
    %1 = stablehlo.tanh %a : {VECTOR}
    %2 = "stablehlo.async_done"(%0) : (!stablehlo.future<{VECTOR}>) -> {VECTOR}
    %r = stablehlo.add %1, %2 : {VECTOR}"""
    flat = flatten(settled(on_devices(vector_main(body))))
    assert kinds(flat) == ["all_reduce", "tanh", "add"]
    assert flat.operations[2].operands == (
        flat.operations[1].results[0],
        flat.operations[0].results[0],
    )


def test_a_done_without_its_start() -> None:
    text = main_function(
        f'%r = "stablehlo.async_done"(%b) : (!stablehlo.future<{VECTOR}>) -> {VECTOR}\n'
        f"return %r : {VECTOR}",
        arguments=f"%b: !stablehlo.future<{VECTOR}>",
        results=VECTOR,
    )
    with pytest.raises(ProgramError, match="async_done: its operand does not come from an async"):
        flatten(settled(text))


def test_a_collective_where_none_can_be_opened() -> None:
    body = f"""
    %r = "mhlo.fusion"(%a) <{{fusion_kind = #mhlo<fusion_kind kCustom>}}> ({{
    ^bb0(%v: {VECTOR}):
      {all_reduce("%g", "%v")}
      mhlo.return %g : {VECTOR}
    }}) : ({VECTOR}) -> {VECTOR}"""
    with pytest.raises(UnsupportedError, match=r"mhlo\.fusion: a collective inside this operation"):
        flatten(settled(on_devices(vector_main(body))))


def test_deep_nesting_takes_linear_time() -> None:
    depth = 60
    opening = "".join(f'%q{at} = "stablehlo.if"(%p) ({{\n' for at in range(depth))
    closing = "".join(
        f"stablehlo.return %q{at + 1} : {VECTOR}\n}}, {{\nstablehlo.return %a : {VECTOR}\n}}) : "
        f"(tensor<i1>) -> {VECTOR}\n"
        for at in reversed(range(depth))
    )
    body = (
        f"%p = stablehlo.constant dense<true> : tensor<i1>\n{opening}"
        f"%q{depth} = stablehlo.abs %a : {VECTOR}\n{closing}"
    )
    flat = flatten(settled(on_devices(vector_main(body, result="%q0"))))
    assert kinds(flat) == ["if"]
