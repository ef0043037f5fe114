from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.loops import with_freed_first
from hespas.program.program import Op

BIG = "tensor<64x64xf32>"
SMALL = "tensor<64xf32>"


def _kinds(operations: list[Op]) -> list[str]:
    return [op.kind for op in operations if op.kind != "constant"]


def _moved(behind: str, returned: str = "%last, %loop") -> list[str]:
    text = f"""module {{
  func.func @main(%a: {BIG}, %v: {SMALL}) -> ({SMALL}, {SMALL}) {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %limit = stablehlo.constant dense<8.0> : tensor<f32>
    %big = stablehlo.tanh %a : {BIG}
    %step:2 = stablehlo.while(%i = %zero, %x = %v) : tensor<f32>, {SMALL}
    cond {{
      %more = stablehlo.compare LT, %i, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %y = stablehlo.exponential %x : {SMALL}
      stablehlo.return %i, %y : tensor<f32>, {SMALL}
    }}
    {behind}
    return %last, %step#1 : {SMALL}, {SMALL}
  }}
}}"""
    body = load_source(text.encode(), name="test.mlir").main.body
    operations = body.operations
    return _kinds(with_freed_first(operations[:-1], operations[-1].operands))


_REDUCE = (
    "%last = stablehlo.reduce(%big init: %zero) applies stablehlo.add across dimensions = [1] : "
    f"({BIG}, tensor<f32>) -> {SMALL}"
)


def test_what_frees_memory_runs_before_a_loop_that_it_does_not_need() -> None:
    assert _moved(_REDUCE) == ["tanh", "reduce", "while"]


def test_a_view_does_not_keep_it_behind() -> None:
    viewed = _REDUCE.replace("%big init", "%view init")
    view = f"%view = stablehlo.reshape %big : ({BIG}) -> {BIG}"
    assert _moved(f"{view}\n    {viewed}") == ["tanh", "reshape", "reduce", "while"]


def test_what_takes_more_than_it_frees_stays() -> None:
    wide = f"%wide = stablehlo.broadcast_in_dim %v, dims = [0] : ({SMALL}) -> {BIG}\n    "
    kinds = _moved(wide + _REDUCE.replace("%big", "%wide"))
    assert kinds == ["tanh", "while", "broadcast_in_dim", "reduce"]


def test_what_needs_the_loop_stays_behind_it() -> None:
    total = "stablehlo.reduce(%big init: %step#0) applies stablehlo.add across dimensions = [1]"
    needs = f"""%part = {total} : ({BIG}, tensor<f32>) -> {SMALL}
    %last = stablehlo.negate %part : {SMALL}"""
    assert _moved(needs) == ["tanh", "while", "reduce", "negate"]


def test_what_is_read_again_is_not_freed() -> None:
    again = f"""%sum = stablehlo.add %big, %a : {BIG}
    %first = stablehlo.slice %sum [0:1, 0:64] : ({BIG}) -> tensor<1x64xf32>
    %flat = stablehlo.reshape %first : (tensor<1x64xf32>) -> {SMALL}
    %last = stablehlo.add %flat, %step#1 : {SMALL}"""
    assert _moved(again) == ["tanh", "while", "add", "slice", "reshape", "add"]
