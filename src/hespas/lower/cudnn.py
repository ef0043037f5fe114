"""Which of cuDNN's kernels a convolution calls, and in which order it takes the dimensions.

A convolution with a reversed kernel is the gradient of an image; one whose window is larger than
its result, or has gaps, is the gradient of a kernel. cuDNN has kernels for both, which take the
kernel as it is: nothing is reversed. They are called, as forward ones are, with the window of the
forward convolution.

Kernels for tensor cores take features as the fastest dimension: images as batch, spatial
dimensions, features; kernels as output features, spatial dimensions, input features.

Source: openxla/xla, ``ConvRewriter`` and ``HeuristicLayoutAssignment`` (xla/service/gpu/transforms:
conv_rewriter.cc, layout_assignment.cc, Apache License 2.0), and what jaxlib 0.10.2 compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.lower.layouts import Order, default_order
from hespas.program.attrs import (
    CONVOLUTION_BACKWARD_FILTER,
    CONVOLUTION_BACKWARD_INPUT,
    CONVOLUTION_FORWARD,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
)
from hespas.program.program import Op, Value
from hespas.program.types import TensorType

_HOPPER = 9.0
_VOLTA = 7.0
_HALVES = frozenset({"bf16", "f16"})


def with_cudnn_calls(operations: Sequence[Op], results: Iterable[Value]) -> list[Op]:
    """Return operations in which convolutions call cuDNN; ``results`` are those of the block."""
    if not any(op.kind == "convolution" for op in operations):
        return list(operations)
    producer = {result: op for op in operations for result in op.results}
    made = [
        _call(op, op.attrs, [producer.get(value) for value in op.operands])
        if op.kind == "convolution" and isinstance(op.attrs, ConvolutionAttrs)
        else op
        for op in operations
    ]
    read = {value for op in made for value in op.operands}.union(results)
    return [op for op in made if op.kind != "reverse" or not read.isdisjoint(op.results)]


def _call(op: Op, attrs: ConvolutionAttrs, makers: Sequence[Op | None]) -> Op:
    image, kernel = op.operands
    before, maker = makers
    window = [tensor_of(kernel).shape[at] for at in attrs.kernel_spatial]
    straight = _reversed_by(maker, attrs.kernel_spatial)
    if straight is not None and prod(window) == 1:  # which changes nothing
        kernel, straight = straight, None
    if attrs.feature_group_count == 1 and (
        straight is not None or max(attrs.lhs_dilation, default=1) > 1
    ):
        forward = _of_input(attrs, window)
        if forward is not None:
            return _called(op, CONVOLUTION_BACKWARD_INPUT, forward, (image, straight or kernel))
    elif _reversed_by(before, attrs.input_spatial) is None and _makes_kernel(op, attrs, window):
        return _called(op, CONVOLUTION_BACKWARD_FILTER, _of_filter(attrs), (image, kernel))
    return _called(op, CONVOLUTION_FORWARD, attrs, (image, kernel))


def _called(op: Op, target: str, attrs: ConvolutionAttrs, operands: tuple[Value, ...]) -> Op:
    return replace(
        op,
        kind="custom_call",
        operands=operands,
        attrs=CustomCallAttrs(
            target=target,
            backend_config="",
            called_functions=(),
            convolution=attrs,
            precision=attrs.precision,
        ),
        attributes=(("call_target_name", f'"{target}"'),),
    )


def _reversed_by(maker: Op | None, spatial: Order) -> Value | None:
    """Return what an operation reverses along all spatial dimensions; None of any other one."""
    match maker:
        case Op(kind="reverse", attrs=DimensionsAttrs(dimensions=dimensions)):
            return maker.operands[0] if set(dimensions) == set(spatial) else None
        case _:
            return None


def _of_input(attrs: ConvolutionAttrs, window: Sequence[int]) -> ConvolutionAttrs | None:
    """Return the forward convolution whose image's gradient this is; None if there is none."""
    lows = [
        (size - 1) * gaps - low
        for size, gaps, (low, _) in zip(window, attrs.rhs_dilation, attrs.padding, strict=True)
    ]
    if max(attrs.strides, default=1) > 1 or min(lows, default=0) < 0:
        return None
    return replace(
        attrs,
        input_batch=attrs.output_batch,
        input_feature=attrs.output_feature,
        input_spatial=attrs.output_spatial,
        kernel_input_feature=attrs.kernel_output_feature,
        kernel_output_feature=attrs.kernel_input_feature,
        output_batch=attrs.input_batch,
        output_feature=attrs.input_feature,
        output_spatial=attrs.input_spatial,
        strides=attrs.lhs_dilation,
        padding=tuple([(low, low) for low in lows]),
        lhs_dilation=attrs.strides,
    )


def _makes_kernel(op: Op, attrs: ConvolutionAttrs, window: Sequence[int]) -> bool:
    """Return whether a convolution is the gradient of a kernel: its window is an image."""
    if attrs.feature_group_count > 1 or max((*attrs.strides, *attrs.lhs_dilation), default=1) > 1:
        return False
    made = [tensor_of(op.results[0]).shape[at] for at in attrs.output_spatial]
    is_small = any(size <= places for size, places in zip(window, made, strict=True))
    return not is_small


def _of_filter(attrs: ConvolutionAttrs) -> ConvolutionAttrs:
    """Return the forward convolution whose kernel's gradient this is."""
    return replace(
        attrs,
        input_batch=attrs.input_feature,
        input_feature=attrs.input_batch,
        kernel_input_feature=attrs.output_batch,
        kernel_output_feature=attrs.output_feature,
        kernel_spatial=attrs.output_spatial,
        output_batch=attrs.kernel_input_feature,
        output_feature=attrs.kernel_output_feature,
        output_spatial=attrs.kernel_spatial,
        strides=attrs.rhs_dilation,
        padding=tuple([(low, low) for low, _ in attrs.padding]),
        rhs_dilation=attrs.strides,
        feature_group_count=attrs.batch_group_count,
        batch_group_count=1,
    )


def taken_orders(
    op: Op, compute_capability: float | None
) -> tuple[tuple[Order, ...], Order] | None:
    """Return the orders of a cuDNN call's operands and of its result; None of any other call.

    A part of unknown ``compute_capability`` is taken to be of Hopper's generation or later.
    """
    attrs = op.attrs.convolution if isinstance(op.attrs, CustomCallAttrs) else None
    if attrs is None or not isinstance(op.attrs, CustomCallAttrs):
        return None
    is_last = _has_features_last(op, attrs, compute_capability)
    image = _order(attrs.input_batch, attrs.input_spatial, attrs.input_feature, is_last=is_last)
    kernel = _order(
        attrs.kernel_output_feature,
        attrs.kernel_spatial,
        attrs.kernel_input_feature,
        is_last=is_last,
    )
    result = _order(attrs.output_batch, attrs.output_spatial, attrs.output_feature, is_last=is_last)
    match op.attrs.target:
        case target if target == CONVOLUTION_BACKWARD_INPUT:
            orders, made = (result, kernel), image
        case target if target == CONVOLUTION_BACKWARD_FILTER:
            orders, made = (image, result), kernel
        case _:
            orders, made = (image, kernel, (), result), result
    taken = [_counted(order, value) for order, value in zip(orders, op.operands, strict=False)]
    if len(op.operands) > 2:
        taken[2] = default_order(tensor_of(op.operands[2]).shape)
    return tuple(taken), _counted(made, op.results[0])


def _has_features_last(op: Op, attrs: ConvolutionAttrs, compute_capability: float | None) -> bool:
    element = tensor_of(op.operands[0]).element.name
    axes = len(attrs.input_spatial)
    if compute_capability is None or compute_capability >= _HOPPER:
        return axes < 3 and element != "f64"
    return axes == 2 and element in _HALVES and compute_capability >= _VOLTA


def _order(first: int, spatial: Order, feature: int, *, is_last: bool) -> Order:
    return (first, *spatial, feature) if is_last else (first, feature, *spatial)


def _counted(order: Order, value: Value) -> Order:
    """Return an order without the dimensions of one element."""
    shape = value.type.shape if isinstance(value.type, TensorType) else ()
    return tuple([at for at in order if shape[at] > 1])
