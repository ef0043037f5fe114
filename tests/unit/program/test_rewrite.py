from __future__ import annotations

import pytest

from hespas.errors import ProgramError
from hespas.program.program import Function, Op, Program, Value, nested_ops, values_read
from hespas.program.rewrite import Builder, Pattern, with_calls_opened, with_patterns
from hespas.program.uses import Uses
from programs import VECTOR, on_devices, read, text_of, vector_main

HELPERS = f"""
func.func private @twice(%x: {VECTOR}) -> ({VECTOR}, {VECTOR}) {{
  %0 = stablehlo.add %x, %x : {VECTOR}
  %1:2 = call @inner(%0, %x) : ({VECTOR}, {VECTOR}) -> ({VECTOR}, {VECTOR})
  return %1#1, %1#0 : {VECTOR}, {VECTOR}
}}
func.func private @inner(%x: {VECTOR}, %y: {VECTOR}) -> ({VECTOR}, {VECTOR}) {{
  %0 = stablehlo.multiply %x, %y : {VECTOR}
  return %0, %y : {VECTOR}, {VECTOR}
}}
"""


def opened(program: Program) -> str:
    return text_of({"main": with_calls_opened(program)})


def same(body: str, expected: str) -> None:
    main = opened(read(on_devices(HELPERS + vector_main(body))))
    assert main == text_of(read(on_devices(vector_main(expected))).functions)


def test_a_program_without_calls_is_kept_as_it_is() -> None:
    program = read(vector_main(f"%r = stablehlo.abs %a : {VECTOR}"))
    assert with_calls_opened(program) is program.main


def test_nested_calls_twice() -> None:
    same(
        f"""
        %0 = stablehlo.abs %a : {VECTOR}
        %1:2 = call @twice(%0) : ({VECTOR}) -> ({VECTOR}, {VECTOR})
        %2 = stablehlo.negate %1#0 : {VECTOR}
        %3:2 = call @twice(%2) : ({VECTOR}) -> ({VECTOR}, {VECTOR})
        %r = stablehlo.subtract %3#1, %1#1 : {VECTOR}""",
        f"""
        %0 = stablehlo.abs %a : {VECTOR}
        %1 = stablehlo.add %0, %0 : {VECTOR}
        %2 = stablehlo.multiply %1, %0 : {VECTOR}
        %3 = stablehlo.negate %0 : {VECTOR}
        %4 = stablehlo.add %3, %3 : {VECTOR}
        %5 = stablehlo.multiply %4, %3 : {VECTOR}
        %r = stablehlo.subtract %5, %2 : {VECTOR}""",
    )


def test_operations_that_no_call_touches_are_the_same_objects() -> None:
    program = read(
        on_devices(
            HELPERS
            + vector_main(
                f"""
        %0 = stablehlo.abs %a : {VECTOR}
        %1:2 = call @inner(%0, %a) : ({VECTOR}, {VECTOR}) -> ({VECTOR}, {VECTOR})
        %r = stablehlo.tanh %0 : {VECTOR}"""
            )
        )
    )
    main = with_calls_opened(program)
    before, after = program.main.body.operations, main.body.operations
    assert [op.kind for op in after] == ["abs", "multiply", "tanh", "return"]
    assert (after[0], after[2], after[3]) == (before[0], before[2], before[3])


def test_calls_inside_regions_and_results_that_pass_through() -> None:
    text = f"""
        %true = stablehlo.constant dense<true> : tensor<i1>
        %0 = "stablehlo.if"(%true) ({{
          %1:2 = func.call @inner(%a, %a) : ({VECTOR}, {VECTOR}) -> ({VECTOR}, {VECTOR})
          stablehlo.return %1#1 : {VECTOR}
        }}, {{
          stablehlo.return %a : {VECTOR}
        }}) : (tensor<i1>) -> {VECTOR}
        %r = stablehlo.abs %0 : {VECTOR}"""
    same(
        text,
        f"""
        %true = stablehlo.constant dense<true> : tensor<i1>
        %0 = "stablehlo.if"(%true) ({{
          %1 = stablehlo.multiply %a, %a : {VECTOR}
          stablehlo.return %a : {VECTOR}
        }}, {{
          stablehlo.return %a : {VECTOR}
        }}) : (tensor<i1>) -> {VECTOR}
        %r = stablehlo.abs %0 : {VECTOR}""",
    )


def test_a_composite_is_what_it_decomposes_to() -> None:
    types = f"({VECTOR}, {VECTOR}) -> ({VECTOR}, {VECTOR})"
    same(
        f'%0:2 = stablehlo.composite "x.y" %a, %a {{decomposition = @inner}} : {types}\n'
        f"%r = stablehlo.abs %0#0 : {VECTOR}",
        f"%0 = stablehlo.multiply %a, %a : {VECTOR}\n%r = stablehlo.abs %0 : {VECTOR}",
    )


@pytest.mark.parametrize(("first", "second"), [("main", "main"), ("f", "f"), ("f", "g")])
def test_a_function_that_calls_itself(first: str, second: str) -> None:
    other = {"f": "g", "g": "f"}.get(first, "main") if first != second else first
    text = on_devices(
        vector_main(f"%r = call @{first}(%a) : ({VECTOR}) -> {VECTOR}")
        + "".join(
            f"func.func private @{name}(%a: {VECTOR}) -> {VECTOR} {{\n"
            f"%r = call @{callee}(%a) : ({VECTOR}) -> {VECTOR}\nreturn %r : {VECTOR}\n}}\n"
            for name, callee in {(first, other), (second, first)}
            if name != "main"
        )
    )
    with pytest.raises(ProgramError, match=r"test.mlir:.*call: function @.* calls itself"):
        with_calls_opened(read(text))


def test_hundreds_of_functions_deep() -> None:
    depth = 300
    functions = "".join(
        f"func.func private @f{number}(%a: {VECTOR}) -> {VECTOR} {{\n"
        f"%r = call @f{number + 1}(%a) : ({VECTOR}) -> {VECTOR}\nreturn %r : {VECTOR}\n}}\n"
        for number in range(depth)
    )
    last = f"func.func private @f{depth}(%a: {VECTOR}) -> {VECTOR} {{ return %a : {VECTOR} }}\n"
    main = vector_main(f"%r = call @f0(%a) : ({VECTOR}) -> {VECTOR}")
    program = read(on_devices(functions + last + main))
    (last_op,) = with_calls_opened(program).body.operations
    assert last_op.operands == program.main.body.arguments


def test_values_read_are_operands_and_what_regions_take_from_outside() -> None:
    program = read(
        vector_main(
            f"""
        %n = stablehlo.constant dense<3> : tensor<i32>
        %out = stablehlo.abs %a : {VECTOR}
        %r:2 = stablehlo.while(%i = %n, %x = %a) : tensor<i32>, {VECTOR}
        cond {{
          %c = stablehlo.compare GT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }} do {{
          %y = stablehlo.add %x, %out : {VECTOR}
          stablehlo.return %i, %y : tensor<i32>, {VECTOR}
        }}""",
            result="%r#1",
        )
    )
    constant, absolute, loop, _ = program.main.body.operations
    read_values = set(values_read(loop))
    assert read_values == {constant.results[0], absolute.results[0], program.main.body.arguments[0]}
    assert [op.kind for op in nested_ops(program.main.body)] == [
        "constant", "abs", "while", "compare", "return", "add", "return", "return",
    ]  # fmt: skip


def _negations_paired(op: Op, uses: Uses) -> Value | None:
    before = uses.producer(op.operands[0])
    return before.operands[0] if before and before.kind == "negate" else None


def _doubled(op: Op, _: Uses) -> list[Op]:
    build = Builder(op)
    build.add("multiply", (op.operands[0], op.operands[0]), op.results[0])
    return build.operations


def _rewritten(body: str, pattern: Pattern, expected: str) -> None:
    main = read(vector_main(body)).main
    rewritten = Function(name="main", body=with_patterns(main.body, [pattern]))
    assert text_of({"main": rewritten}) == text_of(read(vector_main(expected)).functions)


def test_a_pattern_renames_results_and_drops_what_is_dead() -> None:
    _rewritten(
        f"""
        %0 = stablehlo.negate %a : {VECTOR}
        %1 = stablehlo.negate %0 : {VECTOR}
        %r = stablehlo.abs %1 : {VECTOR}""",
        Pattern(kinds={"negate"}, change=_negations_paired),
        f"%r = stablehlo.abs %a : {VECTOR}",
    )


def test_a_pattern_replaces_operations() -> None:
    _rewritten(
        f"""
        %0 = stablehlo.abs %a : {VECTOR}
        %r = stablehlo.negate %0 : {VECTOR}""",
        Pattern(kinds={"abs"}, change=_doubled),
        f"""
        %0 = stablehlo.multiply %a, %a : {VECTOR}
        %r = stablehlo.negate %0 : {VECTOR}""",
    )


def test_a_pattern_that_matches_nothing_changes_nothing() -> None:
    body = read(vector_main(f"%r = stablehlo.negate %a : {VECTOR}")).main.body
    for kinds in ({"abs"}, {"negate"}):
        assert with_patterns(body, [Pattern(kinds=kinds, change=_negations_paired)]) is body
