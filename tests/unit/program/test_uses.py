from __future__ import annotations

from hespas.program.program import Op, Value
from hespas.program.uses import Uses
from programs import VECTOR, read, vector_main

LOOP = f"""
%zero = stablehlo.constant dense<0> : tensor<i32>
%n = stablehlo.negate %a : {VECTOR}
%twice = stablehlo.add %n, %n : {VECTOR}
%t = stablehlo.reshape %twice : ({VECTOR}) -> {VECTOR}
%loop = stablehlo.while(%i = %zero) : tensor<i32> cond {{
  %never = stablehlo.constant dense<false> : tensor<i1>
  stablehlo.return %never : tensor<i1>
}} do {{
  %used = stablehlo.abs %t : {VECTOR}
  stablehlo.return %i : tensor<i32>
}}
%r = stablehlo.abs %twice : {VECTOR}"""


def _uses() -> tuple[Uses, dict[str, Op], Value]:
    body = read(vector_main(LOOP)).main.body
    return Uses.of_block(body), {op.kind: op for op in body.operations}, body.arguments[0]


def test_producers_and_readers() -> None:
    uses, ops, argument = _uses()
    (negated,), (twice,) = ops["negate"].results, ops["add"].results
    assert uses.producer(negated) is ops["negate"]
    assert uses.producer(argument) is None
    assert [*uses.readers(negated)] == [ops["add"]]
    assert uses.count(negated) == 2
    assert uses.only_reader(negated) is ops["add"]
    assert [*uses.readers(twice)] == [ops["reshape"], ops["abs"]]
    assert uses.only_reader(twice) is None


def test_a_loop_reads_what_its_body_reads() -> None:
    uses, ops, _ = _uses()
    assert uses.only_reader(ops["reshape"].results[0]) is ops["while"]


def test_an_output_has_no_only_reader() -> None:
    uses, ops, _ = _uses()
    (result,) = ops["abs"].results
    assert uses.is_output(result)
    assert uses.count(result) == 1
    assert uses.only_reader(result) is None
    uses.add(ops["abs"])
    assert not uses.is_output(ops["add"].results[0])


def test_a_value_is_followed_back() -> None:
    uses, ops, argument = _uses()
    (reshaped,) = ops["reshape"].results
    assert uses.source(reshaped, lambda op: op.traits.relabels) is ops["add"].results[0]
    assert uses.source(reshaped, lambda _: True) is argument


def test_replaced_operations_read_no_more() -> None:
    uses, ops, _ = _uses()
    (negated,) = ops["negate"].results
    uses.replace(ops["add"], ())
    assert uses.count(negated) == 0
