"""Convolutions as XLA's GPU pipeline calls cuDNN for them.

A convolution whose image has gaps (``lhs_dilation``) is the gradient of one with strides if its
kernel is reversed, a constant, or one element large, and it has one group of features: the library
has a kernel for that. One whose kernel is larger than its image is computed with the two exchanged.
Any other one, as a transposed convolution that a network computes with, is a plain convolution of
the image with the gaps written out: zeros are multiplied like all else. The library pads both ends
of a dimension alike: where a convolution does not, its image is padded before, and the gradient of
an image is made with what was padded, which is sliced off.

A convolution with a reversed kernel is the gradient of an image; one whose window is larger than
its result, or has gaps, is the gradient of a kernel. cuDNN has kernels for both, which take the
kernel as it is: nothing is reversed. They are called with the window of the forward convolution.
Kernels for tensor cores take features as the fastest dimension: images as batch, spatial
dimensions, features; kernels as output features, spatial dimensions, input features.

A forward convolution that only an addition reads adds it itself: a number for each feature, and
then another value of the result's size. A ReLU that alone reads what comes of these is the
library's, too. Depthwise convolutions have no such kernel.

Source: openxla/xla, ``ConvRewriter``, ``ConvPaddingLegalization``, ``HeuristicLayoutAssignment``,
``CudnnFusedConvRewriter`` (xla/service/gpu/transforms) and ``AlgebraicSimplifier`` (Apache License
2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from hespas.lower.layouts import Order, default_order
from hespas.lower.roles import is_zero
from hespas.program.attrs import (
    CONVOLUTION_BACKWARD_FILTER,
    CONVOLUTION_BACKWARD_INPUT,
    CONVOLUTION_BIAS_ACTIVATION,
    CONVOLUTION_FORWARD,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
)
from hespas.program.program import Block, Op, Value, shape_of, tensor_of
from hespas.program.rewrite import Builder, Pattern, call_op, plain_op
from hespas.program.types import TensorType
from hespas.program.uses import Uses

_HOPPER, _VOLTA = 9.0, 7.0
_HALVES = frozenset({"bf16", "f16"})


def _written_image(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return a convolution with its image written as the library takes it."""
    attrs = op.attrs
    if not isinstance(attrs, ConvolutionAttrs):
        return None
    if _is_exchanged(op, attrs):
        return _exchanged(op, attrs)
    if max(attrs.lhs_dilation, default=1) == 1:
        return _forward(op, attrs)
    if _is_gradient(op, attrs, uses.producer(op.operands[1])):
        return _gradient(op, attrs)
    return _written(op, attrs)


WRITTEN_IMAGES = Pattern(kinds=("convolution",), change=_written_image)


def _forward(op: Op, attrs: ConvolutionAttrs) -> Sequence[Op]:
    """Return a convolution without gaps, its image padded if needed."""
    image, kernel, result = map(shape_of, (*op.operands, *op.results))
    even = [
        _is_even(
            low=low,
            size=image[attrs.input_spatial[axis]],
            window=result[attrs.output_spatial[axis]],
            stride=attrs.rhs_dilation[axis],
            count=kernel[attrs.kernel_spatial[axis]],
        )
        if attrs.rhs_dilation[axis] > 1
        else low == high
        for axis, (low, high) in enumerate(attrs.padding)
    ]
    return [op] if all(even) else _written(op, attrs)


def _gradient(op: Op, attrs: ConvolutionAttrs) -> Sequence[Op]:
    """Return an image's gradient, sliced where its padding was uneven."""
    image, kernel, result = map(shape_of, (*op.operands, *op.results))
    even = [
        _is_even(
            low=kernel[attrs.kernel_spatial[axis]] - 1 - low,
            size=result[attrs.output_spatial[axis]],
            window=kernel[attrs.kernel_spatial[axis]],
            stride=attrs.lhs_dilation[axis],
            count=image[attrs.input_spatial[axis]],
        )
        for axis, (low, _) in enumerate(attrs.padding)
    ]
    if all(even):
        return [op]
    padded = Value(type=op.results[0].type)
    return [replace(op, results=(padded,)), plain_op(op, "slice", (padded,), op.results[0])]


def _is_even(*, low: int, size: int, window: int, stride: int, count: int) -> bool:
    """Return whether padding both ends by ``low`` gives ``count`` windows."""
    return low >= 0 and (size + 2 * low - window) // stride + 1 == count


def _is_exchanged(op: Op, attrs: ConvolutionAttrs) -> bool:
    """Return whether image and kernel change places."""
    if attrs.feature_group_count > 1 or attrs.batch_group_count > 1:
        return False
    image, kernel = map(shape_of, op.operands)
    return prod([image[axis] for axis in attrs.input_spatial]) < prod(
        [kernel[axis] for axis in attrs.kernel_spatial]
    )


def _exchanged(op: Op, attrs: ConvolutionAttrs) -> Sequence[Op]:
    """Return the convolution of a reversed kernel with the image as its kernel."""
    image, kernel = map(shape_of, op.operands)
    wider = [
        (image[dimension] - 1) * attrs.lhs_dilation[axis]
        - (kernel[attrs.kernel_spatial[axis]] - 1) * attrs.rhs_dilation[axis]
        for axis, dimension in enumerate(attrs.input_spatial)
    ]
    padding = zip(attrs.padding, wider, strict=True)
    exchanged = replace(
        attrs,
        input_batch=attrs.kernel_output_feature,
        input_feature=attrs.kernel_input_feature,
        input_spatial=attrs.kernel_spatial,
        kernel_input_feature=attrs.input_feature,
        kernel_output_feature=attrs.input_batch,
        kernel_spatial=attrs.input_spatial,
        output_batch=attrs.output_feature,
        output_feature=attrs.output_batch,
        padding=tuple([(low + more, high + more) for (low, high), more in padding]),
        lhs_dilation=attrs.rhs_dilation,
        rhs_dilation=attrs.lhs_dilation,
    )
    build, spatial = Builder(op), DimensionsAttrs(dimensions=attrs.kernel_spatial)
    turned = build.add("reverse", op.operands[1:], op.operands[1].type, spatial)
    convolution = replace(op, operands=(turned, op.operands[0]), attrs=exchanged)
    has_gaps = max(exchanged.lhs_dilation, default=1) > 1
    return (*build.operations, *(_written if has_gaps else _forward)(convolution, exchanged))


def _is_gradient(op: Op, attrs: ConvolutionAttrs, kernel_maker: Op | None) -> bool:
    """Return whether the library has a convolution as a gradient."""
    if attrs.feature_group_count > 1:
        return False
    kernel = shape_of(op.operands[1])
    if all(kernel[axis] == 1 for axis in attrs.kernel_spatial):
        return True
    is_constant = kernel_maker is not None and kernel_maker.kind == "constant"
    return is_constant or _reversed_by(kernel_maker, attrs.kernel_spatial) is not None


def _written(op: Op, attrs: ConvolutionAttrs) -> Sequence[Op]:
    """Return a plain convolution of an image with written gaps."""
    shape = [*shape_of(op.operands[0])]
    for axis, dimension in enumerate(attrs.input_spatial):
        dilated = (shape[dimension] - 1) * attrs.lhs_dilation[axis] + 1
        shape[dimension] = max(0, dilated + sum(attrs.padding[axis]))
    build, axes = Builder(op), len(attrs.lhs_dilation)
    kind = replace(tensor_of(op.operands[0]), shape=tuple(shape))
    written = build.add("pad", op.operands[:1], kind)
    plain = replace(attrs, lhs_dilation=(1,) * axes, padding=((0, 0),) * axes)
    return (*build.operations, replace(op, operands=(written, *op.operands[1:]), attrs=plain))


def _called(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the call of the cuDNN kernel that computes a convolution."""
    attrs = op.attrs
    if not isinstance(attrs, ConvolutionAttrs):
        return None
    image, kernel = op.operands
    window = [shape_of(kernel)[axis] for axis in attrs.kernel_spatial]
    straight = _reversed_by(uses.producer(kernel), attrs.kernel_spatial)
    if straight is not None and prod(window) == 1:  # which changes nothing
        kernel, straight = straight, None
    has_gaps = max(attrs.lhs_dilation, default=1) > 1
    if attrs.feature_group_count == 1 and (straight is not None or has_gaps):
        forward = _of_input(attrs, window)
        if forward is not None:
            return [_call(op, CONVOLUTION_BACKWARD_INPUT, forward, (image, straight or kernel))]
    elif _reversed_by(uses.producer(image), attrs.input_spatial) is None and _makes_kernel(
        op, attrs, window
    ):
        return [_call(op, CONVOLUTION_BACKWARD_FILTER, _of_filter(attrs), (image, kernel))]
    return [_call(op, CONVOLUTION_FORWARD, attrs, (image, kernel))]


CUDNN_CALLS = Pattern(kinds=("convolution",), change=_called)


def _call(
    op: Op,
    target: str,
    attrs: ConvolutionAttrs,
    operands: tuple[Value, ...],
    *,
    config: str = "",
) -> Op:
    call = CustomCallAttrs(
        target=target, backend_config=config, convolution=attrs, precision=attrs.precision
    )
    return call_op(op, call, operands, op.results)


def _reversed_by(maker: Op | None, spatial: Order) -> Value | None:
    """Return an operand reversed along all spatial dimensions, if any."""
    if maker is None or maker.kind != "reverse" or not isinstance(maker.attrs, DimensionsAttrs):
        return None
    return maker.operands[0] if set(maker.attrs.dimensions) == set(spatial) else None


def _of_input(attrs: ConvolutionAttrs, window: Sequence[int]) -> ConvolutionAttrs | None:
    """Return the forward convolution of an image's gradient, if any."""
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
    """Return whether a convolution is a kernel's gradient."""
    if attrs.feature_group_count > 1 or max((*attrs.strides, *attrs.lhs_dilation), default=1) > 1:
        return False
    positions = [shape_of(op.results[0])[axis] for axis in attrs.output_spatial]
    return all(size > places for size, places in zip(window, positions, strict=True))


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


def convolution_of(op: Op | None) -> ConvolutionAttrs | None:
    """Return a cuDNN call's convolution; None of anything else."""
    if op is None or not isinstance(op.attrs, CustomCallAttrs):
        return None
    return op.attrs.convolution


def _with_addition(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the forward convolution that adds what an addition adds to it."""
    for value, addend in (op.operands, op.operands[::-1]):
        call = _alone(value, uses)
        attrs = convolution_of(call)
        if call is None or attrs is None or value is addend:
            continue
        bias, side = _added_by(call, uses)
        vector = None if bias else _bias(addend, attrs.output_feature, uses)
        if vector is not None:
            return _adding(op, call, attrs, bias=vector, side=side)
        if side is None:
            return _adding(op, call, attrs, bias=bias, side=addend)
    return None


def _with_activation(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the forward convolution that does the ReLU behind it."""
    for value, threshold in (op.operands, op.operands[::-1]):
        call = _alone(value, uses)
        attrs = convolution_of(call)
        if call is not None and attrs is not None and is_zero(threshold, uses):
            bias, side = _added_by(call, uses)
            return _adding(op, call, attrs, bias=bias, side=side, activation="kRelu")
    return None


CONVOLUTION_ADDITIONS = Pattern(kinds=("add",), change=_with_addition)
CONVOLUTION_ACTIVATIONS = Pattern(kinds=("maximum",), change=_with_activation)


def _alone(value: Value, uses: Uses) -> Op | None:
    """Return a value's forward convolution if read only once."""
    call = uses.producer(value)
    attrs = convolution_of(call)
    if call is None or attrs is None or uses.count(value) != 1:
        return None
    assert isinstance(call.attrs, CustomCallAttrs)  # noqa: S101 - it has a convolution
    features = shape_of(call.operands[0])[attrs.input_feature]
    is_depthwise = attrs.feature_group_count > 1 and attrs.feature_group_count == features
    is_plain = call.attrs.target == CONVOLUTION_FORWARD and not is_depthwise
    return call if is_plain or call.attrs.backend_config.startswith(_ADDS) else None


def _added_by(call: Op, uses: Uses) -> tuple[Value | None, Value | None]:
    """Return the vector and the value that a convolution already adds."""
    bias, side = [*call.operands[2:], None, None][:2]
    maker = None if bias is None else uses.producer(bias)
    return (None if maker is not None and maker.kind == "constant" else bias), side


def _bias(value: Value, feature: int, uses: Uses) -> Value | None:
    """Return the vector that a value repeats for each feature, if any."""
    maker = uses.producer(value)
    if maker is None or maker.kind != "broadcast_in_dim":
        return None
    assert isinstance(maker.attrs, DimensionsAttrs)  # noqa: S101 - it is a broadcast
    (source,) = maker.operands
    sizes = zip(maker.attrs.dimensions, shape_of(source), strict=True)
    return source if [place for place, size in sizes if size > 1] == [feature] else None


def _adding(
    op: Op,
    call: Op,
    attrs: ConvolutionAttrs,
    *,
    bias: Value | None,
    side: Value | None,
    activation: str = "kNone",
) -> Sequence[Op]:
    """Return a convolution with an addend; the library adds zeros without a bias."""
    build = Builder(op)
    if bias is None:
        kind = tensor_of(op.results[0])
        size = (kind.shape[attrs.output_feature],)
        bias = build.add("constant", (), TensorType(element=kind.element, shape=size))
    operands = (*call.operands[:2], bias, *(() if side is None else (side,)))
    scale = f'"side_input_scale":{int(side is not None)}}}}}'
    config = f'{_CONFIG}"activation_mode":"{activation}",{scale}'
    convolution = _call(call, CONVOLUTION_BIAS_ACTIVATION, attrs, operands, config=config)
    return (*build.operations, replace(convolution, results=op.results))


_CONFIG = '{"cudnn_conv_backend_config":{'
_ADDS = f'{_CONFIG}"activation_mode":"kNone"'


def without_unread_calls(block: Block) -> Block:
    """Return a block without the convolutions that others stand for."""
    uses = Uses.of_block(block)
    operations = tuple([
        op
        for op in block.operations
        if convolution_of(op) is None or uses.count(op.results[0])
    ])  # fmt: skip
    return Block(arguments=block.arguments, operations=operations)


def cudnn_orders(
    op: Op, compute_capability: float | None
) -> tuple[tuple[Order, ...], Order] | None:
    """Return a cuDNN call's operand and result orders, if one.

    A part of unknown ``compute_capability`` is taken to be of Hopper's generation or later.
    """
    attrs = convolution_of(op)
    if attrs is None or not isinstance(op.attrs, CustomCallAttrs):
        return None
    is_last = _has_features_last(op, attrs, compute_capability)

    def order(first: int, spatial: Order, feature: int) -> Order:
        return (first, *spatial, feature) if is_last else (first, feature, *spatial)

    image = order(attrs.input_batch, attrs.input_spatial, attrs.input_feature)
    kernel = order(attrs.kernel_output_feature, attrs.kernel_spatial, attrs.kernel_input_feature)
    result = order(attrs.output_batch, attrs.output_spatial, attrs.output_feature)
    orders, result_order = {
        CONVOLUTION_BACKWARD_INPUT: ((result, kernel), image),
        CONVOLUTION_BACKWARD_FILTER: ((image, result), kernel),
    }.get(op.attrs.target, ((image, kernel, (), result), result))
    read = [_counted(order, value) for order, value in zip(orders, op.operands, strict=False)]
    if len(op.operands) > 2:
        read[2] = default_order(shape_of(op.operands[2]))
    return tuple(read), _counted(result_order, op.results[0])


def _has_features_last(op: Op, attrs: ConvolutionAttrs, compute_capability: float | None) -> bool:
    element = tensor_of(op.operands[0]).element.name
    axes = len(attrs.input_spatial)
    if compute_capability is None or compute_capability >= _HOPPER:
        return axes < 3 and element != "f64"
    return axes == 2 and element in _HALVES and compute_capability >= _VOLTA


def _counted(order: Order, value: Value) -> Order:
    """Return an order without the dimensions of one element."""
    shape = shape_of(value)
    return tuple([axis for axis in order if shape[axis] > 1])
