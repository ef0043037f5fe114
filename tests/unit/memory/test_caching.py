"""PyTorch's caching allocator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.memory.caching import AllocatorUse, allocator_use, live_levels, rounded
from hespas.program.recorded import Storage

MIB = 2**20


def storage(
    size_mib: float, allocated: int | None = 0, freed: int | None = None, stream: int = 0
) -> Storage:
    """Return a storage."""
    return Storage(size_bytes=int(size_mib * MIB), allocated=allocated, freed=freed, stream=stream)


def use(*storages: Storage, is_expandable: bool = False) -> AllocatorUse:
    """Return what storages take."""
    return allocator_use(storages, is_expandable=is_expandable)


@st.composite
def recorded(draw: st.DrawFn) -> list[Storage]:
    """Draw storages of a step of a few calls."""
    made: list[Storage] = []
    for _ in range(draw(st.integers(1, 25))):
        allocated = draw(st.none() | st.integers(0, 20))
        freed = draw(st.none() | st.integers(allocated or 0, 21))
        size = draw(st.sampled_from([0, 1, 512, 700_000, MIB, 3 * MIB, 11 * MIB, 64 * MIB]))
        made.append(
            Storage(
                size_bytes=size + draw(st.integers(0, 3)) * 512,
                allocated=allocated,
                freed=freed,
                stream=draw(st.integers(0, 2)),
            )
        )
    return made


@given(storages=recorded(), is_expandable=st.booleans())
def test_what_is_live_is_reserved_and_adds_up(storages: list[Storage], is_expandable: bool) -> None:
    found = use(*storages, is_expandable=is_expandable)
    live = sum(rounded(storages[number].size_bytes) for number in found.live)
    assert found.live_bytes == live <= found.reserved_bytes
    at_calls = live_levels(storages, 22)
    assert max(at_calls) <= found.live_bytes


@given(storages=recorded())
def test_live_levels_are_sums_of_storages(storages: list[Storage]) -> None:
    levels = live_levels(storages, 22)
    for position, level in enumerate(levels):
        there = [
            each
            for each in storages
            if (each.allocated or 0) <= position and (each.freed is None or each.freed > position)
        ]
        assert level == sum(rounded(each.size_bytes) for each in there)


@pytest.mark.parametrize(
    ("sizes_mib", "reserved_mib"),
    [
        ([0.001], 2),
        ([1], 2),
        ([1, 1], 2),
        ([1, 1, 1], 4),
        ([1.5], 20),
        ([9.5, 9.5], 20),
        ([9.5, 9.5, 9.5], 40),
        ([10], 10),
        ([11], 12),
        ([11, 0.001], 14),
    ],
)
def test_segments_of_requests(sizes_mib: list[float], reserved_mib: int) -> None:
    assert use(*map(storage, sizes_mib)).reserved_bytes == reserved_mib * MIB


def test_a_freed_block_is_used_again_by_its_stream_alone() -> None:
    again = use(storage(64, 0, 1), storage(60, 1))
    assert again.reserved_bytes == 64 * MIB
    other = use(storage(64, 0, 1), storage(60, 1, stream=1))
    assert other.reserved_bytes == 124 * MIB


def test_the_rest_of_a_block_serves_others_where_it_is_large_enough() -> None:
    freed = storage(64, 0, 1)
    assert use(freed, storage(40, 1), storage(24, 1)).reserved_bytes == 64 * MIB
    # A rest of a MiB stays with the block.
    assert use(freed, storage(63, 1), storage(1.001, 1)).reserved_bytes == (64 + 20) * MIB


def test_free_neighbours_are_joined() -> None:
    parts = [storage(64, 0, 1), storage(32, 1, 2), storage(32, 1, 2)]
    assert use(*parts, storage(64, 2)).reserved_bytes == 64 * MIB
    held = [storage(64, 0, 1), storage(32, 1), storage(32, 1, 2)]
    assert use(*held, storage(64, 2)).reserved_bytes == 128 * MIB


def test_a_result_is_there_before_what_it_was_made_of_is_freed() -> None:
    found = use(storage(64, None, 1), storage(64, 0, None))
    assert (found.live_bytes, found.position, found.live) == (128 * MIB, 0, (0, 1))
    assert use(storage(64, None, 1), storage(64, 1)).live_bytes == 64 * MIB


def test_an_expandable_segment_grows_by_what_is_missing() -> None:
    storages = [storage(64, 0, 1), storage(100, 1, 2), storage(10, 2), storage(90, 2)]
    assert use(*storages).reserved_bytes == (64 + 100) * MIB
    assert use(*storages, is_expandable=True).reserved_bytes == 100 * MIB
