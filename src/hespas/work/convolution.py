"""Describe the convolutions that an operation runs, in either direction."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import chain

from hespas.base.frozen import frozen
from hespas.program.attrs import (
    CONVOLUTION_BACKWARD_FILTER,
    CONVOLUTION_BACKWARD_INPUT,
    CONVOLUTION_BIAS_ACTIVATION,
    CONVOLUTION_FORWARD,
    ConvolutionAttrs,
    CustomCallAttrs,
)
from hespas.program.operations.contraction import convolution_macs, multiplier_of
from hespas.program.operations.traits import operand, result
from hespas.program.program import Op, started_ops
from hespas.program.types import TensorType
from hespas.work.fusion import operations_of
from hespas.work.library_config import convolution_config

_GRAPH = "__cudnn$convForwardGraph"

CUDNN_CONVOLUTIONS = frozenset(
    {
        CONVOLUTION_FORWARD,
        CONVOLUTION_BACKWARD_INPUT,
        CONVOLUTION_BACKWARD_FILTER,
        CONVOLUTION_BIAS_ACTIVATION,
        _GRAPH,
    }
)


class Direction(Enum):
    """Which tensor a convolution computes."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_FILTER = "backward_filter"


@frozen
class Convolution:
    """A convolution in its forward form, whatever its direction.

    ``image``, ``kernel`` and ``result`` are the tensors of the forward convolution as they lie
    in memory: a backward one computes ``image`` or ``kernel`` from the other and ``result``.
    ``attrs`` gives the order of their dimensions and the window. ``multiplied`` is a key of
    `Work.flops`.
    ``activation`` is cuDNN's name of the activation that follows (``kRelu``), empty for none.
    """

    direction: Direction
    image: TensorType
    kernel: TensorType
    result: TensorType
    attrs: ConvolutionAttrs
    multiplied: str
    flops_per_product: int
    has_bias: bool = False
    has_side_input: bool = False
    activation: str = ""

    @property
    def products(self) -> int:
        """Multiply-accumulates of real elements, equal in every direction."""
        image, kernel, output = self.image.shape, self.kernel.shape, self.result.shape
        return convolution_macs(self.attrs, image, kernel, output)

    @property
    def flops(self) -> int:
        """The FLOPs of the products and their sums."""
        return self.products * self.flops_per_product


def convolutions(op: Op) -> tuple[Convolution, ...]:
    """Return the convolutions of an operation or fusion.

    Raises `CostError` if cuDNN's configuration cannot be read. Loops and branches are not opened.
    """
    if op.kind == "async_start":
        return tuple(chain.from_iterable(map(convolutions, started_ops(op))))
    return tuple([described for described in map(_convolution, operations_of(op)) if described])


def _convolution(op: Op) -> Convolution | None:
    """Describe one convolution; None for any other operation.

    A backward call of cuDNN has the window and dimension order of its forward one. Source:
    openxla/xla, ``xla/service/gpu/cublas_cudnn.h``.
    """
    attrs, target = op.attrs, ""
    if isinstance(attrs, CustomCallAttrs):
        target, attrs = attrs.target, attrs.convolution
    if not isinstance(attrs, ConvolutionAttrs) or (target and target not in CUDNN_CONVOLUTIONS):
        return None
    first, second, written = operand(op, 0), operand(op, 1), result(op)
    multiplier = multiplier_of(first.element, second.element, attrs.precision)
    direction, tensors = Direction.FORWARD, (first, second, written)
    if target == CONVOLUTION_BACKWARD_INPUT:
        direction, tensors = Direction.BACKWARD_INPUT, (written, second, first)
    elif target == CONVOLUTION_BACKWARD_FILTER:
        direction, tensors = Direction.BACKWARD_FILTER, (first, written, second)
    image, kernel, output = tensors
    described = Convolution(
        direction=direction,
        image=image,
        kernel=kernel,
        result=output,
        attrs=attrs,
        multiplied=multiplier.type_name,
        flops_per_product=multiplier.flops,
    )
    if not target or direction is not Direction.FORWARD:
        return described
    # Operands beyond two are a bias and a side input.
    config = convolution_config(op)
    mode = config.activation_mode
    return replace(
        described,
        has_bias=len(op.operands) > 2,
        has_side_input=len(op.operands) > 3 and config.side_input_scale != 0,
        activation="" if mode in ("", "kNone") else mode,
    )
