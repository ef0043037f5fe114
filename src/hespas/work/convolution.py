"""The convolutions that an operation runs, of any direction, by the compiler or a library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from hespas.program.attrs import (
    CONVOLUTION_BACKWARD_FILTER,
    CONVOLUTION_BACKWARD_INPUT,
    CONVOLUTION_BIAS_ACTIVATION,
    CONVOLUTION_FORWARD,
    ConvolutionAttrs,
    CustomCallAttrs,
    FusionAttrs,
)
from hespas.program.operations.contraction import convolution_macs, multiplier_of
from hespas.program.operations.sizes import operand, result
from hespas.program.program import Op, nested_ops
from hespas.program.types import TensorType
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
    """What a convolution computes from what."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_FILTER = "backward_filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution, described by its forward form whatever its direction.

    ``image``, ``kernel`` and ``result`` are the tensors of the forward convolution as they lie
    in memory: a backward one computes ``image`` or ``kernel`` from the other and ``result``.
    ``attrs`` places their dimensions and gives the window. ``multiplied`` is a key of
    `Work.flops`. ``is_library`` is true of cuDNN's, false of those that a compiler writes itself.
    ``activation`` is cuDNN's name of what follows (``kRelu``), empty for nothing.
    """

    direction: Direction
    image: TensorType
    kernel: TensorType
    result: TensorType
    attrs: ConvolutionAttrs
    multiplied: str
    flops_per_product: int
    is_library: bool
    has_bias: bool = False
    has_side_input: bool = False
    activation: str = ""

    @property
    def products(self) -> int:
        """Multiply-accumulates of real elements, the same in every direction."""
        image, kernel, made = self.image.shape, self.kernel.shape, self.result.shape
        return convolution_macs(self.attrs, image, kernel, made)

    @property
    def flops(self) -> int:
        """The FLOPs of the products and their sums."""
        return self.products * self.flops_per_product


def convolutions(op: Op) -> tuple[Convolution, ...]:
    """Return every convolution of an operation, those in a fusion's body too.

    Empty for an operation without any; raises `CostError` where cuDNN's configuration cannot be
    read. Loops and branches are not opened.
    """
    match op.attrs:
        case ConvolutionAttrs():
            return (_plain(op, op.attrs),)
        case CustomCallAttrs(target=target, convolution=ConvolutionAttrs() as attrs) if (
            target in CUDNN_CONVOLUTIONS
        ):
            return (_library(op, target, attrs),)
        case FusionAttrs():
            return tuple(_inside(op))
        case _ if op.kind == "async_start":
            started = [inner for region in op.regions for inner in region.operations]
            return tuple([each for inner in started for each in convolutions(inner)])
        case _:
            return ()


def _inside(op: Op) -> Iterator[Convolution]:
    for inner in nested_ops(op.regions[0]):
        if isinstance(inner.attrs, ConvolutionAttrs):
            yield _plain(inner, inner.attrs)


def _plain(op: Op, attrs: ConvolutionAttrs) -> Convolution:
    return _made(Direction.FORWARD, operand(op, 0), operand(op, 1), result(op), attrs)


def _library(op: Op, target: str, attrs: ConvolutionAttrs) -> Convolution:
    """Read a call of cuDNN: a backward one has its forward convolution's window and places.

    Source: openxla/xla, ``xla/service/gpu/cublas_cudnn.h``.
    """
    first, second, made = operand(op, 0), operand(op, 1), result(op)
    match target:
        case _ if target == CONVOLUTION_BACKWARD_INPUT:
            return _made(Direction.BACKWARD_INPUT, made, second, first, attrs, is_library=True)
        case _ if target == CONVOLUTION_BACKWARD_FILTER:
            return _made(Direction.BACKWARD_FILTER, first, made, second, attrs, is_library=True)
        case _:
            forward = _made(Direction.FORWARD, first, second, made, attrs, is_library=True)
            return _with_epilogue(forward, op)


def _made(
    direction: Direction,
    image: TensorType,
    kernel: TensorType,
    made: TensorType,
    attrs: ConvolutionAttrs,
    *,
    is_library: bool = False,
) -> Convolution:
    given = {
        Direction.FORWARD: (image, kernel),
        Direction.BACKWARD_INPUT: (made, kernel),
        Direction.BACKWARD_FILTER: (image, made),
    }[direction]
    multiplier = multiplier_of(given[0].element, given[1].element, attrs.precision, "")
    return Convolution(
        direction=direction,
        image=image,
        kernel=kernel,
        result=made,
        attrs=attrs,
        multiplied=multiplier.type_name,
        flops_per_product=multiplier.flops,
        is_library=is_library,
    )


def _with_epilogue(forward: Convolution, op: Op) -> Convolution:
    """Add what cuDNN does before it writes: operands beyond two are a bias and a side input."""
    config = convolution_config(op)
    mode = config.activation_mode
    return replace(
        forward,
        has_bias=len(op.operands) > 2,
        has_side_input=len(op.operands) > 3 and config.side_input_scale != 0,
        activation="" if mode in ("", "kNone") else mode,
    )
