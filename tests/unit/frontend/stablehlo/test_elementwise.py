"""Programs of elementwise operations and sums are divided as XLA's partitioner divides them."""

from collections import Counter

import pytest

from hespas.frontend.load import load_per_device, load_source
from hespas.program.attrs import CollectiveAttrs
from hespas.program.program import Op, Program
from hespas.xla.partition.partition import partition

_OWN = "its operations are elementwise or sums"
_ARRAY, _NUMBER = "tensor<8x4xf32>", "tensor<f32>"
_STEP = f"""
module @step attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["data"=2, "fsdp"=2, "tp"=2]>
  func.func public @main(
      %weights: {_ARRAY} {{sdy.sharding = #sdy.sharding<@mesh, [WEIGHTS]>}},
      %gradients: {_ARRAY} {{sdy.sharding = #sdy.sharding<@mesh, [GRADIENTS]>}},
      %rate: {_NUMBER} {{sdy.sharding = #sdy.sharding<@mesh, []>}}) -> ({_ARRAY}, {_NUMBER}) {{
    %zero = stablehlo.constant dense<0.0> : {_NUMBER}
    %squares = stablehlo.multiply %gradients, %gradients : {_ARRAY}
    %sum = stablehlo.reduce(%squares init: %zero) applies stablehlo.OPERATION
      across dimensions = [0, 1] : ({_ARRAY}, {_NUMBER}) -> {_NUMBER}
    %changed = call @changed(%weights, %gradients, %rate)
      : ({_ARRAY}, {_ARRAY}, {_NUMBER}) -> {_ARRAY}
    return %changed, %sum : {_ARRAY}, {_NUMBER}
  }}
  func.func private @changed(
      %weights: {_ARRAY}, %gradients: {_ARRAY}, %rate: {_NUMBER}) -> {_ARRAY} {{
    %rates = stablehlo.broadcast_in_dim %rate, dims = [] : ({_NUMBER}) -> {_ARRAY}
    %update = stablehlo.multiply %rates, %gradients : {_ARRAY}
    %changed = stablehlo.subtract %weights, %update : {_ARRAY}
    return %changed : {_ARRAY}
  }}
}}
"""
_ALIKE = '{"tp"}, {"data", "fsdp"}'


def _step(weights: str, gradients: str, operation: str = "add") -> bytes:
    text = _STEP.replace("WEIGHTS", weights).replace("GRADIENTS", gradients)
    return text.replace("OPERATION", operation).encode()


def _described(program: Program) -> Counter[str]:
    return Counter(map(_text, program.main.body.operations))


def _text(op: Op) -> str:
    types = ", ".join(str(result.type) for result in op.results)
    groups = sorted(op.attrs.groups.listed()) if isinstance(op.attrs, CollectiveAttrs) else ""
    return f"{op.kind} {types} {groups}"


@pytest.mark.parametrize("sharding", [_ALIKE, '{}, {"tp"}', '{"tp"}, {"fsdp", "data"}'])
def test_operations_are_those_of_xlas_partitioner(sharding: str) -> None:
    source = _step(sharding, sharding)
    own = load_per_device(source, name="step").program
    assert _OWN in own.assumptions[0]
    by_xla = load_source(partition(source, name="step").text, name="step")
    assert _described(own) == _described(by_xla)
    types = [str(value.type) for value in own.main.body.arguments]
    assert types == [str(value.type) for value in by_xla.main.body.arguments]


@pytest.mark.parametrize(
    "source",
    [
        _step(_ALIKE, '{}, {"tp"}'),
        _step(_ALIKE, '{"tp"}, {?}'),
        _step('{}, {"tp"}', '{}, {"tp"}', "maximum"),
        _step(_ALIKE, _ALIKE).replace(b"8x4", b"8x6"),
    ],
    ids=["moved", "open", "no sum", "uneven"],
)
def test_what_has_to_be_moved_is_the_partitioners(source: bytes) -> None:
    program = load_per_device(source, name="step").program
    assert "XLA's partitioner" in program.assumptions[0]
