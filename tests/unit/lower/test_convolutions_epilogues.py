from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.convolutions import (
    CONVOLUTION_ACTIVATIONS,
    CONVOLUTION_ADDITIONS,
    CUDNN_CALLS,
    without_unread_calls,
)
from hespas.program.attrs import (
    CONVOLUTION_BIAS_ACTIVATION,
    CONVOLUTION_FORWARD,
    CustomCallAttrs,
)
from hespas.program.program import Op
from hespas.work.convolution import convolutions
from programs import main_function
from rewriting import rewritten

IMAGE, KERNEL, BIAS = "tensor<4x16x16x64xf32>", "tensor<3x3x64x64xf32>", "tensor<64xf32>"
SPREAD = f"stablehlo.broadcast_in_dim %b, dims = [3] : ({BIAS}) -> {IMAGE}"


def made(body: str, *, result: str = "%r", kernel: str = KERNEL, groups: int = 1) -> list[Op]:
    text = main_function(
        f"""%c = stablehlo.convolution(%x, %k)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{pad = [[1, 1], [1, 1]]}}
      {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
      : ({IMAGE}, {kernel}) -> {IMAGE}
    {body}
    return {result} : {IMAGE}""",
        arguments=f"%x: {IMAGE}, %k: {kernel}, %b: {BIAS}, %y: {IMAGE}",
        results=IMAGE,
    )
    *operations, end = load_source(text.encode(), name="test.mlir").main.body.operations
    rules = CUDNN_CALLS, CONVOLUTION_ADDITIONS, CONVOLUTION_ACTIVATIONS, without_unread_calls
    return rewritten(operations, *rules, results=end.operands)


def targets(operations: list[Op]) -> list[str]:
    return [op.attrs.target for op in operations if isinstance(op.attrs, CustomCallAttrs)]


def test_a_bias_and_a_residual_are_the_librarys() -> None:
    operations = made(f"""%s = {SPREAD}
    %d = stablehlo.add %c, %s : {IMAGE}
    %r = stablehlo.add %y, %d : {IMAGE}""")
    assert [op.kind for op in operations if op.kind == "add"] == []
    assert targets(operations) == [CONVOLUTION_BIAS_ACTIVATION]
    (found,) = convolutions(operations[-1])
    assert found.has_bias
    assert found.has_side_input
    assert found.activation == ""
    assert str(operations[-1].operands[2].type) == BIAS


def test_a_residual_alone_comes_with_zeros() -> None:
    operations = made(f"%r = stablehlo.add %c, %y : {IMAGE}")
    assert [op.kind for op in operations] == ["constant", "custom_call"]
    (found,) = convolutions(operations[-1])
    assert found.has_side_input


def test_a_rectifier_is_the_librarys() -> None:
    operations = made(f"""%s = {SPREAD}
    %d = stablehlo.add %c, %s : {IMAGE}
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %n = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> {IMAGE}
    %r = stablehlo.maximum %d, %n : {IMAGE}""")
    assert targets(operations) == [CONVOLUTION_BIAS_ACTIVATION]
    (found,) = convolutions(operations[-1])
    assert found.activation == "kRelu"


def test_what_another_reads_is_written_before() -> None:
    operations = made(f"""%d = stablehlo.add %c, %y : {IMAGE}
    %r = stablehlo.multiply %d, %c : {IMAGE}""")
    assert targets(operations) == [CONVOLUTION_FORWARD]
    assert [op.kind for op in operations] == ["custom_call", "add", "multiply"]


def test_depthwise_convolutions_add_nothing() -> None:
    operations = made(
        f"%r = stablehlo.add %c, %y : {IMAGE}", kernel="tensor<3x3x1x64xf32>", groups=64
    )
    assert targets(operations) == [CONVOLUTION_FORWARD]
