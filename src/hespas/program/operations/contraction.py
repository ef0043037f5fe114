"""Count the work of dots, convolutions and einsums."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING

from hespas.base.figures import MOST_WINDOW_POSITIONS
from hespas.base.frozen import frozen
from hespas.errors import CostError
from hespas.program.attrs import ConvolutionAttrs, DotAttrs, EinsumAttrs
from hespas.program.operations.traits import (
    Category,
    Traits,
    arithmetic_type,
    memory_bytes,
    operand,
    result,
    traffic,
    wider,
)
from hespas.program.types import ElementType, NumberKind
from hespas.program.work import Work, flop_counts

if TYPE_CHECKING:
    from hespas.program.program import Op

_F32_TYPES = {"HIGHEST": "f32_highest", "HIGH": "f32_high"}
"""The product type of f32 for each precision, the highest first."""

Shape = tuple[int, ...]


@frozen
class Multiplier:
    """The hardware's product type, a key of `Work.flops`, and FLOPs per product."""

    type_name: str
    flops: int


def dot(op: Op) -> Work:
    """Count 2 m n k FLOPs.

    Each result element is a sum over the contracted dimensions. Operands are read once, the result
    is written once.
    """
    attrs = op.attrs
    if not isinstance(attrs, DotAttrs):
        raise CostError("the dimensions of a dot are not known", location=op.location)
    lhs = operand(op, 0)
    contracted = prod([lhs.shape[dimension] for dimension in attrs.lhs_contracting])
    multiplier = multiplier_of(
        lhs.element, operand(op, 1).element, attrs.precision, attrs.algorithm
    )
    macs = result(op).element_count * contracted
    return traffic(op, flops=flop_counts(multiplier.type_name, macs * multiplier.flops))


def ragged_dot(op: Op) -> Work:
    """Count each row with the matrix of its group.

    If groups divide the contracted dimension, each group computes one matrix of the result from its
    own rows: the result's size counts once, not for every group. If the rows of each group are
    known, rows of no group are neither multiplied nor moved. Matrices of empty groups are not read,
    nor are their scales, which are the operands after the row counts.
    """
    dense = dot(op)
    attrs = op.attrs
    if not isinstance(attrs, DotAttrs) or attrs.ragged is None:
        return dense
    rows, count = operand(op, 0).shape[attrs.ragged], operand(op, 2).shape[-1]
    row_share, group_share = Fraction(1), Fraction(groups_with_rows(rows, count), count)
    if attrs.group_rows:
        row_share = Fraction(sum(attrs.group_rows), max(1, rows))
        group_share = Fraction(sum(map(bool, attrs.group_rows)), len(attrs.group_rows))
    flop_share = row_share / count if attrs.is_divided else row_share
    lhs_bytes, rhs_bytes, counts, *scales = [memory_bytes(value.type) for value in op.operands]
    matrix_share = row_share if attrs.is_divided else group_share
    read = row_share * lhs_bytes + matrix_share * (rhs_bytes + sum(scales)) + counts
    return Work(
        flops=tuple([(name, round(flops * flop_share)) for name, flops in dense.flops]),
        bytes_read=round(read),
        bytes_written=round(dense.bytes_written * (1 if attrs.is_divided else row_share)),
    )


def groups_with_rows(rows: int, groups: int) -> int:
    """Return the expected number of groups that have a row.

    Each row chooses every group with equal probability: a group is empty with probability
    ``(1 - 1 / groups) ** rows``.

    >>> groups_with_rows(64, 128), groups_with_rows(4096, 128), groups_with_rows(1, 128)
    (51, 128, 1)
    """
    return min(rows, round(groups * (1 - (1 - 1 / groups) ** rows)))


def convolution(op: Op) -> Work:
    """Count 2 FLOPs per product with a real input element."""
    attrs = op.attrs
    if not isinstance(attrs, ConvolutionAttrs):
        raise CostError("the window of a convolution is not known", location=op.location)
    image, kernel = operand(op, 0), operand(op, 1)
    macs = convolution_macs(attrs, image.shape, kernel.shape, result(op).shape)
    multiplier = multiplier_of(image.element, kernel.element, attrs.precision)
    return traffic(op, flops=flop_counts(multiplier.type_name, macs * multiplier.flops))


def convolution_macs(attrs: ConvolutionAttrs, image: Shape, kernel: Shape, output: Shape) -> int:
    """Count the multiply-accumulates of a convolution.

    Each output element of each batch and output feature sums over the input features of its
    group, which are the kernel's input features, and over the real elements of the image in the
    window.
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
            input_size=image[attrs.input_spatial[axis]],
            kernel_size=kernel[attrs.kernel_spatial[axis]],
            output_size=output[attrs.output_spatial[axis]],
            stride=attrs.strides[axis],
            padding_low=attrs.padding[axis][0],
            input_dilation=attrs.lhs_dilation[axis],
            kernel_dilation=attrs.rhs_dilation[axis],
        )
        for axis in range(len(attrs.input_spatial))
    ]


def einsum(op: Op) -> Work:
    """Count 2 FLOPs per combination of the equation's indices."""
    sizes = _letter_sizes(op)
    multiplier = multiplier_of(operand(op, 0).element, operand(op, 1).element)
    return traffic(op, flops=flop_counts(multiplier.type_name, sizes * multiplier.flops))


def unary_einsum(op: Op) -> Work:
    """Count one addition per element summed over letters that the result lacks."""
    source = operand(op, 0)
    additions = max(0, _letter_sizes(op) - result(op).element_count)
    return traffic(op, flops=flop_counts(arithmetic_type(source.element), additions))


def _letter_sizes(op: Op) -> int:
    attrs = op.attrs
    if not isinstance(attrs, EinsumAttrs) or "." in attrs.equation:
        raise CostError("the equation of an einsum is not known", location=op.location)
    sizes: dict[str, int] = {}
    terms = attrs.equation.partition("->")[0].split(",")
    for position, letters in enumerate(terms):
        sizes.update(zip(letters.strip(), operand(op, position).shape, strict=True))
    return prod(sizes.values())


_ALGORITHM_TYPE = re.compile(r"(?:lhs|rhs)_precision_type = (\w+)")
_ALGORITHM_PASSES = re.compile(r"num_primitive_operations = (\d+)")


def multiplier_of(
    lhs: ElementType, rhs: ElementType, precision: tuple[str, ...] = (), algorithm: str = ""
) -> Multiplier:
    """Return the product type of two element types.

    A multiply-accumulate is 2 FLOPs, a complex one 8 (4 products and 4 sums of reals). The type
    is the wider operand's, whatever the accumulator: bf16 x bf16 -> f32 runs at the bf16 rate.
    f32 has a type for each precision (`jax.lax.Precision`): ``tf32`` for DEFAULT, ``f32_high`` and
    ``f32_highest``. `Device.served_by` maps them to units of the device. If an algorithm is set, it
    alone decides: ``bf16 x 3`` is three products of bf16.
    """
    element = wider(lhs, rhs)
    if algorithm:
        return _algorithm_multiplier(algorithm, element)
    name = arithmetic_type(element)
    if element.kind is NumberKind.COMPLEX:
        return Multiplier(type_name=name, flops=8)
    if name == "f32":
        name = next((_F32_TYPES[level] for level in _F32_TYPES if level in precision), "tf32")
    return Multiplier(type_name=name, flops=2)


def _algorithm_multiplier(algorithm: str, element: ElementType) -> Multiplier:
    types = _ALGORITHM_TYPE.findall(algorithm)
    passes = _ALGORITHM_PASSES.search(algorithm)
    name: str = types[0] if types else arithmetic_type(element)
    name = _F32_TYPES["HIGHEST"] if name == "f32" else name
    return Multiplier(type_name=name, flops=2 * int(passes[1] if passes else 1))


_PRODUCT = Traits(category=Category.PRODUCT)

TRAITS = {
    "convolution": replace(_PRODUCT, work=convolution),
    "dot": replace(_PRODUCT, work=dot),
    "dot_general": replace(_PRODUCT, work=dot),
    "dynamic_conv": replace(_PRODUCT, without_work="its padding is known only when it runs"),
    "einsum": replace(_PRODUCT, work=einsum),
    "ragged_dot": replace(_PRODUCT, work=ragged_dot),
    "scaled_dot": replace(_PRODUCT, work=dot),
    "unary_einsum": replace(_PRODUCT, work=unary_einsum),
}


@frozen
class WindowAxis:
    """One spatial dimension of a convolution.

    Output place o and kernel place k meet at ``o * stride + k * kernel_dilation -
    padding_low`` of the input with ``input_dilation - 1`` holes between its elements.
    """

    input_size: int
    kernel_size: int
    output_size: int
    stride: int
    padding_low: int
    input_dilation: int
    kernel_dilation: int


@lru_cache(maxsize=4096)
def real_pairs(axis: WindowAxis) -> int:
    """Count the multiplications with real input elements along an axis.

    Each is a pair of an output and a kernel position. Padding and the holes of a dilated input are
    not elements and cost no multiplication. XLA's HloCostAnalysis counts the same, with a loop.

    >>> sizes = {"input_size": 4, "kernel_size": 3, "output_size": 4}
    >>> dense = {"stride": 1, "input_dilation": 1, "kernel_dilation": 1}
    >>> real_pairs(WindowAxis(**sizes, **dense, padding_low=1))
    10
    """
    # Output and kernel exchange roles: go through the smaller one, and for each of its positions
    # count the positions x of the other that meet an element: step * x - offset lies inside the
    # dilated input, 0 to end, and is a multiple of its dilation. Such x are ``spacing`` apart.
    output, kernel = (axis.output_size, axis.stride), (axis.kernel_size, axis.kernel_dilation)
    (fewer, own_step), (more, step) = sorted((output, kernel))
    if fewer > MOST_WINDOW_POSITIONS:
        raise CostError(
            f"a dimension of a convolution has {fewer} positions, too many to count",
            hint=f"at most {MOST_WINDOW_POSITIONS} are counted",
        )
    common = gcd(step, axis.input_dilation)
    spacing = axis.input_dilation // common
    inverse = pow(step // common, -1, spacing)
    end = axis.input_dilation * (axis.input_size - 1)
    pairs = 0
    for position in range(fewer):
        offset = axis.padding_low - own_step * position
        if offset % common:
            continue
        first = offset // common * inverse % spacing
        lowest, highest = max(0, -(-offset // step)), min(more - 1, (offset + end) // step)
        pairs += max(0, (highest - first) // spacing - (lowest - 1 - first) // spacing)
    return pairs
