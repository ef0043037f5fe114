"""Multiply and sum: dots, convolutions, einsums."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

from hespas.cost.rules.positions import WindowAxis, real_pairs
from hespas.cost.rules.sizes import arithmetic_type, operand, result, traffic, wider
from hespas.cost.work import Work, flop_counts
from hespas.errors import CostError
from hespas.program.attrs import ConvolutionAttrs, DotAttrs, EinsumAttrs
from hespas.program.program import Op
from hespas.program.types import ElementType, NumberKind

_FULL_PRECISION = "HIGHEST"
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """What the hardware multiplies, and the FLOPs of one multiply-accumulate on it.

    ``type_name`` is a key of `Work.flops`.
    """

    type_name: str
    flops: int


def dot(op: Op) -> Work:
    """2 m n k: each result element is a sum over the contracted dimensions.

    Operands are read once, the result is written once.
    """
    attrs = op.attrs
    if not isinstance(attrs, DotAttrs):
        raise CostError("the dimensions of a dot are not known", location=op.location)
    lhs = operand(op, 0)
    contracted = prod([lhs.shape[at] for at in attrs.lhs_contracting])
    multiplier = multiplier_of(
        lhs.element, operand(op, 1).element, attrs.precision, attrs.algorithm
    )
    macs = result(op).element_count * contracted
    return traffic(op, flops=flop_counts(multiplier.type_name, macs * multiplier.flops))


def ragged_dot(op: Op) -> Work:
    """Count as `dot`, each row with the one matrix of its group.

    Where groups divide the contracted dimension, each of them makes a matrix of the result from
    its own rows: the result's size counts once, not for every group.
    """
    whole = dot(op)
    if not isinstance(op.attrs, DotAttrs) or not op.attrs.is_divided:
        return whole
    groups = operand(op, 2).element_count
    flops = tuple([(name, count // groups) for name, count in whole.flops])
    return replace(whole, flops=flops)


def convolution(op: Op) -> Work:
    """2 FLOPs for each product of a kernel element with a real input element."""
    attrs = op.attrs
    if not isinstance(attrs, ConvolutionAttrs):
        raise CostError("the window of a convolution is not known", location=op.location)
    image, kernel = operand(op, 0), operand(op, 1)
    macs = convolution_macs(attrs, image.shape, kernel.shape, result(op).shape)
    multiplier = multiplier_of(image.element, kernel.element, attrs.precision, "")
    return traffic(op, flops=flop_counts(multiplier.type_name, macs * multiplier.flops))


def convolution_macs(attrs: ConvolutionAttrs, image: Shape, kernel: Shape, output: Shape) -> int:
    """Count the multiply-accumulates of a convolution.

    Each output element of each batch and output feature sums over the input features of its
    group, which are the kernel's input features, and over the window, where it meets real
    elements of the image.
    """
    channels = kernel[attrs.kernel_input_feature] * output[attrs.output_feature]
    axes = window_axes(attrs, image, kernel, output)
    return output[attrs.output_batch] * channels * prod([real_pairs(axis) for axis in axes])


def window_axes(
    attrs: ConvolutionAttrs, image: Shape, kernel: Shape, output: Shape
) -> list[WindowAxis]:
    """Return a convolution's spatial dimensions."""
    return [
        WindowAxis(
            input_size=image[attrs.input_spatial[at]],
            kernel_size=kernel[attrs.kernel_spatial[at]],
            output_size=output[attrs.output_spatial[at]],
            stride=attrs.strides[at],
            padding_low=attrs.padding[at][0],
            input_dilation=attrs.lhs_dilation[at],
            kernel_dilation=attrs.rhs_dilation[at],
        )
        for at in range(len(attrs.input_spatial))
    ]


def einsum(op: Op) -> Work:
    """2 FLOPs for each combination of indices, with all letters of the equation apart."""
    sizes = _letter_sizes(op)
    multiplier = multiplier_of(operand(op, 0).element, operand(op, 1).element, (), "")
    return traffic(op, flops=flop_counts(multiplier.type_name, sizes * multiplier.flops))


def unary_einsum(op: Op) -> Work:
    """Sum over the letters that the result lacks: one addition for each element summed."""
    taken = operand(op, 0)
    additions = max(0, _letter_sizes(op) - result(op).element_count)
    return traffic(op, flops=flop_counts(arithmetic_type(taken.element), additions))


def _letter_sizes(op: Op) -> int:
    attrs = op.attrs
    if not isinstance(attrs, EinsumAttrs) or "." in attrs.equation:
        raise CostError("the equation of an einsum is not known", location=op.location)
    sizes: dict[str, int] = {}
    terms = attrs.equation.partition("->")[0].split(",")
    for at, letters in enumerate(terms):
        sizes.update(zip(letters.strip(), operand(op, at).shape, strict=True))
    return prod(sizes.values())


_ALGORITHM_TYPE = re.compile(r"(?:lhs|rhs)_precision_type = (\w+)")
_ALGORITHM_PASSES = re.compile(r"num_primitive_operations = (\d+)")


def multiplier_of(
    lhs: ElementType, rhs: ElementType, precision: tuple[str, ...], algorithm: str
) -> Multiplier:
    """Return what the hardware multiplies.

    A multiply-accumulate is 2 FLOPs, a complex one 8 (4 products and 4 sums of reals). The type
    is the wider operand's, whatever the accumulator: bf16 x bf16 -> f32 runs at the bf16 rate.
    f32 at precision DEFAULT or HIGH is tf32 on the GPUs that have it (`jax.lax.Precision`); a
    device without a tf32 rate prices it as f32. An algorithm, where one is set, decides alone:
    ``bf16 x 3`` is three products of bf16.
    """
    element = wider(lhs, rhs)
    if algorithm:
        return _algorithm_multiplier(algorithm, element)
    name = arithmetic_type(element)
    if element.kind is NumberKind.COMPLEX:
        return Multiplier(type_name=name, flops=8)
    if name == "f32" and _FULL_PRECISION not in precision:
        name = "tf32"
    return Multiplier(type_name=name, flops=2)


def _algorithm_multiplier(algorithm: str, element: ElementType) -> Multiplier:
    named = _ALGORITHM_TYPE.findall(algorithm)
    passes = _ALGORITHM_PASSES.search(algorithm)
    name: str = named[0] if named else arithmetic_type(element)
    return Multiplier(type_name=name, flops=2 * int(passes[1] if passes else 1))


RULES = {
    "convolution": convolution,
    "dot": dot,
    "dot_general": dot,
    "einsum": einsum,
    "ragged_dot": ragged_dot,
    "scaled_dot": dot,
    "unary_einsum": unary_einsum,
}
