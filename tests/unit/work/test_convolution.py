from __future__ import annotations

import pytest

from hespas.program.program import Op
from hespas.program.work import Work
from hespas.work.convolution import Direction, convolutions
from hespas.work.expand import expand, total
from hlo_programs import entry_ops


def _work(op: Op) -> Work:
    return total(expand(op))


_IMAGE, _KERNEL, _RESULT = "bf16[2,8,8,4]", "bf16[16,3,3,4]", "bf16[2,4,4,16]"


@pytest.mark.parametrize(
    ("target", "first", "second", "made", "direction"),
    [
        ("convForward", _IMAGE, _KERNEL, _RESULT, Direction.FORWARD),
        ("convBackwardInput", _RESULT, _KERNEL, _IMAGE, Direction.BACKWARD_INPUT),
        ("convBackwardFilter", _IMAGE, _RESULT, _KERNEL, Direction.BACKWARD_FILTER),
    ],
)
def test_cudnn_runs_one_convolution_in_three_directions(
    target: str, first: str, second: str, made: str, direction: Direction
) -> None:
    op, *_ = entry_ops(
        f"""
        a = {first} parameter(0)
        b = {second} parameter(1)
        c = ({made}, u8[0]) custom-call(a, b), window={{size=3x3 stride=2x2 pad=0_1x0_1}},
          dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn${target}"
        ROOT r = {made} get-tuple-element(c), index=0
        """
    )
    (convolution,) = convolutions(op)
    shapes = [convolution.image, convolution.kernel, convolution.result]
    assert [kind.shape for kind in shapes] == [(2, 8, 8, 4), (16, 3, 3, 4), (2, 4, 4, 16)]
    assert convolution.direction is direction
    # Along each axis 4 places meet 3 elements, but the last one meets padding once.
    assert convolution.products == 2 * 16 * 4 * 11 * 11
    assert _work(op).total_flops == 2 * convolution.products


def test_cudnn_adds_a_bias_and_activates() -> None:
    config = '{"cudnn_conv_backend_config":{"activation_mode":"kRelu","side_input_scale":0}}'
    op, *_ = entry_ops(
        f"""
        a = {_IMAGE} parameter(0)
        b = {_KERNEL} parameter(1)
        bias = f32[16] parameter(2)
        c = ({_RESULT}, u8[64]) custom-call(a, b, bias), window={{size=3x3 stride=2x2 pad=0_1x0_1}},
          dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBiasActivationForward",
          backend_config={config}
        ROOT r = {_RESULT} get-tuple-element(c), index=0
        """
    )
    (convolution,) = convolutions(op)
    assert (convolution.has_bias, convolution.has_side_input) == (True, False)
    assert convolution.activation == "kRelu"
    work = _work(op)
    assert work.total_flops == convolution.flops + 2 * (2 * 4 * 4 * 16)
    assert work.bytes_written == 2 * (2 * 4 * 4 * 16)
