"""Operations that apply a small body of their own, over and over.

Such a rule is also given ``bodies``: the work of each region when it is applied once. The body
works in registers, so only its arithmetic counts.
"""

from __future__ import annotations

from math import prod

from hespas.cost.rules.sizes import (
    bytes_of,
    in_memory,
    operand,
    result,
    traffic,
)
from hespas.cost.work import Work
from hespas.errors import CostError
from hespas.program.attrs import WindowAttrs
from hespas.program.program import Op

Bodies = tuple[Work, ...]


def _applied(op: Op, body: Work, times: int) -> Work:
    """Return the traffic of the operation, and the arithmetic of so many applications."""
    arithmetic = body.arithmetic * times
    return traffic(op, flops=arithmetic.flops, transcendentals=arithmetic.transcendentals)


def reduce(op: Op, bodies: Bodies) -> Work:
    """Combine n elements into one with n - 1 applications: inputs less outputs in all.

    The initial value is not counted as an input (XLA's HloCostAnalysis).
    """
    return _applied(op, bodies[0], operand(op, 0).element_count - result(op).element_count)


def reduce_window(op: Op, bodies: Bodies) -> Work:
    """Combine the elements of each window: its size less one applications for each result.

    A place in the padding counts like any other (XLA's HloCostAnalysis). A cumulative sum is
    written as a window of n over a row of n; no compiler runs that as n windows. It counts as
    a parallel scan: n - 1 applications up a tree and n - 1 down it. Source: Blelloch, "Prefix
    sums and their applications", 1990.
    """
    size = _window_size(op)
    if _is_cumulative(op, size):
        rows = result(op).element_count // size
        return _applied(op, bodies[0], rows * 2 * (size - 1))
    return _applied(op, bodies[0], result(op).element_count * (size - 1))


def _is_cumulative(op: Op, size: int) -> bool:
    """Return whether each result combines its row up to its place, or from it on."""
    attrs, shape = op.attrs, result(op).shape
    if not isinstance(attrs, WindowAttrs) or operand(op, 0).shape != shape or size == 1:
        return False
    at = attrs.size.index(max(attrs.size))
    along_a_row = size == attrs.size[at] == shape[at]
    steps = {*attrs.strides, *attrs.base_dilation, *attrs.window_dilation}
    one_sided = attrs.padding[at] in ((size - 1, 0), (0, size - 1))
    return along_a_row and steps == {1} and one_sided


def select_and_scatter(op: Op, bodies: Bodies) -> Work:
    """For each source element: select once for each other place of its window, scatter once."""
    select, scatter = bodies
    each = select * (_window_size(op) - 1) + scatter
    return _applied(op, each, operand(op, 1).element_count)


def _window_size(op: Op) -> int:
    if not isinstance(op.attrs, WindowAttrs):
        raise CostError("the window is not known", location=op.location)
    return prod(op.attrs.size)


def scatter(op: Op, bodies: Bodies) -> Work:
    """Combine each update element with the operand's element that it falls on, in place.

    Read are indices and updates, and the elements they fall on unless they are only replaced;
    those elements are written. The rest of the operand is not touched.
    """
    count = (len(op.operands) - 1) // 2
    updates = op.operands[count + 1 :]
    touched = sum(
        in_memory(
            operand(op, at),
            min(operand(op, at).size_bytes, operand(op, count + 1 + at).size_bytes),
        )
        for at in range(count)
    )
    fallen_on = 0 if only_replaces(op, count) else touched
    arithmetic = bodies[0].arithmetic * operand(op, -1).element_count
    return Work(
        flops=arithmetic.flops,
        transcendentals=arithmetic.transcendentals,
        bytes_read=bytes_of((op.operands[count], *updates)) + fallen_on,
        bytes_written=touched,
    )


def only_replaces(op: Op, count: int) -> bool:
    """Return whether a scatter into ``count`` operands keeps nothing of what was there."""
    body = op.regions[0]
    return body.operations[-1].operands == body.arguments[count:]


def map_elements(op: Op, bodies: Bodies) -> Work:
    """Apply the body once for each result element."""
    return _applied(op, bodies[0], result(op).element_count)


RULES = {
    "map": map_elements,
    "reduce": reduce,
    "reduce_window": reduce_window,
    "scatter": scatter,
    "select_and_scatter": select_and_scatter,
}
