"""Zeros that loops write over: there as often as they are written over, where the first stand."""

from __future__ import annotations

from itertools import pairwise

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.program.program import Op, Program

SUM = "tensor<64x64xf32>"
CARRIED = f"tensor<f32>, {SUM}, {SUM}"
LOOP = f"""%NAME:3 = stablehlo.while(%i = %zero, %x = %FIRST, %y = %SECOND) : {CARRIED}
    cond {{
      %more = stablehlo.compare LT, %i, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %i, %one : tensor<f32>
      %p = stablehlo.reverse %x, dims = [0] : {SUM}
      %q = stablehlo.reverse %y, dims = [0] : {SUM}
      stablehlo.return %next, %p, %q : tensor<f32>, {SUM}, {SUM}
    }}"""


def program(*loops: str) -> Program:
    body = "\n    ".join(loops)
    last = f"%{loops[-1].partition('%')[2].partition(':')[0]}"
    return load_source(
        f"""module {{
  func.func @main(%a: {SUM}) -> ({SUM}, {SUM}) {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %one = stablehlo.constant dense<1.0> : tensor<f32>
    %limit = stablehlo.constant dense<8.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {SUM}
    %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> {SUM}
    {body}
    return {last}#1, {last}#2 : {SUM}, {SUM}
  }}
}}""".encode(),
        name="test.mlir",
    )


def loop(name: str, first: str, second: str) -> str:
    return LOOP.replace("NAME", name).replace("FIRST", first).replace("SECOND", second)


def main(found: Program) -> tuple[Op, ...]:
    return found.main.body.operations


def test_each_value_that_loops_write_over_has_zeros_of_its_own() -> None:
    operations = main(fused(program(loop("l", "zeros", "zeros"))))
    (around,) = [op for op in operations if op.kind == "while"]
    x, y = around.operands[1:]
    assert x is not y
    made = [op for op in operations if not op.operands and op.kind == "fusion"]
    assert {value for op in made for value in op.results} >= {x, y}


def test_equal_zeros_of_later_loops_stand_with_the_first() -> None:
    found = fused(program(loop("k", "zeros", "ones"), loop("l", "k#1", "zeros")))
    operations = main(found)
    first = next(at for at, op in enumerate(operations) if op.kind == "while")
    fills = [op for op in operations[:first] if op.kind == "fusion" and not op.operands]
    assert len(fills) == 3
    one, other = (op.operands for op in operations if op.kind == "while")
    made_by = {op.results[0]: op for op in fills}
    assert (made_by[one[1]], made_by[other[2]]) in pairwise(operations)
