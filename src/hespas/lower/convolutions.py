"""Write out what cuDNN's convolutions can't take: images with gaps, and uneven padding.

A convolution whose image has gaps (``lhs_dilation``) is the gradient of one with strides if its
kernel is reversed, a constant, or one element large, and it has one group of features: the library
has a kernel for that. One whose kernel is larger than its image is computed with the two exchanged.
Any other one, as a transposed convolution that a network computes with, is a plain convolution of
the image with the gaps written out: zeros are multiplied like all else.

The library pads both ends of a dimension alike. Where a convolution does not, its image is padded
before; the gradient of an image is made with what was padded, which is sliced off.

Source: openxla/xla, ``ConvRewriter``, ``ConvPaddingLegalization`` (xla/service/gpu/transforms) and
``AlgebraicSimplifier`` (Apache License 2.0), and what jaxlib 0.10.2 compiles for H100.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.program.attrs import ConvolutionAttrs, DimensionsAttrs
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op


def with_images_written(operations: Iterable[Op]) -> Iterator[Op]:
    """Yield operations; images that the library can't take as they are are written before."""
    producer: dict[Value, Op] = {}
    for op in operations:
        producer.update(dict.fromkeys(op.results, op))
        if op.kind != "convolution" or not isinstance(op.attrs, ConvolutionAttrs):
            yield op
        elif _is_exchanged(op, op.attrs):
            yield from _exchanged(op, op.attrs)
        elif max(op.attrs.lhs_dilation, default=1) == 1:
            yield from _forward(op, op.attrs)
        elif _is_gradient(op, op.attrs, producer.get(op.operands[1])):
            yield from _gradient(op, op.attrs)
        else:
            yield from _written(op, op.attrs)


def _forward(op: Op, attrs: ConvolutionAttrs) -> Iterator[Op]:
    """Yield a convolution without gaps, or the gradient of a kernel, with its image padded."""
    image, kernel, made = [tensor_of(it).shape for it in (*op.operands, *op.results)]
    even = [
        _is_even(
            low=low,
            size=image[attrs.input_spatial[at]],
            window=made[attrs.output_spatial[at]],
            stride=attrs.rhs_dilation[at],
            count=kernel[attrs.kernel_spatial[at]],
        )
        if attrs.rhs_dilation[at] > 1
        else low == high
        for at, (low, high) in enumerate(attrs.padding)
    ]
    if all(even):
        yield op
        return
    yield from _written(op, attrs)


def _gradient(op: Op, attrs: ConvolutionAttrs) -> Iterator[Op]:
    """Yield the gradient of an image, which is sliced where its padding was uneven."""
    image, kernel, made = [tensor_of(it).shape for it in (*op.operands, *op.results)]
    lows = [
        kernel[at] - 1 - low
        for at, (low, _) in zip(attrs.kernel_spatial, attrs.padding, strict=True)
    ]
    even = [
        _is_even(
            low=low,
            size=made[attrs.output_spatial[at]],
            window=kernel[attrs.kernel_spatial[at]],
            stride=attrs.lhs_dilation[at],
            count=image[attrs.input_spatial[at]],
        )
        for at, low in enumerate(lows)
    ]
    if all(even):
        yield op
        return
    whole = Value(type=op.results[0].type)
    yield replace(op, results=(whole,))
    yield plain_op(op, "slice", (whole,), op.results[0])


def _is_even(*, low: int, size: int, window: int, stride: int, count: int) -> bool:
    """Return whether as many windows fit with ``low`` elements added at both ends."""
    return low >= 0 and (size + 2 * low - window) // stride + 1 == count


def _is_exchanged(op: Op, attrs: ConvolutionAttrs) -> bool:
    """Return whether the image is smaller than the kernel, so that they change places."""
    if attrs.feature_group_count > 1 or attrs.batch_group_count > 1:
        return False
    image, kernel = [tensor_of(operand).shape for operand in op.operands]
    return prod(image[at] for at in attrs.input_spatial) < prod(
        kernel[at] for at in attrs.kernel_spatial
    )


def _exchanged(op: Op, attrs: ConvolutionAttrs) -> Iterator[Op]:
    """Yield what reverses a kernel, and the convolution of that with the image.

    The image is reversed by the library, which reads it as its kernel.
    """
    image, kernel = [tensor_of(operand).shape for operand in op.operands]
    wider = [
        (image[at] - 1) * attrs.lhs_dilation[axis]
        - (kernel[attrs.kernel_spatial[axis]] - 1) * attrs.rhs_dilation[axis]
        for axis, at in enumerate(attrs.input_spatial)
    ]
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
        padding=tuple(
            [
                (low + more, high + more)
                for (low, high), more in zip(attrs.padding, wider, strict=True)
            ]
        ),
        lhs_dilation=attrs.rhs_dilation,
        rhs_dilation=attrs.lhs_dilation,
    )
    reversed_ = Value(type=op.operands[1].type)
    turned = plain_op(op, "reverse", op.operands[1:], reversed_)
    yield replace(turned, attrs=DimensionsAttrs(dimensions=attrs.kernel_spatial))
    made = replace(op, operands=(reversed_, op.operands[0]), attrs=exchanged)
    if max(exchanged.lhs_dilation, default=1) > 1:
        yield from _written(made, exchanged)
    else:
        yield from _forward(made, exchanged)


def _is_gradient(op: Op, attrs: ConvolutionAttrs, made: Op | None) -> bool:
    """Return whether the library has it as a gradient; ``made`` is what makes its kernel."""
    if attrs.feature_group_count > 1:
        return False
    kernel = tensor_of(op.operands[1]).shape
    if all(kernel[at] == 1 for at in attrs.kernel_spatial):
        return True
    match made:
        case Op(kind="constant"):
            return True
        case Op(kind="reverse", attrs=DimensionsAttrs(dimensions=dimensions)):
            return set(dimensions) == set(attrs.kernel_spatial)
        case _:
            return False


def _written(op: Op, attrs: ConvolutionAttrs) -> Iterator[Op]:
    """Yield what writes the image with its gaps and padding, and the plain convolution of it."""
    image = tensor_of(op.operands[0])
    shape = list(image.shape)
    for axis, at in enumerate(attrs.input_spatial):
        low, high = attrs.padding[axis]
        shape[at] = max(0, (shape[at] - 1) * attrs.lhs_dilation[axis] + 1 + low + high)
    written = Value(type=replace(image, shape=tuple(shape)))
    yield plain_op(op, "pad", op.operands[:1], written)
    axes = len(attrs.lhs_dilation)
    plain = replace(attrs, lhs_dilation=(1,) * axes, padding=((0, 0),) * axes)
    yield replace(op, operands=(written, *op.operands[1:]), attrs=plain)
