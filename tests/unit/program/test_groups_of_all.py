"""Groups of all devices from that of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import UnsupportedError
from hespas.program.groups import groups_along, groups_of_all


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    used=st.sets(st.integers(0, 3), min_size=1),
    seed=st.integers(0, 10**6),
)
def test_a_group_along_axes_of_a_mesh_gives_all_groups_of_the_mesh(
    sizes: list[int], used: set[int], seed: int
) -> None:
    axes = [(str(number), size) for number, size in enumerate(sizes)]
    expected = groups_along(axes, [str(number) for number in used])
    recorded = expected[seed % len(expected)]
    world = sum(map(len, expected))
    groups = groups_of_all(recorded, world_size=world).listed()
    assert sorted(map(sorted, groups)) == sorted(map(sorted, expected))


@pytest.mark.parametrize("ranks", [(0, 1, 3), (0, 3), (1, 2), (0, 1, 4, 6), (6, 8)])
def test_an_irregular_group_is_an_error(ranks: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match="is not one of equal groups of 8"):
        groups_of_all(ranks, world_size=8)
