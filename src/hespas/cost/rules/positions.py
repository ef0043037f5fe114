"""How often a window meets a real element, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Count pairs of an output place and a kernel place that meet a real input element.

    Padding and the holes of a dilated input are not elements: no multiplication is spent on
    them. This is what XLA's HloCostAnalysis counts for a convolution, without its loop.

    >>> sizes = {"input_size": 4, "kernel_size": 3, "output_size": 4}
    >>> dense = {"stride": 1, "input_dilation": 1, "kernel_dilation": 1}
    >>> real_pairs(WindowAxis(**sizes, **dense, padding_low=1))
    10
    """
    # Input element i stands at d * i of the dilated input, so the pairs sought solve
    #     s * o + r * k - low = d * i,  0 <= i < n.
    # Write o = d * o' + a and k = d * k' + b with remainders a, b < d. A pair (a, b) has
    # solutions only if d divides s * a + r * b - low, and then, with q that quotient,
    #     s * o' + r * k' + q = i,
    # which is the problem without holes, on smaller ranges of o' and k'.
    hole = axis.input_dilation
    pairs = 0
    for a in range(min(hole, axis.output_size)):
        for b in range(min(hole, axis.kernel_size)):
            offset = axis.stride * a + axis.kernel_dilation * b - axis.padding_low
            if offset % hole == 0:
                outputs = _places(axis.output_size, a, hole)
                taps = _places(axis.kernel_size, b, hole)
                pairs += _dense_pairs(axis, outputs, taps, offset // hole)
    return pairs


def _places(size: int, remainder: int, step: int) -> int:
    """Count remainder, remainder + step, ... below size."""
    return (size - remainder + step - 1) // step


def _dense_pairs(axis: WindowAxis, outputs: int, taps: int, quotient: int) -> int:
    """Count o' < outputs, k' < taps with 0 <= s * o' + r * k' + quotient < n."""

    def up_to(limit: int) -> int:
        # Pairs in the box below a line are the quadrant's below it, less those beyond either
        # side of the box, plus those beyond both, which were taken away twice.
        width, height = axis.stride * outputs, axis.kernel_dilation * taps
        return (
            _below(axis, limit)
            - _below(axis, limit - width)
            - _below(axis, limit - height)
            + _below(axis, limit - width - height)
        )

    return up_to(axis.input_size - 1 - quotient) - up_to(-1 - quotient)


def _below(axis: WindowAxis, limit: int) -> int:
    """Count o, k >= 0 with s * o + r * k <= limit."""
    if limit < 0:
        return 0
    # For each of the limit // s + 1 values of o there are (limit - s * o) // r + 1 of k; from
    # the largest o down, limit - s * o runs through limit % s + s * j.
    outputs = limit // axis.stride + 1
    rest = limit % axis.stride
    return outputs + floor_sum(outputs, axis.kernel_dilation, axis.stride, rest)


def floor_sum(terms: int, divisor: int, slope: int, offset: int) -> int:
    """Return the sum of ``(slope * j + offset) // divisor`` for j below ``terms``.

    Whole parts of slope and offset are summed directly. What is left counts the lattice points
    under a line of slope below 1, which turned by a right angle is the same problem with
    divisor and slope exchanged, as in Euclid's algorithm: O(log) steps.

    >>> floor_sum(5, 3, 7, 2) == sum((7 * j + 2) // 3 for j in range(5))
    True
    """
    total = 0
    while True:
        total += (slope // divisor) * (terms * (terms - 1) // 2) + (offset // divisor) * terms
        slope, offset = slope % divisor, offset % divisor
        top = slope * terms + offset
        if top < divisor:
            return total
        terms, offset = divmod(top, divisor)
        divisor, slope = slope, divisor
