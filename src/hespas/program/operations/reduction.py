"""Count operations that apply their own body repeatedly.

Such a rule also takes ``bodies``: the work of one application of each region. The body works in
registers, so only its arithmetic counts.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from hespas.base.frozen import frozen
from hespas.errors import CostError
from hespas.program.attrs import WindowAttrs
from hespas.program.operations.traits import (
    Category,
    Traits,
    bytes_of,
    in_memory,
    operand,
    result,
    traffic,
)
from hespas.program.work import Work

if TYPE_CHECKING:
    from hespas.program.program import Op, Value

Bodies = tuple[Work, ...]


def _repeated_body(op: Op, body: Work, times: int) -> Work:
    arithmetic = body.arithmetic * times
    return traffic(op, flops=arithmetic.flops, transcendentals=arithmetic.transcendentals)


def reduce(op: Op, bodies: Bodies) -> Work:
    """Count n - 1 applications to reduce n elements.

    The initial value is not counted as an input (XLA's HloCostAnalysis). A reduction of no elements
    returns it.
    """
    times = operand(op, 0).element_count - result(op).element_count
    return _repeated_body(op, bodies[0], max(0, times))


def reduce_window(op: Op, bodies: Bodies) -> Work:
    """Count the window's size less one applications per result.

    A place in the padding counts like any other (XLA's HloCostAnalysis). Windows that share their
    work count it once, as compilers do:

    * Where every window covers the whole of an axis, all results along it are equal: the axis is
      reduced once, and the rest are copies. XLA's compiler for TPUs writes the reduction of n
      elements, spread over them again, as n windows of 2n - 1.
    * Where each window covers an axis from one end up to its place, the results are a cumulative
      sum: n - 1 applications up a tree and n - 1 down it. Source: Blelloch, "Prefix sums and
      their applications", 1990. JAX and XLA write it as n windows of n.
    """
    attrs = _window(op)
    lengths, results = operand(op, 0).shape, result(op).shape
    axes = [
        _WindowAxis(
            length=lengths[dimension],
            results=results[dimension],
            size=attrs.size[dimension],
            stride=attrs.strides[dimension],
            padding_low=attrs.padding[dimension][0],
            is_dilated=attrs.base_dilation[dimension] != 1 or attrs.window_dilation[dimension] != 1,
        )
        for dimension in range(len(lengths))
    ]
    return _repeated_body(op, bodies[0], _applications(axes))


@frozen
class _WindowAxis:
    """One dimension of a ``reduce_window``: ``results`` windows over ``length`` elements."""

    length: int
    results: int
    size: int
    stride: int
    padding_low: int
    is_dilated: bool

    @property
    def from_start(self) -> bool:
        """Whether every window covers, or ends before, the first element."""
        last = (self.results - 1) * self.stride - self.padding_low
        return not self.is_dilated and last <= 0

    @property
    def to_end(self) -> bool:
        """Whether every window covers, or begins after, the last element."""
        return not self.is_dilated and self.size - self.padding_low >= self.length

    @property
    def is_whole(self) -> bool:
        """Whether every window covers all elements."""
        return self.from_start and self.to_end


def _applications(axes: list[_WindowAxis]) -> int:
    """Return how often the body runs; fully covered axes are reduced first."""
    reduced = prod(axis.length for axis in axes if axis.is_whole)
    partial_axes = [axis for axis in axes if not axis.is_whole]
    results = prod(axis.results for axis in partial_axes)
    separate_count = results * (reduced * prod(axis.size for axis in partial_axes) - 1)
    sliding_axes = [axis for axis in partial_axes if axis.size > 1]
    if len(sliding_axes) != 1 or not (sliding_axes[0].from_start or sliding_axes[0].to_end):
        return separate_count
    (axis,) = sliding_axes
    rows = results // axis.results
    scan_count = rows * (axis.length * (reduced - 1) + 2 * (axis.length - 1))
    return min(separate_count, scan_count)


def select_and_scatter(op: Op, bodies: Bodies) -> Work:
    """Count each window's selects and a scatter per source.

    A window takes one select for each position but one.
    """
    select, scatter = bodies
    window_work = select * (prod(_window(op).size) - 1) + scatter
    return _repeated_body(op, window_work, operand(op, 1).element_count)


def _window(op: Op) -> WindowAttrs:
    if not isinstance(op.attrs, WindowAttrs):
        raise CostError("the window is not known", location=op.location)
    return op.attrs


def scatter(op: Op, bodies: Bodies) -> Work:
    """Count update elements combined with their targets, in place.

    Indices and updates are read, and the target elements unless they are only replaced; the target
    elements are written. The rest of the operand is not touched.
    """
    count = (len(op.operands) - 1) // 2
    target_bytes = 0
    for position in range(count):
        target, update = operand(op, position), operand(op, count + 1 + position)
        target_bytes += in_memory(target, min(target.size_bytes, update.size_bytes))
    read_targets = 0 if only_replaces(op, count) else target_bytes
    arithmetic = bodies[0].arithmetic * operand(op, -1).element_count
    return Work(
        flops=arithmetic.flops,
        transcendentals=arithmetic.transcendentals,
        bytes_read=bytes_of(op.operands[count:]) + read_targets,
        bytes_written=target_bytes,
    )


def updates_of(op: Op) -> tuple[Value, ...]:
    """Return the values that an update writes."""
    first = op.traits.written_operand
    return op.operands[1:2] if first == 1 else op.operands[len(op.operands) // 2 + 1 :]


def only_replaces(op: Op, count: int) -> bool:
    """Return whether a scatter discards the old elements."""
    body = op.regions[0]
    return body.operations[-1].operands == body.arguments[count:]


def map_elements(op: Op, bodies: Bodies) -> Work:
    """Count one application of the body per result element."""
    return _repeated_body(op, bodies[0], result(op).element_count)


_REDUCTION = Traits(category=Category.REDUCTION)

TRAITS = {
    "map": Traits(
        category=Category.ELEMENTWISE, work_of_bodies=map_elements, keeps_dimensions=True
    ),
    "reduce": replace(_REDUCTION, work_of_bodies=reduce, kernel_name="reduction", fusion_rank=2),
    "reduce_window": replace(
        _REDUCTION,
        work_of_bodies=reduce_window,
        keeps_dimensions=True,
        kernel_name="window reduction",
        fusion_rank=3,
    ),
    "scatter": Traits(
        category=Category.UPDATE,
        work_of_bodies=scatter,
        written_operand=2,
        kernel_name="scatter",
        fusion_rank=0,
    ),
    "select_and_scatter": replace(
        _REDUCTION,
        work_of_bodies=select_and_scatter,
        keeps_dimensions=True,
        kernel_name="scatter",
    ),
}
