"""Loops through a box of devices that are linked to their neighbours: a torus, a mesh, a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod


def loop_through(sizes: Sequence[int], *, is_closed: bool = False) -> tuple[int, ...]:
    """Return the positions in a box in the order of a loop, counted along the first side first.

    Neighbours in the loop are neighbours in the box, also the last and the first, if a side is
    even. Along one side, ``is_closed`` says that its ends are neighbours; otherwise the loop goes
    there by every second position and back by the others. If no side is even, the way from the
    last back to the first is longer.

    >>> loop_through([4], is_closed=True), loop_through([4])
    ((0, 1, 2, 3), (0, 2, 3, 1))
    >>> loop_through([2, 4])
    (2, 4, 6, 7, 5, 3, 1, 0)
    """
    if len(sizes) == 1:
        (size,) = sizes
        if is_closed:
            return tuple(range(size))
        return (*range(0, size, 2), *reversed(range(1, size, 2)))
    strides = [prod(sizes[:axis]) for axis in range(len(sizes))]
    even = next((axis for axis, size in enumerate(sizes) if size % 2 == 0), None)
    if even is None:
        return tuple(_path(sizes, strides))
    others = [axis for axis in range(len(sizes)) if axis != even]
    column = list(_path([sizes[axis] for axis in others], [strides[axis] for axis in others]))
    rows = [row * strides[even] for row in range(sizes[even])]
    # Up and down all columns but the first, row by row, then back along the first one.
    there = [
        row + position
        for number, row in enumerate(rows)
        for position in (column[1:] if number % 2 == 0 else column[:0:-1])
    ]
    return (*there, *[row + column[0] for row in reversed(rows)])


def _path(sizes: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """Yield all positions of a box, each a neighbour of the one before."""
    *inner, size = sizes
    *inner_strides, stride = strides
    if not inner:
        yield from (position * stride for position in range(size))
        return
    for step in range(size):
        row = list(_path(inner, inner_strides))
        yield from (step * stride + position for position in (row[::-1] if step % 2 else row))
