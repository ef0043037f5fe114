"""Loops from neighbour to neighbour through boxes."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import pytest

from hespas.collectives.patterns import loop_through


def place(position: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for size in sizes:
        found.append(position % size)
        position //= size
    return tuple(found)


def distance(one: int, other: int, sizes: tuple[int, ...]) -> int:
    ends = zip(place(one, sizes), place(other, sizes), strict=True)
    return sum(abs(here - there) for here, there in ends)


@pytest.mark.parametrize(
    "sizes", [each for axes in (2, 3) for each in product((2, 3, 4, 5), repeat=axes)]
)
def test_a_loop_visits_all_and_goes_from_neighbour_to_neighbour(sizes: tuple[int, ...]) -> None:
    loop = loop_through(sizes)
    assert sorted(loop) == list(range(prod(sizes)))
    assert all(distance(one, other, sizes) == 1 for one, other in pairwise(loop))
    if any(size % 2 == 0 for size in sizes):
        assert distance(loop[-1], loop[0], sizes) == 1


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_along_a_line_no_hop_is_longer_than_two(size: int) -> None:
    loop = loop_through([size])
    assert sorted(loop) == list(range(size))
    assert max(abs(one - other) for one, other in pairwise((*loop, loop[0]))) <= 2
